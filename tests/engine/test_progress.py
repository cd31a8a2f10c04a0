"""What Python shows while runs go on, by where it runs and what is asked for."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import fedrift as fr
from fedrift.engine import progress
from fedrift.errors import InputError
from tests.support.problems import Net, blobs, uneven_clients

TASK: dict[str, Any] = {
    "model": Net,
    "clients": uneven_clients(),
    "test": blobs(50, seed=5),
    "rounds": 4,
    "lr": 0.1,
    "workers": 0,
}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def pages(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A notebook, as far as it can be seen from here: what it was shown, the newest last."""
    shown: list[str] = []

    def display(content: Any, display_id: bool) -> Any:
        shown.append(content)
        return SimpleNamespace(update=shown.append)

    package, inside = ModuleType("IPython"), ModuleType("IPython.display")
    package.__dict__["get_ipython"] = lambda: SimpleNamespace(kernel=object())
    inside.__dict__.update(HTML=str, display=display)
    monkeypatch.setitem(sys.modules, "IPython", package)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    return shown


def test_a_pipe_gets_nothing_unless_it_asks(capsys: pytest.CaptureFixture[str]) -> None:
    fr.run("fedavg", **TASK)
    assert capsys.readouterr() == ("", "")
    fr.run("fedavg", **TASK, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in lines] == [["round", f"{t}/4"] for t in (1, 2, 3, 4)]
    assert "accuracy 0." in lines[0]


def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SHORTEST", 0.0)
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    fr.run("fedavg", **TASK)
    assert "4/4" in screen.getvalue()
    monkeypatch.setattr(sys, "stderr", silent := Terminal())
    fr.run("fedavg", **TASK, progress=False)
    assert not silent.getvalue()


def test_a_run_that_stops_early_does_not_claim_all_its_rounds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(progress, "SHORTEST", 0.0)
    monkeypatch.setattr(sys, "stderr", screen := Terminal())
    fr.run("fedavg", **TASK, on_round=lambda report: report.round == 2)
    assert "2/2" in screen.getvalue() and "4/4" not in screen.getvalue()


def test_a_notebook_gets_a_growing_curve(pages: list[str], monkeypatch: Any) -> None:
    monkeypatch.setattr(progress, "PAUSE", 0.0)
    fr.run("fedavg", **TASK)
    points = [page.count(",") for page in pages if "<polyline" in page]
    assert len(points) >= 3 and points == sorted(points) and points[0] < points[-1]
    assert "<progress" in pages[0] and "<progress" not in pages[-1]
    assert "4 rounds" in pages[-1] and "left" not in pages[-1]


def test_names_in_a_notebook_stay_names(pages: list[str]) -> None:
    fr.compare({"<b>first</b>": "fedavg", "second": "scaffold"}, **TASK)
    assert "&lt;b&gt;first" in pages[-1] and "<b>first" not in pages[-1]
    assert "8 rounds of 2 runs" in pages[-1] and pages[-1].count("<polyline") == 2


def test_methods_have_their_colours_in_the_order_asked_for() -> None:
    board = progress.Board(total=8, runs=2, labels=["first", "second"])
    report: Any = SimpleNamespace(round=1, metrics={"accuracy": 0.5})
    for label in ("second", "first"):
        board.told((label, 0), report)
    shown = progress.page(board)
    assert shown.index(">&#9644;</span> first") < shown.index(">&#9644;</span> second")


def test_a_comparison_in_a_pipe_has_a_line_per_run(capsys: pytest.CaptureFixture[str]) -> None:
    fr.compare(["fedavg", "scaffold"], seeds=2, **TASK, progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(",")[0] for line in lines] == [f"{n} of 4 runs" for n in (1, 2, 3, 4)]
    fr.compare(["fedavg"], **TASK)
    assert capsys.readouterr() == ("", "")


def test_the_bar_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = fr.run("fedavg", **TASK, progress=False)
    monkeypatch.setattr(sys, "stderr", Terminal())
    assert fr.run("fedavg", **TASK, progress=True).fingerprint == silent.fingerprint


def test_other_values_are_refused() -> None:
    with pytest.raises(InputError, match="progress='often' must be True, False or 'auto'"):
        fr.run("fedavg", **TASK, progress="often")


def test_what_was_read_takes_no_time_into_the_estimate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress.time, "perf_counter", lambda: 0.0)
    board = progress.Board(total=20, runs=2)
    board.ended(("a", 0), 10)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: 6.0)
    board.started(("b", 0), 0)
    report: Any = SimpleNamespace(round=2, metrics={"loss": 0.5})
    board.told(("b", 0), report)
    assert board.left == pytest.approx(24.0)  # 2 of its 10 rounds took 6 s
