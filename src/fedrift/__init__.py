"""fedrift: federated learning when the clients' data differ."""

# ruff: noqa: E402

from __future__ import annotations

from fedrift.engine.interrupts import listen_if_program  # isort: skip

listen_if_program()  # before anything else is imported

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
    from fedrift.engine.callbacks import Callback, Plan, RoundReport
    from fedrift.engine.result import Result
    from fedrift.errors import InputError, RunError
    from fedrift.merging import Merged, merge
    from fedrift.merging.experts import Experts, experts
    from fedrift.report import write as report
    from fedrift.report.saved import SavedComparison, SavedRun, load


install()
__version__ = VERSION
__all__ = [
    "Algorithm",
    "Callback",
    "Comparison",
    "Experts",
    "InputError",
    "Local",
    "Merged",
    "Plan",
    "Result",
    "RoundReport",
    "RunError",
    "SavedComparison",
    "SavedRun",
    "Split",
    "compare",
    "experts",
    "load",
    "merge",
    "report",
    "run",
    "split",
]

_HOMES = {
    "Algorithm": "fedrift.core.algorithm",
    "Callback": "fedrift.engine.callbacks",
    "Comparison": "fedrift.comparison",
    "Experts": "fedrift.merging.experts",
    "InputError": "fedrift.errors",
    "Local": "fedrift.core.local",
    "Merged": "fedrift.merging",
    "Plan": "fedrift.engine.callbacks",
    "Result": "fedrift.engine.result",
    "RoundReport": "fedrift.engine.callbacks",
    "RunError": "fedrift.errors",
    "SavedComparison": "fedrift.report.saved",
    "SavedRun": "fedrift.report.saved",
    "Split": "fedrift.data.split",
    "compare": "fedrift.api",
    "experts": "fedrift.merging.experts",
    "load": "fedrift.report.saved",
    "merge": "fedrift.merging",
    "run": "fedrift.api",
    "split": "fedrift.data.arrays",
}
_PACKAGES = ("conform", "report")  # fr.conform.check(MyAlgorithm); fr.report(…) can be called


def __getattr__(name: str) -> Any:
    # torch takes a second to import, and `fedrift --help` does not need it
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    if name in _PACKAGES:
        return import_module(f"fedrift.{name}")
    raise AttributeError(f"module 'fedrift' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*__all__, *_PACKAGES})
