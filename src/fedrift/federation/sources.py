"""Where a site's samples come from: a file of its own, or its part of a named data set."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedrift.config.client_evaluation import OWN
from fedrift.data import files
from fedrift.data.files import existing_path
from fedrift.engine.prepare import load, own_inputs, own_tests, prepare
from fedrift.errors import InputError
from fedrift.federation.config import FederationConfig

Samples = tuple[np.ndarray, np.ndarray]


def site_samples(config: FederationConfig, node: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """The file that the node's `data` names (npz with x and y), else its part of the named data;
    x_test and y_test behind them where the config says that sites bring their own."""
    has_own = config.spec.client_test == OWN
    if node.get("data"):
        path = Path(str(node["data"]))
        return (*npz_samples(path), *(npz_samples(path, TEST) if has_own else ()))
    client = node.get("partition-id")
    if not isinstance(client, int) or not 0 <= client < config.clients:
        raise InputError(f"partition-id={client!r} must be from 0 to {config.clients - 1}")
    if not config.named:
        raise InputError(
            'this site\'s data are not known; say data="FILE.npz" in --node-config, or put a '
            "loader into federated/client.py"
        )
    ready = prepare(config.spec)
    part, data = ready.partition.parts[client], ready.data
    own = own_tests(ready)[client] if has_own else None
    tests = () if own is None else (own_inputs(config.spec, ready)[own], data.y_test[own])
    return (ready.x[part], data.y[part], *tests)


def test_samples(config: FederationConfig, run_config: Mapping[str, Any]) -> Samples | None:
    """The file that `test` of the app's configuration names, else the test half of the data."""
    if run_config.get("test"):
        return npz_samples(Path(str(run_config["test"])))
    if not config.named:
        return None
    data = load(config.spec)
    return data.x_test, data.y_test


TEST = ("x_test", "y_test")


def npz_samples(path: Path, names: tuple[str, str] = ("x", "y")) -> Samples:
    """Two arrays of an npz file, samples and labels; no pickle is loaded."""
    arrays = files.read_npz(existing_path(str(path), "npz"), names)
    if len(arrays) < 2:
        raise InputError(f"data '{path}' must hold arrays {names[0]} and {names[1]}")
    return arrays[names[0]], arrays[names[1]]
