"""fedrift: federated learning when the clients' data differ."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedrift.version import VERSION

if TYPE_CHECKING:
    from fedrift.algorithm import Algorithm
    from fedrift.comparing import compare
    from fedrift.comparison import Comparison
    from fedrift.data.resident import Split
    from fedrift.dividing import split
    from fedrift.engine import RoundReport
    from fedrift.errors import InputError, RunError
    from fedrift.front import run
    from fedrift.local import Local
    from fedrift.result import Result

__version__ = VERSION
__all__ = [
    "Algorithm",
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
    "Algorithm": "fedrift.algorithm",
    "Comparison": "fedrift.comparison",
    "InputError": "fedrift.errors",
    "Local": "fedrift.local",
    "Result": "fedrift.result",
    "RoundReport": "fedrift.engine",
    "RunError": "fedrift.errors",
    "Split": "fedrift.data.resident",
    "compare": "fedrift.comparing",
    "run": "fedrift.front",
    "split": "fedrift.dividing",
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
