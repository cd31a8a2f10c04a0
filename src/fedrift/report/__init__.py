"""Reports of finished runs: a page, tables and figures, from run folders or runs in memory.

`write` and what belongs to it are fetched when they are first used: whoever only wants a number as
text, or a run read back, does not wait for pages and tables.
"""

from __future__ import annotations

import sys
from importlib import import_module
from inspect import Signature, signature
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedrift.report.writing import FIGURES, FORMATS, Reportable, Source, Written, write

__all__ = ["FIGURES", "FORMATS", "Reportable", "Source", "Written", "write"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'fedrift.report' has no attribute '{name}'")
    return getattr(import_module("fedrift.report.writing"), name)


class _CallableModule(ModuleType):
    """`fedrift.report(…)` is `fedrift.report.write(…)`, whoever imported the package before."""

    @property
    def __call__(self) -> Any:
        return __getattr__("write")

    @property
    def __signature__(self) -> Signature:
        return signature(__getattr__("write"))


sys.modules[__name__].__class__ = _CallableModule
