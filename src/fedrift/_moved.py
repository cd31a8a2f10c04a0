"""Old import paths of documented names; they go with the next release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MOVED = {
    "algorithm": "core",
    "algorithms.changed": "algorithms.wrappers",
    "algorithms.finetune": "algorithms.fed3r_finetune",
    "algorithms.mimelite": "algorithms.mime",
    "algorithms.wrapper": "algorithms.wrappers",
    "comparing": "api",
    "data.resident": "data.split",
    "dividing": "data.arrays",
    "experiment": "config.spec",
    "features": "engine.features",
    "flat": "core.flat",
    "front": "api",
    "local": "core.local",
    "messages": "core.messages",
    "metrics": "core.evaluation",
    "optim": "core.optim",
    "pieces": "core.pieces",
    "problem": "core.problem",
    "result": "engine.result",
    "results": "storage.run_record",
    "rounds": "engine.callbacks",
    "site": "core.site",
    "streams": "rng",
}
"""Old module → new one, both without the package's name."""

RENAMED = {
    "streams": {"stream": "generator"},
}
"""Old module → names of it that are others in the new one."""


class Forwarding(MetaPathFinder, Loader):
    """Makes an old module whose names are those of the new one, with a warning that names it."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package, _, old = fullname.partition(".")
        return ModuleSpec(fullname, self) if package == "fedrift" and old in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        old = module.__name__.partition(".")[2]
        new = import_module(f"fedrift.{MOVED[old]}")
        renamed = RENAMED.get(old, {})

        def fetch(name: str) -> Any:
            return getattr(new, renamed.get(name, name))

        setattr(module, "__getattr__", fetch)  # noqa: B010  as a module defines its own
        warnings.warn(f"{module.__name__} is now {new.__name__}", DeprecationWarning, stacklevel=2)


def install() -> None:
    """Asked after everything else: only for names that are not there."""
    if not any(isinstance(finder, Forwarding) for finder in sys.meta_path):
        sys.meta_path.append(Forwarding())
