"""Ctrl-C and SIGTERM, heard alike from the first line of the program `fedrift` to its last.

Python raises KeyboardInterrupt wherever it is. That is right while a command works, and wrong while
modules are imported: libraries half imported answer with other errors, with crashes, or with none.
So a signal ends the program at once as long as nothing has begun, waits for the end of an import
later on, and is no matter when all is done. A second one does not wait.

Only the program listens; `import fedrift` in somebody's own changes nothing. Nothing is imported
here that Python has not loaded when it begins, or is a part of it, because nobody listens until it
is: `_signal` is `signal` without its enumerations.
"""

from __future__ import annotations

import _thread
import atexit
import os
import sys
import time

TYPE_CHECKING = False  # `typing` takes long to import
if TYPE_CHECKING:
    import signal
    from collections.abc import Callable
    from types import FrameType
else:
    import _signal as signal

ENDED = 128 + signal.SIGINT  # what shells say of a program that Ctrl-C has ended
BEGAN = time.perf_counter()
"""The first line of the program."""
PATIENCE = 0.05  # seconds between two looks at whether an import is over
REMINDER: int = getattr(signal, "SIGURG", None) or vars(signal)["SIGBREAK"]
"""What a signal that waits is repeated by: another one, since two of a kind that come in the same
instant are one. Whoever does not listen to it ignores it."""
STARTING, WORKING, ENDING = range(3)


class Listener:
    """The handler of both signals."""

    def __init__(self) -> None:
        self.stage = STARTING
        self._thread = _thread.get_ident()
        self._waits = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        if self.stage == STARTING or self._waits:
            os._exit(ENDED)
        self.remind(number, frame)

    def remind(self, number: int, frame: FrameType | None) -> None:
        """The handler of the reminder: is it over, what was waited for?"""
        self._waits = self.stage == ENDING or is_importing(frame)
        if not self._waits:
            raise KeyboardInterrupt
        if self.stage == WORKING:
            self.repeat()

    def repeat(self) -> None:
        """Reminds a little later."""
        self._waits = True
        _thread.start_new_thread(self._send, ())

    def _send(self) -> None:
        time.sleep(PATIENCE)
        if hasattr(signal, "pthread_kill"):
            signal.pthread_kill(self._thread, REMINDER)
        else:
            signal.raise_signal(REMINDER)

    def unraisable(self, details: sys.UnraisableHookArgs) -> None:
        """Ctrl-C where Python raises nothing, as in a finalizer: neither lost nor printed."""
        if issubclass(details.exc_type, KeyboardInterrupt):
            self.repeat()
        else:
            sys.__unraisablehook__(details)


def is_importing(frame: FrameType | None) -> bool:
    """Whether a module is being imported, or made by `exec` of a text: out of that, Python ends
    with a signal of its own whatever is done about the exception."""
    while frame is not None and frame.f_back is not None:
        code = frame.f_code
        if code.co_filename.startswith("<frozen importlib"):
            return True
        if code.co_filename == "<string>" and code.co_name == "<module>":
            return True
        frame = frame.f_back
    return False


_listener: list[Listener] = []


def is_program() -> bool:
    """Whether this process is the program: `fedrift`, or `python -m fedrift`, whose arguments
    begin with `-m` until it is found."""
    first = sys.argv[0] if sys.argv else ""
    if first == "-m":
        # The last word before its own arguments: the name, or options that end with it.
        name = "".join(sys.orig_argv[-len(sys.argv) :][:1])
        return name == "fedrift" or (name.startswith("-") and name.endswith("mfedrift"))
    return os.path.basename(first) in ("fedrift", "fedrift.exe")


def listen() -> None:
    """From now on; a signal that is ignored, as in the background of a shell, stays so."""
    if _listener:
        return
    _listener.append(Listener())
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) in (signal.SIG_DFL, signal.default_int_handler):
            signal.signal(number, _listener[0])
    signal.signal(REMINDER, _listener[0].remind)
    atexit.register(_pass_over)  # registered first, so called last


def _pass_over() -> None:
    """Python gives up its handlers before it has taken itself apart: from then on a signal would
    end the program as if its work had not been done."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) in _listener:
            signal.signal(number, signal.SIG_IGN)


def work_begins() -> None:
    """Signals are exceptions from now on."""
    for listener in _listener:
        listener.stage = WORKING
        sys.unraisablehook = listener.unraisable


def working(work: Callable[[None], int]) -> int:
    """Does the work of the program; its exit code. Afterwards nothing is left to interrupt.

    Python looks for signals where functions begin, where loops begin again and where functions of C
    return. What is thrown away when the work returns takes a while, and one that comes meanwhile is
    heard at the next such place: none may stand between that return and the last stage.
    """
    listener, code = _listener[0], ENDED
    try:
        work_begins()
        code = work(None)
    except KeyboardInterrupt:  # while the last one was being answered
        pass
    finally:
        listener.stage = ENDING
    return code


def listen_if_program() -> None:
    """What importing the package does first."""
    if is_program():
        listen()
