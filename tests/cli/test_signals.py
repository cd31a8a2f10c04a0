"""The program ended from outside: it says how to go on, without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fedrift.engine import interrupts
from fedrift.errors import INTERRUPTED


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without telling it")
def test_sigterm_ends_as_ctrl_c_does(tmp_path: Path) -> None:
    words = "run fedavg --rounds 100000 --clients 3 --model logistic --workers 0 --out kept"
    with subprocess.Popen(
        [sys.executable, "-m", "fedrift", *words.split()],
        cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 2/"):
                break
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(60) == 130
    assert "interrupted after round" in said and "fedrift resume kept" in said
    assert "Traceback" not in said


@pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="looks for children in /proc, which only Linux has"
)
def test_ctrl_c_reaches_the_processes_of_conform_through_their_parent() -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "fedrift", "conform", "fedavg", "fedsgd", "fedprox", "mime"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not (found := children.read_text().split()):
            assert process.poll() is None
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGINT)  # as from a terminal; they still import
        assert (process.wait(60), *process.communicate()) == (130, "", "")
    until = time.monotonic() + 30
    while any(Path(f"/proc/{pid}").exists() for pid in found):
        assert time.monotonic() < until
        time.sleep(0.01)


def test_the_processes_of_conform_end_with_their_parent() -> None:
    nothing_said = ("", "")  # of the model and of the adapter
    command = [sys.executable, "-m", "fedrift.conform.survey", *nothing_said, "fedavg", "fedsgd"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        out, errors = process.communicate()  # which closes its input
        assert (process.returncode, out, errors) == (130, "", "")


# The signal comes while a module is imported, which one is said; nothing of it is left to chance.

PROGRAM = """
import signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            sys.meta_path.remove(self)
            signal.raise_signal(signal.{signal})
sys.meta_path.insert(0, Interrupts())
sys.argv = "fedrift run fedavg --rounds 99999 --clients 2 --model logistic --workers 0".split()
from fedrift.__main__ import main
main()
"""
MODULES = (
    "fedrift._moved",  # the package itself
    "typer",  # the command line
    "fedrift.data.datasets",
    "numpy._core.multiarray",
    "torch",  # a command has begun
    "torch._C",
    "fedrift.core.site",
)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without telling it")
@pytest.mark.parametrize("module", MODULES)
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_no_import_is_too_early(name: str, module: str, tmp_path: Path) -> None:
    text = PROGRAM.format(module=module, signal=name)
    done = subprocess.run(
        [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr and "Error" not in done.stderr
    last = done.stderr.strip().rpartition("\n")[2]  # on a fast machine some rounds may be made
    assert not last or "interrupted" in last


TWICE = """
import os, signal, sys, threading, time
from fedrift.engine import interrupts
interrupts.listen()
interrupts.work_begins()
class Stuck:
    def find_spec(self, name, path=None, target=None):
        if name == "stuck":
            signal.raise_signal(signal.SIGINT)
            {second}
            while True:
                pass
sys.meta_path.insert(0, Stuck())
import stuck
"""


SECONDS = {
    "while the first waits": "threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()",
    "in the instant of its reminder": """
            both = {signal.SIGINT, interrupts.REMINDER}
            signal.pthread_sigmask(signal.SIG_BLOCK, both)
            time.sleep(0.3)
            signal.pthread_kill(threading.get_ident(), signal.SIGINT)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, both)""",
}


@pytest.mark.skipif(sys.platform == "win32", reason="no signals to send")
@pytest.mark.parametrize("when", SECONDS)
def test_a_second_one_does_not_wait(when: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TWICE.format(second=SECONDS[when])],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize(
    ("argv", "words", "is_program"),
    [
        (["/usr/bin/fedrift", "run"], ["python", "/usr/bin/fedrift", "run"], True),
        (["-m", "run"], ["python", "-m", "fedrift", "run"], True),
        (["-m"], ["python", "-Wi", "-mfedrift"], True),
        (["-m", "run"], ["python", "-Bm", "fedrift", "run"], True),
        (["-m"], ["python", "-Bmfedrift"], True),
        (["-m"], ["python", "-Bm", "mine"], False),
        (["-m", "fedrift"], ["python", "-m", "mine", "fedrift"], False),
        (["-m", "-m", "fedrift"], ["python", "-m", "mine", "-m", "fedrift"], False),
        (["mine.py"], ["python", "mine.py"], False),
        ([""], ["python"], False),
    ],
)
def test_only_the_program_listens(
    argv: list[str], words: list[str], is_program: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", argv)
    monkeypatch.setattr(sys, "orig_argv", words)
    assert interrupts.is_program() is is_program
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


LAST = """
import os, signal, sys, types
class Late(types.ModuleType):
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.{signal}, tell=os.write):
        tell(1, b"late")
        kill(pid, number)
sys.argv = "fedrift list no-such-kind".split()
sys.modules["late"] = Late("late")
from fedrift.__main__ import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without telling it")
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_no_moment_is_too_late(name: str) -> None:
    """While Python takes itself apart it has given up its handlers: what was to be said is said."""
    done = subprocess.run(
        [sys.executable, "-c", LAST.format(signal=name)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (2, "late"), done


LEAVING = """
import ctypes, functools, sys
from fedrift import cli
class Late:
    __del__ = staticmethod(functools.partial(ctypes.PyDLL(None)["raise"], {number}))
def code_of(arguments):
    late = Late()  # goes when this returns; Python hears of the signal at its next function
    return 2
cli.code_of = code_of
from fedrift.__main__ import main
main()
"""


@pytest.mark.skipif(sys.platform == "win32", reason="Windows ends a process without telling it")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_that_comes_when_all_is_done_is_passed_over(number: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEAVING.format(number=int(number))],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (2, "")


FIRST = """
import _signal, sys
class Tells:
    def find_spec(self, name, path=None, target=None):
        if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
            print(name)
sys.meta_path.insert(0, Tells())
sys.argv = ["fedrift"]
import fedrift
"""


def test_nothing_is_imported_before_it_listens() -> None:
    said = subprocess.check_output([sys.executable, "-c", FIRST], text=True).split()
    slow = [name for name in said if name not in (*sys.builtin_module_names, "__future__")]
    assert slow == ["fedrift", "fedrift.engine", "fedrift.engine.interrupts"]
    assert interrupts.ENDED == INTERRUPTED


def test_ctrl_c_in_a_finalizer_is_not_lost() -> None:
    text = """
import signal, time
from fedrift.engine import interrupts
interrupts.listen()
interrupts.work_begins()
class Late:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
try:
    Late()
    time.sleep(60)
except KeyboardInterrupt:
    print("heard")
"""
    done = subprocess.run(
        [sys.executable, "-c", text], capture_output=True, text=True, check=False, timeout=60
    )
    assert (done.stdout, done.stderr) == ("heard\n", "")
