"""Old import paths of documented names; they go with the next release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "algorithm": "core.algorithm",
    "comparing": "api",
    "data.resident": "data.split",
    "dividing": "data.arrays",
    "experiment": "config.spec",
    "features": "presets.studies.extractors",
    "flat": "core.flat",
    "front": "api",
    "local": "core.local",
    "messages": "core.messages",
    "optim": "core.optim",
    "pieces": "core.pieces",
    "problem": "core.problem",
    "result": "engine.result",
    "results": "storage.run_folder",
    "rounds": "engine.callbacks",
    "site": "core.site",
}


class Forwarding(MetaPathFinder, Loader):
    """Imports the new module under its old name, with a warning that names the new one."""

    def __init__(self) -> None:
        self._own: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_moved = fullname.removeprefix("fedrift.") in MOVED and fullname.startswith("fedrift.")
        return ModuleSpec(fullname, self) if is_moved else None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        new = f"fedrift.{MOVED[spec.name.removeprefix('fedrift.')]}"
        warnings.warn(f"{spec.name} is now {new}", DeprecationWarning, stacklevel=2)
        module = import_module(new)
        self._own[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """It was executed under its own name, which the import system has written over."""
        old = module.__spec__
        own = self._own.pop(old.name) if old is not None else None
        if own is not None:
            module.__spec__, module.__loader__ = own, own.loader


def install() -> None:
    """Asked after everything else: only for names that are not there."""
    if not any(isinstance(finder, Forwarding) for finder in sys.meta_path):
        sys.meta_path.append(Forwarding())
