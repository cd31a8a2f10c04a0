"""Time in figures, tables and reports: the clock's seconds, and who counts how often."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedrift.cli import code_of
from fedrift.report.statistics.measured import measure_run
from fedrift.report.timeline import pace_of
from tests.support.problems import small_run


def rows(lengths: dict[int, float], late: set[int], rounds: int) -> list[dict[str, object]]:
    return [
        {
            "round": t + 1,
            "trips": [[c, 10.0 * t, 0.0, s, 0.0, 10.0 * t + s] for c, s in lengths.items()],
            "dropped": sorted(late),
        }
        for t in range(rounds)
    ]


def test_thirds_of_the_clients_by_speed() -> None:
    lengths = {c: float(c + 1) for c in range(6)}
    pace = pace_of(rows(lengths, {4, 5}, 3), [1, 1, 2, 2, 3, 3])
    assert pace.clients == 6 and pace.seconds == (1.5, 3.5, 5.5)
    assert pace.replies == (0.5, 0.5, 0.0)
    assert pace.samples == (2 / 12, 4 / 12, 6 / 12)
    assert pace_of(rows(lengths, set(), 3)).replies == pytest.approx((1 / 3, 1 / 3, 1 / 3))


def test_the_seconds_of_a_report_are_the_clocks(tmp_path: Path) -> None:
    clocked, plain = small_run("fedavg", devices="lognormal"), small_run("fedavg")
    mine, other = (measure_run(r.record(), "a") for r in (clocked, plain))
    assert mine.has_clock and mine.seconds.tolist() == [row["time"] for row in clocked.metrics]
    assert not other.has_clock and other.seconds[-1] == plain.metrics[-1]["seconds"]
    assert "time" not in mine.logged, "an axis, and no metric"


def test_the_command_says_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, picture = tmp_path / "run", tmp_path / "gantt.svg"
    small_run("fedavg", devices="lognormal:1,speed=40", late="drop:1.2", out=run)
    assert code_of(["timeline", str(run), "--out", str(picture)]) == 0
    said = capsys.readouterr().out
    assert "slowest third" in said and "5 rounds took" in said
    assert picture.stat().st_size > 2000
    assert code_of(["timeline", str(run), "--rounds", "8-9", "--out", str(picture)]) == 2
    assert code_of(["timeline", str(run), "--rounds", "x"]) == 2
    small_run("fedavg", rounds=1, out=tmp_path / "plain")
    assert code_of(["timeline", str(tmp_path / "plain")]) == 2
    assert "has no clock" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("rounds", [1, 2])
def test_a_run_of_fewer_rounds_than_are_drawn(
    rounds: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run("fedavg", devices="lognormal", rounds=rounds, out=tmp_path / "run")
    picture = tmp_path / "gantt.svg"
    assert code_of(["timeline", str(tmp_path / "run"), "--out", str(picture)]) == 0
    said = capsys.readouterr().out
    assert f"{rounds} round{'s' if rounds > 1 else ''} took" in said and picture.exists()


@pytest.mark.parametrize("time", ["x", [1], -1.0, None, float("inf"), 1e308])
def test_forged_times_are_one_sentence(
    time: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run("fedavg", devices="lognormal", rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "rounds.jsonl"
    path.write_text(json.dumps({**json.loads(path.read_text()), "time": time}) + "\n")
    assert code_of(["timeline", str(tmp_path / "run")]) == 2
    assert "'time' is" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("trip", "says"),
    [
        ([99, 0.0, 1.0, 1.0, 1.0, 3.0], "it names client 99, and the run has"),
        ([0.5, 0.0, 1.0, 1.0, 1.0, 3.0], "'trips' is"),
        ([0, 0.0, float("inf"), 1.0, 1.0, float("inf")], "'trips' is"),
        ([0, 0.0, 1e308, 1e308, 1.0, 1e308], "'trips' is"),
    ],
)
def test_forged_ways_are_one_sentence(
    trip: list[float], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run("fedavg", devices="lognormal", rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    path.write_text("".join(json.dumps({**row, "trips": [trip]}) + "\n" for row in rows))
    assert code_of(["timeline", str(tmp_path / "run")]) == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("visits", "length", "says"),
    [
        (1, 9e29, ""),
        (20_000, 1.0, ""),
        (20_001, 1.0, "rounds 1-1 have 20,001 visits, and a picture has room for 20,000"),
    ],
)
def test_pictures_of_much_are_drawn_or_refused_at_once(
    visits: int, length: float, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run("fedavg", devices="lognormal", rounds=1, out=tmp_path / "run")
    path = tmp_path / "run" / "ledger.jsonl"
    trips = [[i % 7, float(i), 0.0, length, 0.0, i + length] for i in range(visits)]
    first, *others = map(json.loads, path.read_text().splitlines())
    path.write_text("".join(json.dumps(row) + "\n" for row in (first | {"trips": trips}, *others)))
    code = code_of(["timeline", str(tmp_path / "run"), "--out", str(tmp_path / "picture.png")])
    assert says in capsys.readouterr().err and code == (2 if says else 0)
    assert (tmp_path / "picture.png").exists() == (not says)


@pytest.mark.parametrize("rounds", ["9", "4-9", "6-7"])
def test_rounds_beyond_the_end_are_refused(
    rounds: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small_run("fedavg", devices="lognormal", rounds=5, out=tmp_path / "run")
    assert code_of(["timeline", str(tmp_path / "run"), "--rounds", rounds]) == 2
    said = capsys.readouterr()
    assert f"rounds '{rounds}' are beyond the end: the run has 5 rounds" in said.err
    assert not said.out


def test_the_table_says_how_many_of_the_clients_were_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for rounds, per_round in ((1, 2), (1, None)):
        run = tmp_path / f"{per_round}"
        small_run("fedavg", devices="lognormal", rounds=rounds, per_round=per_round, out=run)
        assert code_of(["timeline", str(run), "--out", str(tmp_path / "a.svg")]) == 0
    few, everybody = capsys.readouterr().out.split("round took")[:2]
    assert "the 2 of 7 clients asked" in few and "slowest third" not in few, "there is no third"
    assert "7 clients" in everybody and "asked" not in everybody and "slowest third" in everybody
