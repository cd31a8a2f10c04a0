"""Run folders: written atomically, read back exactly, foreign folders refused untouched."""

from __future__ import annotations

import json
import math
import os
import stat
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedrift.config.grid import RUNS, TUNING
from fedrift.errors import InputError
from fedrift.storage import jsonl
from tests.support.product import RunFolder, Spec, run_folder, run_record

SPEC = Spec(algorithm="fedavg", lr=0.1 + 0.2, out="elsewhere")


def written(path: Path) -> RunFolder:
    folder = RunFolder.create(path, SPEC)
    for round in (1, 2, 3):
        folder.append_round({"round": round, "accuracy": round / 3})
        folder.append_ledger({"round": round, "bytes_up": 10**12 * round})
        folder.append_ledger({"round": round, "bytes_up": 1})
    return folder


def test_a_run_comes_back_as_written(tmp_path: Path) -> None:
    path = tmp_path / "a" / "run"
    with written(path) as folder:
        folder.write_environment({"torch": "2.13"})
        assert run_record.load(path).status == "unfinished"
        folder.write_summary({"status": "diverged", "loss": math.nan})
        folder.write_model({"fc.weight": np.eye(3, dtype=np.float32), "fc.bias": np.zeros(3)})
    record = run_record.load(path)
    assert record.spec.lr == SPEC.lr
    assert record.spec.out is None
    assert [row["accuracy"] for row in record.rounds] == [1 / 3, 2 / 3, 1.0]
    assert [row["round"] for row in record.ledger] == [1, 1, 2, 2, 3, 3]
    assert record.environment == {"torch": "2.13"}
    assert record.status == "diverged"
    assert math.isnan(record.summary["loss"])
    assert record.torn == ()
    weights = record.weights()
    assert weights["fc.weight"].shape == (3, 3)
    assert weights["fc.bias"].dtype == np.float64
    assert {file.name for file in path.iterdir()} == {
        run_folder.SPEC,
        run_folder.ROUNDS,
        run_folder.LEDGER,
        run_folder.ENVIRONMENT,
        run_folder.SUMMARY,
        run_folder.MODEL,
    }


def test_every_line_is_there_as_soon_as_it_is_appended(tmp_path: Path) -> None:
    folder = written(tmp_path / "run")
    assert len((tmp_path / "run" / run_folder.ROUNDS).read_text().splitlines()) == 3
    folder.close()


@given(st.floats())
def test_floats_come_back_exactly(number: float) -> None:
    back = jsonl.load(jsonl.dump({"x": [number]}))["x"][0]
    assert back == number or (math.isnan(back) and math.isnan(number))


def test_json_holds_words_for_what_json_cannot_say() -> None:
    text = jsonl.dump({"a": math.nan, "b": -math.inf, "c": np.float32(0.1), "d": np.arange(2)})
    assert json.loads(text, parse_constant=pytest.fail) == {
        "a": "nan",
        "b": "-inf",
        "c": float(np.float32(0.1)),
        "d": [0, 1],
    }


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(TypeError, match="set"):
        jsonl.dump({"x": {1}})


@pytest.mark.parametrize("tail", [b'{"round": 4, "acc', b"\0\0\0", b"\0\0\n", b"{}\n"])
def test_a_torn_last_line_is_reported_and_cut_off_when_reopened(
    tmp_path: Path, tail: bytes
) -> None:
    path = tmp_path / "run"
    written(path).close()
    with (path / run_folder.ROUNDS).open("ab") as file:
        file.write(tail)
    record = run_record.load(path)
    assert record.torn == (run_folder.ROUNDS,)
    assert len(record.rounds) == 3
    with RunFolder.reopen(path) as folder:
        folder.append_round({"round": 4, "accuracy": 1.0})
    record = run_record.load(path)
    assert record.torn == ()
    assert [row["round"] for row in record.rounds] == [1, 2, 3, 4]


def test_damage_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run"
    written(path).close()
    lines = (path / run_folder.ROUNDS).read_text().splitlines(keepends=True)
    (path / run_folder.ROUNDS).write_text(lines[0] + "xx\n" + lines[2])
    with pytest.raises(InputError, match=r"line 2 of .*rounds\.jsonl.* is damaged"):
        run_record.load(path)


def test_cut_to_a_mark_and_go_on(tmp_path: Path) -> None:
    path = tmp_path / "run"
    with RunFolder.create(path, SPEC) as folder:
        folder.append_round({"round": 1, "accuracy": 1 / 3})
        folder.append_ledger({"round": 1, "bytes_up": 3})
        marks = folder.marks()
        folder.append_round({"round": 2, "accuracy": 0.1})
        folder.append_ledger({"round": 2, "bytes_up": 4})
        folder.check_marks(marks)
        folder.cut(marks)
        folder.append_round({"round": 2, "accuracy": 0.5})
        folder.check_marks(folder.marks())
    with RunFolder.reopen(path) as folder:
        folder.append_ledger({"round": 2, "bytes_up": 5})
        folder.check_marks(folder.marks())
    record = run_record.load(path)
    assert [row["accuracy"] for row in record.rounds] == [1 / 3, 0.5]
    assert [row["bytes_up"] for row in record.ledger] == [3, 5]


def test_lines_that_were_changed_do_not_fit_their_mark(tmp_path: Path) -> None:
    with written(tmp_path / "run") as folder:
        marks = folder.marks()
        lines = tmp_path / "run" / run_folder.ROUNDS
        lines.write_bytes(lines.read_bytes().replace(b"0.66", b"0.67"))
        with pytest.raises(ValueError, match=r"rounds\.jsonl"):
            folder.check_marks(marks)
        folder.cut({})
    assert run_record.load(tmp_path / "run").rounds == []


def test_cut_without_any_line(tmp_path: Path) -> None:
    with RunFolder.create(tmp_path / "run", SPEC) as folder:
        folder.cut({})
    assert run_record.load(tmp_path / "run").rounds == []


def test_what_a_killed_start_left_is_no_hindrance(tmp_path: Path) -> None:
    """Everything but the spec is written first, so that a folder with a spec is complete."""
    path = tmp_path / "run"
    path.mkdir()
    (path / f".{run_folder.SPEC}.99.tmp").write_text("algor")
    (path / run_folder.ENVIRONMENT).write_text("{}")
    RunFolder.create(path, SPEC, {"identity": "x"}, {"sizes": [1]}).close()
    assert run_record.load(path).environment == {"identity": "x"}


@pytest.mark.parametrize(
    "name", [run_folder.ROUNDS, run_folder.LEDGER, "clients", ".x.tmp", "fifo"]
)
def test_a_folder_with_links_is_not_written_to(name: str, tmp_path: Path) -> None:
    path, victim = tmp_path / "run", tmp_path / "victim"
    written(path).close()
    victim.write_text("precious")
    (path / name).unlink(missing_ok=True)
    if name == "fifo":
        os.mkfifo(path / name)
    else:
        (path / name).symlink_to(victim)
    with pytest.raises(InputError, match="not a plain file"):
        RunFolder.reopen(path)
    assert victim.read_text() == "precious"


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with RunFolder.create(tmp_path / "run", SPEC) as folder:
        folder.write_summary({"status": "done"})

        def fail(*_: object) -> None:
            raise OSError("disk full")

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(OSError, match="disk full"):
            folder.write_summary({"status": "stopped"})
        monkeypatch.undo()
    assert run_record.load(tmp_path / "run").status == "done"
    assert not list((tmp_path / "run").glob(".*"))


def test_files_have_ordinary_permissions(tmp_path: Path) -> None:
    RunFolder.create(tmp_path / "run", SPEC).close()
    (tmp_path / "plain").touch()
    modes = [
        stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "run" / "spec.toml", tmp_path / "plain")
    ]
    assert modes[0] == modes[1]


def test_folders_that_are_refused(tmp_path: Path) -> None:
    run, foreign, file = tmp_path / "run", tmp_path / "foreign", tmp_path / "file"
    written(run).close()
    foreign.mkdir()
    (foreign / "thesis.tex").touch()
    file.touch()
    before = sorted(tmp_path.rglob("*"))
    for path, says in (
        (
            run,
            f"continue that run with: fedrift resume {run}",
        ),
        (foreign, "is not empty (it holds thesis.tex)"),
        (file, "is a file"),
        (file / "below", "which is a file"),
    ):
        with pytest.raises(InputError) as caught:
            RunFolder.create(path, SPEC)
        assert says in str(caught.value)
        assert str(path) in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_empty_folder_is_taken(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    RunFolder.create(tmp_path / "run", SPEC).close()
    assert run_record.load(tmp_path / "run").spec.algorithm == "fedavg"


def test_a_folder_that_could_not_be_started_is_not_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(InputError, match="No space left"):
        RunFolder.create(tmp_path / "run", SPEC)
    assert not (tmp_path / "run").exists()


def test_two_writers_cannot_share_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("fcntl")
    first = written(tmp_path / "run")
    with pytest.raises(InputError, match="another process"):
        RunFolder.reopen(tmp_path / "run")
    first.close()
    RunFolder.reopen(tmp_path / "run").close()


def test_what_is_no_run_folder(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(InputError, match="is no run folder"):
            run_record.load(path)


@pytest.mark.parametrize("content", [b"[]", b"{", b"\xff", b"[" * 100_000])
def test_damaged_summary_and_weights(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "run"
    written(path).close()
    (path / run_folder.SUMMARY).write_bytes(content)
    (path / run_folder.MODEL).write_bytes(content)
    with pytest.raises(InputError, match=r"summary\.json"):
        run_record.load(path)
    (path / run_folder.SUMMARY).unlink()
    with pytest.raises(InputError, match=r"model\.safetensors"):
        run_record.load(path).weights()


def test_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    written(tmp_path / "run").close()
    frame = run_record.load(tmp_path / "run").frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["round"]) == [1, 2, 3]


@pytest.mark.parametrize(
    "line",
    [
        '{"round": 1, "client": [0, 1], "n": [3], "loss": [1.0, 2.0], "visited": [1, 1]}',
        '{"round": 1, "client": [0], "n": [3], "loss": [1.0]}',
        '{"round": 1, "client": [-1], "n": [3], "loss": [1.0], "visited": [1]}',
        '{"round": 1, "client": [0], "n": [3], "loss": [1.0], "visited": [1], "accuracy": [2.0]}',
    ],
)
def test_a_damaged_table_of_clients_is_one_sentence(tmp_path: Path, line: str) -> None:
    from fedrift.storage.records import read_client_rounds

    file = tmp_path / "client_rounds.jsonl"
    file.write_text(line + "\n")
    with pytest.raises(InputError, match=r"line 1 of .* is damaged"):
        read_client_rounds(file)


@pytest.mark.parametrize("link", ["runs", "runs/a", "tuning", "tuning/runs", "tuning/runs/a"])
def test_a_comparison_writes_through_no_link(link: str, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    place = tmp_path / "both" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="is a link, and runs would be written elsewhere"):
        run_folder.check_comparable(tmp_path / "both")


def test_a_comparison_whose_tuning_was_interrupted_may_go_on(tmp_path: Path) -> None:
    (tmp_path / TUNING / RUNS).mkdir(parents=True)
    run_folder.check_comparable(tmp_path)
    (tmp_path / TUNING).rename(tmp_path / "notes")
    with pytest.raises(InputError, match="holds notes and no comparison"):
        run_folder.check_comparable(tmp_path)
