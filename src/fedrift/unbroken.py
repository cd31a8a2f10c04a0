"""Steps that belong together: Ctrl-C waits until they are done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unbroken() -> Generator[None]:
    """Hold back SIGINT in the block: what is half recorded could not be continued exactly.

    Only the main thread is ever interrupted; elsewhere, and under a handler that is not
    Python's, nothing is changed.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    held: list[Any] = []
    signal.signal(signal.SIGINT, lambda *details: held.append(details))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if held:
            usual(*held[-1])
