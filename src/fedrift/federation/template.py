"""Writes a Flower app: a pyproject, the config, and a few lines where a site's data are read."""

from __future__ import annotations

import re
from pathlib import Path

from fedrift.errors import InputError
from fedrift.federation.config import FILE, FederationConfig
from fedrift.version import VERSION

PYPROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = "{name}"
version = "0.1.0"
description = "{algorithm} in a Flower federation, by fedrift"
dependencies = ["fedrift[flower]>={version}"]

[tool.hatch.build.targets.wheel]
packages = ["federated"]

[tool.flwr.app]
publisher = "fedrift"

[tool.flwr.app.components]
serverapp = "federated.server:app"
clientapp = "federated.client:app"

# Any of these may be changed for one start: flwr run . NAME --run-config 'algorithm="scaffold"'.
# Other keys of fedrift.toml, such as lr or seed, can be said here too.
[tool.flwr.app.config]
algorithm = "{algorithm}"
rounds = {rounds}
out = ""         # folder at the server for curve, ledger, weights and checkpoint; empty: none
test = ""        # npz file at the server with x and y; empty: of the config's data set, if any
min-nodes = 0    # a round waits until so many nodes are there; 0: all of them
secagg = false   # secure aggregation: the server learns the cohort's sums only
deadline = {deadline}   # seconds an exchange may take; later replies are ignored
"""

CLIENT = '''\
"""What runs at a site. Nothing but the declared messages leaves it."""

from pathlib import Path

from fedrift.federation.apps import client_app
from fedrift.federation.sources import site_samples


def load(config, node):
    """This site's samples x and labels y, as arrays: put your own loader here.

    `node` is what the SuperNode was started with (--node-config). As it stands, the file named by
    its `data` is read (npz with x and y), or its part of the data set that the config may name.
    """
    return site_samples(config, node)


app = client_app(Path(__file__).parent, load)
'''

SERVER = '''\
"""What runs at the server. It holds no client's data."""

from pathlib import Path

from fedrift.federation.apps import server_app
from fedrift.federation.sources import test_samples


def test(config, run_config):
    """Samples and labels to evaluate on at the server; return None to evaluate nothing.

    `run_config` is [tool.flwr.app.config] with what this start says otherwise. As it stands, the
    file named by its `test` is read (npz with x and y), or the test half of the config's data
    set, if it names one.
    """
    return test_samples(config, run_config)


app = server_app(Path(__file__).parent, test)
'''

README = """\
# {name}

A Flower app that trains with {algorithm}. `federated/fedrift.toml` is the experiment, the same for
server and sites; `federated/client.py` is where a site reads its data.

    flwr run . NAME --stream

`NAME` is a connection of your Flower configuration. Every SuperNode says which client it is:

    flower-supernode --superlink HOST:PORT --node-config "partition-id=0 num-partitions={clients}"

and may add `data="/path/to/its.npz"` and `state-dir="/path/for/client/states"`.
"""


def write_app(folder: Path, config: FederationConfig, deadline: float) -> list[Path]:
    """The files of an app in a new folder."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise InputError(f"folder '{folder}' is not empty; name a new one")
    name = re.sub(r"[^a-z0-9-]+", "-", folder.resolve().name.lower()).strip("-") or "federated-app"
    words = {
        "name": name,
        "algorithm": str(config.spec.algorithm).replace('"', ""),
        "rounds": config.spec.rounds,
        "version": VERSION,
        "deadline": f"{deadline:g}",
        "clients": config.clients,
    }
    texts = {
        "pyproject.toml": PYPROJECT.format(**words),
        "README.md": README.format(**words),
        "federated/__init__.py": "",
        "federated/client.py": CLIENT,
        "federated/server.py": SERVER,
        f"federated/{FILE}": config.to_toml(),
    }
    for path, text in texts.items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return [folder / path for path in texts]
