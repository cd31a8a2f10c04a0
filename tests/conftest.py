"""What all tests share: one torch thread, no terminal, and the folder with the big data files."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.support.programs import served

# Before fedrift is imported, here and in workers: every visit and evaluation looks at its tensors.
os.environ.setdefault("FEDRIFT_CHECK_LAYOUT", "1")

# Where bytecode is not written, every worker and every program that a test starts compiles all
# modules and rewrites all assertions again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A busy machine must not fail a test: no deadline, no complaint about slow drawing.
settings.register_profile("fedrift", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("fedrift")

# A shell that runs the tests in the background has them ignore Ctrl-C, and all they start as well.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(autouse=True)
def single_thread() -> None:
    """One thread gives the same bits everywhere. Tests without torch do not pay for its import."""
    if torch := sys.modules.get("torch"):
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Text is as wide as it is in a pipe, whatever the terminal or pytest-xdist has set."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture(scope="session")
def data_folder() -> Path:
    """The folder with the MNIST and CIFAR files; tests that need it are skipped without it."""
    given = os.environ.get("FEDRIFT_DATA")
    folder = Path(given) if given else ROOT.parent / "shared" / "data"
    if not folder.is_dir():
        where = f"FEDRIFT_DATA={given} is not a folder" if given else "FEDRIFT_DATA is not set"
        pytest.skip(f"needs the MNIST and CIFAR files: {where}")
    return folder


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with `fedrift` and `python`, which start at once."""
    with served(tmp_path_factory.mktemp("programs")) as folder:
        yield folder


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """One more than there are processors: a quarter of the time, a test waits for something."""
    return min(8, (os.cpu_count() or 1) + 1)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which planted mistakes were caught, and by what."""
    caught = [
        str(value)
        for report in terminalreporter.getreports("passed")
        for name, value in getattr(report, "user_properties", ())
        if name == "mutant"
    ]
    if caught:
        terminalreporter.section(f"{len(caught)} mutants killed")
        for line in caught:
            terminalreporter.write_line(line)
