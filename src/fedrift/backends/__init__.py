"""Where visits run. Nothing here imports torch: the command line starts workers before it does."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import signal
import sys
import threading
import types
from collections.abc import Generator
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.context import BaseContext

_lock = threading.Lock()


@contextmanager
def hidden_main() -> Generator[None]:
    """While a worker starts it must not find the user's script, or it would run it again.

    Nor may Ctrl-C reach it while it imports torch: that is the parent's to handle.
    """
    with _lock:
        resource_tracker.ensure_running()  # first: it would unblock the signal
        main = sys.modules["__main__"]
        sys.modules["__main__"] = types.ModuleType("__main__")
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            yield
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, before)


def start_method() -> str:
    """`forkserver` where there is one: torch is imported once for all workers."""
    chosen = os.environ.get("FEDRIFT_START", "")
    known = [m for m in multiprocessing.get_all_start_methods() if m != "fork"]
    return chosen if chosen in known else ("forkserver" if "forkserver" in known else "spawn")


def context(method: str | None = None) -> BaseContext:
    """The multiprocessing context of the workers."""
    chosen = multiprocessing.get_context(method or start_method())
    if method in (None, "forkserver") and start_method() == "forkserver":
        chosen.set_forkserver_preload(["fedrift.backends.fork_server"])
    return chosen


@contextmanager
def importing() -> Generator[None]:
    """While torch is imported nothing becomes garbage; looking for some takes a tenth of the time.

    What was imported is not looked at later on either, and memory is kept: for processes of our
    own only.
    """
    if "torch" in sys.modules or not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
        keep_freed_memory()


TRIM, MAP = -1, -3  # what glibc calls M_TRIM_THRESHOLD and M_MMAP_THRESHOLD
FREE = 1 << 24  # bytes that stay with the process
MAPPED = 1 << 25  # from so many on an array is given back alone; glibc allows no more


def keep_freed_memory() -> None:
    """What a step frees, the next one needs: giving pages back and fetching them again took a tenth
    of an evaluation. Where the library of C is another, nothing changes."""
    with suppress(AttributeError, OSError, TypeError):
        library = ctypes.CDLL(None)
        library.mallopt(TRIM, FREE)
        library.mallopt(MAP, MAPPED)


def give_back_freed_memory() -> None:
    """What was needed once and lies between blocks in use goes back to the machine."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)


def prestart() -> None:
    """Begin to import torch in the fork server while the caller is still busy elsewhere."""
    if start_method() == "forkserver":
        from multiprocessing.forkserver import ensure_running

        context()
        with hidden_main():
            ensure_running()


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
