"""`fedrift explain` on the command line: the page it writes, one sentence for a mistake."""

from __future__ import annotations

from pathlib import Path

import pytest

from fedrift.cli import code_of


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["fedavgg"], "fedavg"),
        (["fedprox:nu=1"], "mu"),
        (["fedavg", "--steps", "x"], "steps"),
        (["fedavg", "--steps", "1,2,3"], "steps"),
        (["fedavg", "--steps", "0"], "steps"),
        (["fedavg", "--rounds", "0"], "rounds"),
        (["fedavg", "--lr", "-1"], "lr"),
        (["fedavg", "--terrain", "hills"], "bowls"),
        (["fedavg", "-o", "x.gif"], "ending"),
        (["fed3r"], "closed form"),
    ],
)
def test_wrong_input_is_one_sentence(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    given = arguments if "-o" in arguments else [*arguments, "-o", str(tmp_path / "x.html")]
    assert code_of(["explain", *given]) == 2
    error = capsys.readouterr().err
    assert said.replace("ending", "end in") in error and error.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_the_command_writes_the_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "page.html"
    assert code_of(["explain", "fedavg", "--rounds", "2", "--steps", "3,5", "-o", str(path)]) == 0
    assert "common minimum" in capsys.readouterr().out
    assert "--steps 3,5" in path.read_text(encoding="utf-8")
