"""What the command line prints: losses of any size, and lists of everything that has a name."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from fedrift.cli import code_of
from fedrift.cli.console import console, fitting, loss_text, one_line
from fedrift.cli.listing import KINDS
from fedrift.errors import decimals
from fedrift.storage.jsonl import dump, load


@pytest.mark.parametrize(
    ("loss", "text"), [(0.5, "0.5000"), (0.0, "0.0000"), (1.5e9, "1.500e+09"), (2e-7, "2.000e-07")]
)
def test_losses_of_any_size(loss: float, text: str) -> None:
    assert loss_text(loss) == text


@pytest.mark.parametrize(
    ("values", "usual", "digits"),
    [
        ([0.5, 0.001], 2, 2),
        ([0.1], 2, 2),
        ([0.0018, -0.0005], 2, 4),
        ([1e-30], 2, 15),
        ([0.0, 0.0], 4, 4),
        ([float("nan"), -0.0123], 2, 3),
        ([0.0123], 4, 4),
        ([], 3, 3),
    ],
)
def test_small_numbers_get_more_digits(values: list[float], usual: int, digits: int) -> None:
    assert decimals(values, usual) == digits


@pytest.mark.parametrize("columns", [40, 80, 120, 400])
def test_no_number_of_a_table_is_cut_off(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from rich.table import Table

    monkeypatch.setenv("COLUMNS", str(columns))
    table = Table("method", *(f"what is measured {i}" for i in range(9)), title="of all")
    rows = {
        name: [f"{name[-1]}{i}.25 (−100.00 to +100.00)" for i in range(9)] for name in ("a1", "b2")
    }
    for name, cells in rows.items():
        table.add_row(name, *cells)
    parts = fitting(table, console())
    for part in parts:
        console().print(part)
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= columns
    assert all(cell in shown for cells in rows.values() for cell in cells)
    assert shown.count("of all") == 1 and "…" not in shown
    assert len(parts) == {40: 9, 80: 5, 120: 3, 400: 1}[columns]
    assert shown.count("b2 ") == len(parts)  # each says whose its rows are


@pytest.mark.parametrize("kind", KINDS)
def test_everything_can_be_listed(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["list", kind]) == 0
    short = capsys.readouterr().out
    assert code_of(["list", kind, "--verbose"]) == 0
    assert len(capsys.readouterr().out) > 50 < len(short)


ESCAPES = "\x1b[31mred\x1b[0m\x9b5m\x07\u202eback\x7f"


def is_clean(text: str) -> bool:
    return text.replace("\n", "").isprintable()


def test_text_of_strangers_moves_no_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table("a", title=ESCAPES)
    table.add_row(ESCAPES)
    for shown in (ESCAPES, Text(ESCAPES), table):
        console().print(shown)
        said = capsys.readouterr().out
        assert is_clean(said) and "red" in said and "\\x1b" in said
    assert is_clean(one_line(f"{ESCAPES}\n"))
    assert is_clean(dump({ESCAPES: ESCAPES}, indent=1)) and load(dump([ESCAPES])) == [ESCAPES]


def test_nor_does_what_a_folder_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / f"{ESCAPES}run"
    words = "run fedavg --data digits --model logistic --rounds 2 --workers 0 -q --out".split()
    assert code_of([*words, str(run)]) == 0
    path = run / "summary.json"
    strange = {"status": "done", "fingerprint": ESCAPES, "instructions": ESCAPES}
    path.write_text(json.dumps({**json.loads(path.read_text()), **strange}))
    page = ["-o", str(tmp_path / "page.html")]
    for command in (["resume"], ["resume", "--json"], ["verify"], ["report", *page]):
        assert code_of([*command, str(run)]) in (0, 1)
    assert code_of(["report", str(run), "--json", *page]) == 0
    out, err = capsys.readouterr()
    assert is_clean(out) and is_clean(err) and "red" in out and "red" in err


def test_a_reader_that_goes_away_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as gone:
        monkeypatch.setattr("sys.stdout", gone)
        assert code_of(["list", "algorithms", "--verbose"]) == 0
