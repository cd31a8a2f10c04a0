"""One command in a process of its own, and what it left behind.

The process is forked from one that has imported everything and never trained, so that a case takes
as long as its work. Linux only.
"""

from __future__ import annotations

import os
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.stress.portions import ROOT
from tests.support.programs import import_all

HANG = 30.0  # seconds
ENDS = 25.0  # seconds that a command may take to end after Ctrl-C
LARGEST = 256 << 20  # bytes of a file that a command writes
KEPT_APART = ("HOME", "TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR", "HF_HOME")
"""What a program may write to without being told; here these are folders of the trial."""
FREE = ("/dev/null", "/dev/shm", "/dev/tty", "/proc/self", "/memfd")
PWNED = "PWNED"
EVIL = f'from pathlib import Path\n(Path(__file__).parent / "{PWNED}").write_text("x")\n'
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # but tab and new line
Changes = dict[str, tuple[int, int, bytes]]

# The instruction set too, which a process has that is forked, and what it starts would not have.
KEPT = (
    *("PATH", "LANG"),
    *("ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR"),
)


@dataclass(frozen=True)
class Ended:
    """How a command came to its end."""

    code: int | None
    """None: it did not end; negative: by that signal."""
    out: str = ""
    errors: str = ""
    outside: tuple[str, ...] = ()
    """What was written or made outside of the place, as `call path`."""

    @property
    def is_traceback(self) -> bool:
        """Also told in one line, with the hint how to see it."""
        said = self.out + self.errors
        return "Traceback (most recent call last)" in said or "FEDRIFT_DEBUG" in said


class Place:
    """A folder for one trial: `work`, where commands run, and beside it what is not theirs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.work, self.beside, self.own = root / "work", root / "beside", root / "own"
        for folder in (self.work, self.beside, self.own):
            folder.mkdir(parents=True)
        (self.beside / "victim").write_text("untouched\n")
        (self.beside / "folder").mkdir()
        (self.work / "evil.py").write_text(EVIL)
        self._beside = seen(self.beside)

    def settle(self) -> None:
        """What is beside is from now on as it must stay."""
        self._beside = seen(self.beside)

    def environment(self) -> dict[str, str]:
        found = {name: os.environ[name] for name in KEPT if name in os.environ}
        found |= dict.fromkeys(KEPT_APART, str(self.own)) | {"OMP_NUM_THREADS": "1"}
        found["PYTHONDONTWRITEBYTECODE"] = "1"
        return found | {"PYTHONPATH": str(ROOT / "src"), "FEDRIFT_DATA": str(self.own)}

    def trespass(self) -> list[str]:
        """What has changed beside the folder of work, and whether a stranger's code has run."""
        found = [f"'{name}' was changed" for name in differing(self._beside, seen(self.beside))]
        return found + [f"{path} was run" for path in self.work.rglob(PWNED)]

    def remove(self) -> None:
        for path in (self.root, *self.root.rglob("*")):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
        shutil.rmtree(self.root, ignore_errors=True)


def seen(folder: Path) -> Changes:
    """Every file below a folder: kind, size and content of small ones."""
    found: Changes = {}
    for path in sorted(folder.rglob("*")):
        there = path.lstat()
        is_small = path.is_file() and not path.is_symlink() and there.st_size < 1 << 20
        content = path.read_bytes() if is_small else str(there.st_mtime_ns).encode()
        is_folder = path.is_dir() and not path.is_symlink()
        found[str(path.relative_to(folder))] = (
            there.st_mode,
            0 if is_folder else there.st_size,
            b"" if is_folder else content,
        )
    return found


def differing(before: Changes, after: Changes) -> list[str]:
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


# What a process writes, by the events that Python tells of.

WRITERS = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
    "shutil.rmtree": (0,),
    "shutil.move": (0, 1),
    "tempfile.mkstemp": (0,),
    "tempfile.mkdtemp": (0,),
}
"""Events of making and changing files, and which of their arguments are paths."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def watch_writes(root: Path, tell: Callable[[str], None]) -> None:
    """From now on tells of everything that this process writes outside a folder."""

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = arguments
            if not (isinstance(flags, int) and flags & WRITING):
                return
            paths = [path]
        elif event in WRITERS:
            paths = [arguments[i] for i in WRITERS[event]]
        else:
            return
        for path in paths:
            if isinstance(path, (str, bytes, os.PathLike)):
                # The parent's: a link is changed in its own place, not where it leads to.
                text = os.fsdecode(path)
                held = os.path.realpath(os.path.dirname(os.path.abspath(text)))
                whole = os.path.join(held, os.path.basename(text))
                if not (whole + "/").startswith((f"{root}/", *FREE)):
                    tell(f"{event} {whole}")

    sys.addaudithook(hook)


def prepare() -> None:
    """Import what commands import, so that forked processes need not."""
    import torch

    torch.set_num_threads(1)
    import_all("sklearn.datasets")


class Told(NamedTuple):
    """Files with what a process says, and what it writes elsewhere."""

    out: Path
    errors: Path
    outside: Path

    @classmethod
    def of(cls, place: Place) -> Told:
        number = len(list(place.own.iterdir()))
        told = cls(*(place.own / f"{number}.{name}" for name in cls._fields))
        for file in told:
            file.touch()
        return told


@dataclass
class Started:
    """A process that does something in a place."""

    place: Place
    pid: int
    told: Told
    since: float = field(default_factory=time.monotonic)
    code: int | None = None

    def ended(self, within: float = HANG) -> Ended:
        """How it ended; who does not is killed, with all that belongs to it."""
        until = time.monotonic() + within
        pause = 0.002
        while not self.poll() and time.monotonic() < until:
            time.sleep(pause)
            pause = min(0.05, pause * 1.5)
        if self.code is None:
            self.strike(signal.SIGKILL, self.family())
            os.waitpid(self.pid, 0)
        out, errors, outside = (file.read_text(errors="replace") for file in self.told)
        return Ended(self.code, out, errors, tuple(sorted(set(outside.splitlines()))))

    def poll(self) -> bool:
        """Whether it has ended."""
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def family(self) -> list[int]:
        """Its living processes: all of its session."""
        found: list[int] = []
        for entry in os.listdir("/proc"):
            with suppress(OSError, IndexError, ValueError):
                if entry.isdigit():
                    held = Path(f"/proc/{entry}/stat").read_text().rpartition(")")[2].split()
                    if int(held[3]) == self.pid and held[0] != "Z":
                        found.append(int(entry))
        return found

    def strike(self, number: int, pids: Sequence[int]) -> None:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def started(place: Place, act: Callable[[], int]) -> Started:
    """Fork a process that does something in a place; what it returns is its exit code."""
    told = Told.of(place)
    sys.stdout.flush()
    sys.stderr.flush()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _child(place, act, told, writing)
    os.close(writing)
    os.read(reading, 1)  # what comes before is ours
    os.close(reading)
    return Started(place, pid, told)


def _child(place: Place, act: Callable[[], int], told: Told, begun: int) -> None:
    code = 70
    try:
        os.setsid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        handles = [os.open(os.devnull, os.O_RDONLY), *(os.open(f, os.O_WRONLY) for f in told)]
        for target, handle in enumerate(handles[:3]):
            os.dup2(handle, target)
        sys.stdout, sys.stderr = (
            os.fdopen(n, "w", encoding="utf-8", errors="surrogateescape", closefd=False)
            for n in (1, 2)
        )
        resource.setrlimit(resource.RLIMIT_FSIZE, (LARGEST, LARGEST))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(place.work)
        kept = place.environment()  # of what is there now
        os.environ.clear()
        os.environ.update(kept)
        tempfile.tempdir, sys.dont_write_bytecode = None, True
        watch_writes(place.root, lambda text: void(os.write(handles[3], f"{text}\n".encode())))
        os.write(begun, b"x")
        os.close(begun)
        code = act()
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        with suppress(BaseException):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code & 0xFF)


def void(_: object) -> None:
    pass


def command(words: Sequence[str]) -> Callable[[], int]:
    """A command line of fedrift, as the program does it."""

    def act() -> int:
        from fedrift.__main__ import main

        sys.argv = ["fedrift", *words]
        main()

    return act


def real(place: Place, words: Sequence[str]) -> Started:
    """The same as a process that begins with nothing imported."""
    told = Told.of(place)
    with told.out.open("wb") as out, told.errors.open("wb") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedrift", *words],
            cwd=place.work,
            env=place.environment(),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
    process.returncode = 0  # it is waited for by its number, not by this object
    return Started(place, process.pid, told)


def written(words: Sequence[str]) -> str:
    """A command line to copy."""
    return f"fedrift {shlex.join(words)}"


def flaws(ended: Ended) -> list[str]:
    """What no command may do, whatever it was asked."""
    if ended.code is None:
        return [f"hang: no end after {HANG:g} s"]
    last = (ended.errors.strip() or ended.out.strip()).splitlines()[-1:]
    told = last[0][:200] if last else ""
    found = [f"traceback: {told}"] if ended.is_traceback else []
    if ended.code not in (0, 1, 2, 130) and not ended.is_traceback:
        found.append(f"exit code {ended.code}: {told}")
    if ended.code == 2 and not re.search(r"^error: ", ended.errors, re.M) and ended.errors:
        found.append(f"refused without a sentence: {told}")
    if CONTROL.search(ended.out + ended.errors):
        found.append(f"control characters are printed: {told!r}")
    return found + [f"written outside: {one}" for one in ended.outside]
