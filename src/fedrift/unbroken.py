"""Steps that belong together: Ctrl-C waits until they are done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any


@contextmanager
def unbroken() -> Generator[None]:
    """Hold back SIGINT, and SIGTERM where it does the same: what is half recorded could not be
    continued exactly.

    Only the main thread is ever interrupted; elsewhere, and under a handler that is not
    Python's, nothing is changed.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        yield
        return
    both = [s for s in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(s) == usual]
    held: list[Any] = []
    for one in both:
        signal.signal(one, lambda *details: held.append(details))
    try:
        yield
    finally:
        for one in both:
            signal.signal(one, usual)
        if held:
            usual(*held[-1])
