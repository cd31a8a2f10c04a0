"""fedrift: federated learning when the clients' data differ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedrift._moved import install
from fedrift.version import VERSION

if TYPE_CHECKING:
    from fedrift.api import compare, run
    from fedrift.comparison import Comparison
    from fedrift.core.algorithm import Algorithm
    from fedrift.core.local import Local
    from fedrift.data.arrays import split
    from fedrift.data.split import Split
    from fedrift.engine.callbacks import Callback, RoundReport
    from fedrift.engine.result import Result
    from fedrift.errors import InputError, RunError


install()
__version__ = VERSION
__all__ = [
    "Algorithm",
    "Callback",
    "Comparison",
    "InputError",
    "Local",
    "Result",
    "RoundReport",
    "RunError",
    "Split",
    "compare",
    "run",
    "split",
]

_HOMES = {
    "Algorithm": "fedrift.core.algorithm",
    "Callback": "fedrift.engine.callbacks",
    "Comparison": "fedrift.comparison",
    "InputError": "fedrift.errors",
    "Local": "fedrift.core.local",
    "Result": "fedrift.engine.result",
    "RoundReport": "fedrift.engine.callbacks",
    "RunError": "fedrift.errors",
    "Split": "fedrift.data.split",
    "compare": "fedrift.api",
    "run": "fedrift.api",
    "split": "fedrift.data.arrays",
}


def __getattr__(name: str) -> Any:
    # torch takes a second to import, and `fedrift --help` does not need it
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name == "conform":  # a package of its own: fedrift.conform.check(MyAlgorithm)
        return import_module("fedrift.conform")
    raise AttributeError(f"module 'fedrift' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
