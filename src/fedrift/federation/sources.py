"""Where a site's samples come from: a file of its own, or its part of a named data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.data import files
from fedrift.data.files import existing_path
from fedrift.engine.prepare import load, prepare
from fedrift.errors import InputError
from fedrift.federation.config import FederationConfig

Samples = tuple[np.ndarray, np.ndarray]


def site_samples(config: FederationConfig, node: Mapping[str, Any]) -> Samples:
    """The file that the node's `data` names (npz with x and y), else its part of the named data."""
    if node.get("data"):
        return npz_samples(Path(str(node["data"])))
    client = node.get("partition-id")
    if not isinstance(client, int) or not 0 <= client < config.clients:
        raise InputError(f"partition-id={client!r} must be from 0 to {config.clients - 1}")
    if not config.named:
        raise InputError(
            'this site\'s data are not known; say data="FILE.npz" in --node-config, or put a '
            "loader into federated/client.py"
        )
    ready = prepare(config.spec)
    part = ready.partition.parts[client]
    return ready.x[part], ready.data.y[part]


def test_samples(config: FederationConfig, run_config: Mapping[str, Any]) -> Samples | None:
    """The file that `test` of the app's configuration names, else the test half of the data."""
    if run_config.get("test"):
        return npz_samples(Path(str(run_config["test"])))
    if not config.named:
        return None
    data = load(config.spec)
    return data.x_test, data.y_test


def npz_samples(path: Path) -> Samples:
    """Arrays x and y of an npz file; no pickle is loaded."""
    arrays = files.read_npz(existing_path(str(path), "npz"), ("x", "y"))
    if len(arrays) < 2:
        raise InputError(f"data '{path}' must hold arrays x and y")
    return arrays["x"], arrays["y"]
