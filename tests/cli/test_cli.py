"""The command line: what it answers, what it refuses, and that torch stays out of both."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import types
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

import fedrift
from fedrift.cli import code_of
from fedrift.config.spec import FIELDS
from fedrift.errors import InputError, RunError
from fedrift.report.numbers import bytes_text, seconds_text
from tests.support.product import RunFolder, Spec, load_run

with warnings.catch_warnings():
    # typer 0.20 imports names that click 8.5 will drop; tests treat warnings as errors.
    warnings.simplefilter("ignore", DeprecationWarning)
    from fedrift.cli import code_of

SUMMARY: dict[str, Any] = {
    "algorithm": "fedavg",
    "rounds": 3,
    "status": "done",
    "diverged_at": None,
    "final_accuracy": 0.75,
    "best_accuracy": 0.8,
    "accuracy": [0.5, 0.8, 0.75],
    "loss": [1.0, 0.5, float("nan")],
    "bytes_up": 12_345_678,
    "bytes_down": 999,
    "gradient_evaluations": 4311,
    "seconds": 75.0,
    "fingerprint": "0123456789abcdef",
    "folder": None,
}


@dataclass
class Front:
    """Stands in for the engine: remembers what it was asked, reports a few rounds."""

    summary: dict[str, Any] = field(default_factory=lambda: dict(SUMMARY))
    rounds: int = 3
    raises: BaseException | None = None
    asked: list[tuple[Spec, str | None]] = field(default_factory=list[tuple[Spec, str | None]])

    def run_spec(
        self,
        spec: Spec,
        *,
        callbacks: Any,
        out: str | None,
        prepared: Any,
        track: Any = (),
        analyse: Any = None,
        origin: Any = None,
        profile: bool = False,
        measuring: Any = None,
    ) -> Any:
        assert prepared.model == spec.model
        assert analyse is None
        self.asked.append((spec, out))
        (progress,) = callbacks
        if self.rounds:
            progress.on_start(plan())
        for round in range(1, self.rounds + 1):
            metrics = {"accuracy": round / 10, "loss": 1.0 / round} if round != 2 else {}
            told = {"round": round, "metrics": metrics, "nonfinite": (), "seconds": 7.0 * round}
            progress.on_round(types.SimpleNamespace(**told))
        if self.raises is not None:
            raise self.raises
        return types.SimpleNamespace(summary=lambda: self.summary)


def plan(**changes: Any) -> Any:
    values = {
        "parameters": 54_410,
        "clients": 10,
        "samples": 1438,
        "cohort": 5.0,
        "workers": 2,
        "memory_bytes": 210_000_000,
        "disk_bytes": 0,
        "resumed_from": 0,
        "notes": ("something to know",),
        "local": {"epochs": 1, "lr": 0.05, "steps": None},
    }
    return types.SimpleNamespace(**{**values, **changes})


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch) -> Front:
    fake = Front()
    monkeypatch.setitem(sys.modules, "fedrift.api", fake)  # type: ignore[arg-type]
    monkeypatch.setattr(fedrift, "api", fake, raising=False)
    monkeypatch.setattr("fedrift.backends.prestart", lambda: None)
    monkeypatch.setattr(
        "fedrift.engine.prepare.prepare", lambda _: types.SimpleNamespace(model="cnn")
    )
    return fake


def only_line(text: str) -> str:
    lines = text.splitlines()
    assert len(lines) == 1, text
    return lines[0]


# Answers


@pytest.mark.parametrize("command", ["", "run", "resume", "list", "partition"])
def test_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of([*command.split(), "--help"]) == 0
    assert "Usage: fedrift" in capsys.readouterr().out


def test_help_tells_of_arguments_too(capsys: pytest.CaptureFixture[str]) -> None:
    for command, told in {"list": "partitions", "conform": "all of ours unless said"}.items():
        code_of([command, "--help"])
        shown = capsys.readouterr().out
        assert told in shown.partition("Arguments")[2].partition("Options")[0], command


def test_help_wraps_where_the_terminal_ends(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code_of(["compare", "--help"])
    text = capsys.readouterr().out
    assert "an axis of the grid: numbers separated by commas" in text
    assert "\n fedrift compare fedavg scaffold --partition" in text, "examples keep their lines"


def test_help_of_run_names_every_field_of_the_spec(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    code_of(["run", "--help"])
    text = capsys.readouterr().out
    for name in FIELDS:
        if name != "algorithm":
            assert re.search(rf"--{name.replace('_', '-')}[ ,]", text)
    assert "fedrift run scaffold" in text


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["--version"]) == 0
    assert only_line(capsys.readouterr().out).startswith("fedrift")


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("algorithms", ["fedsgd", "fedavg", "scaffold"]),
        ("data", ["digits", "mnist5k", "cifar100", "npz"]),
        ("partitions", ["iid", "dirichlet", "hsu", "natural"]),
        ("models", ["logistic", "mlp", "cnn", "resnet20"]),
    ],
)
def test_list(kind: str, names: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["list", kind]) == 0
    first = [line.split(maxsplit=1)[0] for line in capsys.readouterr().out.splitlines() if line]
    assert set(names) <= set(first)
    assert code_of(["list", kind, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)
    assert set(names) <= {entry["name"] for entry in entries}
    assert all(entry["about"] and entry["usage"] for entry in entries)
    assert code_of(["list", kind, "--verbose"]) == 0
    text = capsys.readouterr().out
    assert all(entry["usage"] in text for entry in entries)


def test_list_keeps_square_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    code_of(["list", "partitions", "--verbose"])
    assert "dirichlet:ALPHA[,min_size=K]" in capsys.readouterr().out


def test_partition_table(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    manifest, picture = tmp_path / "m.json", tmp_path / "p.png"
    arguments = ["partition", "dirichlet:0.1", "--clients", "4", "--seed", "3"]
    assert code_of([*arguments, "--save", str(manifest), "--picture", str(picture)]) == 0
    text = capsys.readouterr().out
    assert "mean label distance" in text
    assert text.splitlines()[0].split() == ["client", "samples", "classes", "TV", *"0123456789"]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert code_of([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert sum(found["sizes"]) == found["samples"] == sum(map(sum, found["counts"]))
    assert code_of(["partition", f"manifest:{manifest}", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sha256"] == found["sha256"]


def test_partition_of_many_clients_is_cut(capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["partition", "iid", "--clients", "100"]) == 0
    assert "… and 60 more clients" in capsys.readouterr().out


def test_partition_writes_nothing_when_the_picture_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    manifest = tmp_path / "m.json"
    assert code_of(["partition", "--save", str(manifest), "--picture", "x.gif"]) == 2
    assert "picture 'x.gif'" in only_line(capsys.readouterr().err)
    assert not manifest.exists()


# Runs


def test_run_passes_every_flag(front: Front) -> None:
    command = (
        "run scaffold:option=I --data mnist --data-dir /d --partition hsu:1 --alpha 0.1 "
        "--shift noise:0.5 --clients 5 --model cnn --head fc2 --rounds 3 --per-round 2 "
        "--sampling cyclic --epochs 1,2,3,4,5 --batch-size full --lr 0.01 --momentum 0.5 "
        "--weight-decay 1e-4 --clip 10 --schedule exp:0.9 --weights uniform --augment crop:4 "
        "--augment flip --dtype float64 --device cpu --workers 0 --backend in-process --seed 7 "
        "--eval-every 2 --quiet"
    )
    assert code_of(command.split()) == 0
    spec, out = front.asked[0]
    assert out is None
    assert spec == Spec(
        algorithm="scaffold:option=I",
        data="mnist",
        data_dir="/d",
        partition="hsu:1",
        alpha=0.1,
        shift="noise:0.5",
        clients=5,
        model="cnn",
        head="fc2",
        rounds=3,
        per_round=2,
        sampling="cyclic",
        epochs=(1, 2, 3, 4, 5),
        batch_size="full",
        lr=0.01,
        momentum=0.5,
        weight_decay=1e-4,
        clip=10.0,
        schedule="exp:0.9",
        weights="uniform",
        augment=("crop:4", "flip"),
        dtype="float64",
        workers=0,
        backend="in-process",
        seed=7,
        eval_every=2,
    )


def test_flags_override_the_file(front: Front, tmp_path: Path) -> None:
    file = tmp_path / "e.toml"
    file.write_text('algorithm = "scaffold"\nclients = 4\nfraction = 0.5\nsteps = 3\nlr = 0.5\n')
    assert code_of(["run", "--spec", str(file), "--quiet"]) == 0
    spec = Spec("scaffold", model="cnn", lr=0.5)
    assert front.asked[-1][0] == replace(spec, clients=4, fraction=0.5, steps=3)
    flags = ["--per-round", "2", "--epochs", "2", "--clients", "6"]
    assert code_of(["run", "fedavg", "--spec", str(file), "--quiet", *flags]) == 0
    assert front.asked[-1][0] == replace(spec, algorithm="fedavg", clients=6, per_round=2, epochs=2)


def test_participants_on_the_command_line(front: Front) -> None:
    assert code_of(["run", "fedavg", "--participants", "0,3|1,2", "--quiet"]) == 0
    assert front.asked[0][0].participants == ((0, 3), (1, 2))
    assert front.asked[0][0].rounds == 2


def test_json_is_one_object_and_nothing_else(
    front: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(["run", "fedavg", "--json"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(only_line(shown.out), parse_constant=pytest.fail)
    assert found["accuracy"] == [0.5, 0.8, 0.75]
    assert found["loss"][-1] == "nan"
    assert found["fingerprint"] == "0123456789abcdef"


def test_lines_and_table(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of("run fedavg --rounds 3 --per-round 5 --lr 0.05".split()) == 0
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    text = shown.err
    assert "algorithm  fedavg" in text
    assert "1,438 samples" in text and "54,410 parameters" in text
    assert "5 of 10 clients a round" in text and "epochs 1, lr 0.05\n" in text
    assert "about 210.0 MB" in text and "something to know" in text
    rounds = [line for line in lines if line.startswith("round ")]
    assert [line.split()[1] for line in rounds] == ["1/3", "3/3"]
    assert "accuracy 0.1000  loss 1.0000  7.0 s" in rounds[0]
    table = shown.out
    for part in (
        "75.00 %",
        "80.00 %",
        "12.3 MB up, 999 B down",
        "4,311",
        "1 min 15 s",
        "0123456789",
    ):
        assert part in table


def test_quiet_shows_only_the_table(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    assert code_of(["run", "fedavg", "--quiet"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    assert "final accuracy" in shown.out


def test_a_terminal_gets_a_bar(
    front: Front, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "120")
    assert code_of(["run", "fedavg", "--rounds", "3"]) == 0
    text = capsys.readouterr().err
    assert "3/3" in text
    assert "accuracy 0.3000" in text
    assert "\x1b[?25h" in text  # the cursor is shown again


def test_diverged_is_done_and_says_so(front: Front, capsys: pytest.CaptureFixture[str]) -> None:
    front.summary |= {"status": "diverged", "diverged_at": 2, "final_accuracy": None, "loss": []}
    assert code_of(["run", "fedavg", "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "diverged in round 2" in text
    assert "accuracy" not in text


def test_workers_are_started_before_torch_is_imported(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []
    monkeypatch.setattr("fedrift.backends.prestart", lambda: calls.append("prestart"))
    code_of(["run", "fedavg", "--quiet", "--workers", "0"])
    code_of(["run", "fedavg", "--quiet", "--backend", "in-process"])
    assert calls == []
    code_of(["run", "fedavg", "--quiet", "--workers", "2"])
    assert calls == ["prestart"]


SUMMARY_KEYS = set(
    "algorithm data partition model rounds seed final_accuracy best_accuracy accuracy loss "
    "bytes_up bytes_down gradient_evaluations seconds fingerprint status folder".split()
)


def test_a_real_run(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """No stand-in: two rounds on the digits, its folder, and the same bits a second time."""
    command = "run scaffold --rounds 2 --clients 4 --workers 0 --lr 0.05 --json --out".split()
    assert code_of([*command, str(tmp_path / "a")]) == 0
    found = json.loads(only_line(capsys.readouterr().out))
    assert set(found) >= SUMMARY_KEYS
    assert found["model"] == "mlp"
    assert found["folder"] == str(tmp_path / "a")
    record = load_run(tmp_path / "a")
    assert record.status == "done"
    assert [row["accuracy"] for row in record.rounds] == found["accuracy"]
    assert sum(weight.size for weight in record.weights().values()) == 55_210
    assert code_of(["run", "--spec", str(tmp_path / "a" / "spec.toml"), "--json"]) == 0
    again = json.loads(only_line(capsys.readouterr().out))
    assert again["fingerprint"] == found["fingerprint"]


# What goes wrong


@pytest.mark.parametrize(
    ("folder", "rounds", "says"),
    [
        ("runs/x", 2, "interrupted after round 2 of 20; continue with: fedrift resume runs/x"),
        (None, 2, "interrupted after round 2 of 20; nothing was kept, since no --out was given"),
        ("runs/x", 0, "interrupted before the first round"),
    ],
)
def test_interrupted(
    front: Front,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    folder: str | None,
    rounds: int,
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    front.raises, front.rounds = KeyboardInterrupt(), rounds
    out = [] if folder is None else ["--out", folder]
    assert code_of(["run", "fedavg", "--quiet", *out]) == 130
    assert only_line(capsys.readouterr().err) == says


@pytest.mark.parametrize(
    ("error", "code", "says"),
    [
        (InputError("labels outside the classes"), 2, "error: labels outside the classes"),
        (RunError("a worker died"), 1, "error: a worker died"),
        (ZeroDivisionError("by\nzero"), 1, "error: ZeroDivisionError: by zero (test_cli.py, line "),
    ],
)
def test_errors_of_a_run(
    front: Front, capsys: pytest.CaptureFixture[str], error: Exception, code: int, says: str
) -> None:
    front.raises = error
    assert code_of(["run", "fedavg", "--quiet"]) == code
    assert only_line(capsys.readouterr().err).startswith(says)


def test_debugging_shows_the_traceback(
    front: Front, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    front.raises = ZeroDivisionError("x")
    monkeypatch.setenv("FEDRIFT_DEBUG", "1")
    assert code_of(["run", "fedavg", "--quiet"]) == 1
    assert "Traceback" in capsys.readouterr().err


BAD = [
    ("run fedagv", "algorithm 'fedagv': did you mean 'fedavg'"),
    ("run scaffold:mu=1", "option of scaffold 'mu'"),
    ("run scaffold:server_lr=-1", "option server_lr of scaffold must be a number > 0, not '-1'"),
    ("run swa(fedavg", "unbalanced parentheses"),
    ("run fedavg --clients 0", "clients must be a whole number of at least 1, not 0"),
    ("run fedavg --clients x", "clients must be a whole number of at least 1, not 'x'"),
    ("run fedavg --per-round 11", "per_round is 11 but there are only 10 clients"),
    ("run fedavg --per-round 1 --fraction 0.1", "per_round (1) and fraction (0.1)"),
    ("run fedavg --lr -1", "lr must be a number above 0, not -1.0"),
    ("run fedavg --lr nan", "lr must be a number above 0, not nan"),
    ("run fedavg --lr 1e999", "lr must be a number above 0, not inf"),
    ("run fedavg --alpha -0.1", "alpha must be a number of at least 0, not -0.1"),
    ("run fedavg --data mnits", "data 'mnits': did you mean 'mnist'"),
    ("run fedavg --partition dirichelt", "partition 'dirichelt': did you mean 'dirichlet'"),
    ("run fedavg --model cn", "model 'cn': did you mean 'cnn'"),
    ("run fedavg --shift rotate:3", "shift 'rotate': did you mean 'rotation'"),
    ("run fedavg --shift noise:-1", "shift 'noise:-1' must be a number of at least 0"),
    ("run fedavg --augment flop", "'flop'"),
    ("run fedavg --participants 0,10", "participants[0] names client 10"),
    ("run fedavg --epochs 1 --steps 1", "epochs (1) and steps (1) are both given"),
    ("run fedavg --workers many", "workers must be 'auto' or a whole number"),
    ("run fedavg --lrr 1", "--lrr"),
    ("run fedavg --lr", "--lr"),
    ("run fedavg scaffold", "scaffold"),
    ("run --spec none.toml", "spec 'none.toml' cannot be read"),
    ("run fedavg --out taken", "out 'taken' is not empty (it holds thesis.tex)"),
    ("run fedavg --out taken/thesis.tex", "out 'taken/thesis.tex' is a file"),
    ("rnu", "rnu"),
    ("list", "KIND is missing; name one: algorithms, data, partitions"),
    ("list dogs", "list 'dogs'"),
    ("resume taken", "'taken' is no run folder"),
    ("resume none", "'none' is no run folder"),
    ("partition nope", "partition 'nope'"),
]
BAD_DATA = [
    ("partition dirichlet:-1", "partition 'dirichlet:-1': alpha"),
    ("partition classes:1 --alpha 3", "alpha=3.0 has no meaning"),
    ("partition --data npz:none.npz", "none.npz"),
    ("run fedavg --out new --partition dirichlet:-1", "partition 'dirichlet:-1': alpha"),
    ("run fedavg --out new --data npz:none.npz", "none.npz"),
    ("run fedavg --out new --clients 5000", "clients=5000"),
    ("run fedavg --out new --model cnn", "8×8"),
]


@pytest.fixture
def taken(tmp_path: Path) -> Path:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "thesis.tex").touch()
    return tmp_path


@pytest.mark.parametrize(("command", "says"), BAD, ids=[command for command, _ in BAD])
def test_bad_input(
    front: Front,
    capsys: pytest.CaptureFixture[str],
    taken: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    says: str,
) -> None:
    monkeypatch.chdir(taken)
    refused(command, says, taken, capsys)
    assert front.asked == []


@pytest.mark.parametrize(("command", "says"), BAD_DATA, ids=[command for command, _ in BAD_DATA])
def test_bad_data(
    capsys: pytest.CaptureFixture[str],
    taken: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    says: str,
) -> None:
    monkeypatch.chdir(taken)
    monkeypatch.setattr("fedrift.backends.prestart", lambda: None)
    refused(command, says, taken, capsys)


def refused(command: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit code 2, one line on standard error, nothing on standard output, nothing written."""
    before = sorted(folder.rglob("*"))
    assert code_of(command.split()) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    line = only_line(shown.err)
    assert line.startswith("error: ")
    assert says in line
    assert sorted(folder.rglob("*")) == before


def test_control_characters_do_not_reach_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "e.toml"
    file.write_text('"\\u001b]0;gotcha\\u0007\\n" = 1\n')
    assert code_of(["run", "--spec", str(file)]) == 2
    assert only_line(capsys.readouterr().err).isprintable()


WITHOUT_TORCH = [
    "--help",
    "run --help",
    "list algorithms",
    "list data",
    "list partitions",
    "list models",
    "run fedagv",
    "run fedavg --clients 0",
    "run fedavg --data mnits",
    "run fedavg --model cn",
    "run fedavg --augment flop",
    "run fedavg --shift nois:1",
    "run fedavg --partition dirichelt",
    "run fedavg --out .",
    "run fedavg --workers 0 --partition dirichlet:-1",
    "run fedavg --workers 0 --data npz:none.npz",
    "run fedavg --workers 0 --partition shards:2 --alpha 1",
    "run fedavg --workers 0 --model cnn",
    "partition iid",
]


def test_torch_is_not_imported() -> None:
    code = (
        "import sys; from fedrift.cli import code_of\n"
        f"for command in {WITHOUT_TORCH!r}:\n"
        "    code_of(command.split())\n"
        "    if 'torch' in sys.modules: sys.exit(f'{command} imports torch')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def test_as_a_module_and_with_a_closed_pipe() -> None:
    shell = f"{sys.executable} -m fedrift list data --verbose | head -c 1"
    done = subprocess.run(shell, shell=True, capture_output=True, check=False, env=os.environ)
    assert done.stdout == b"d"
    assert done.stderr == b""


# Resuming


def interrupted_run(path: Path, spec: Spec) -> None:
    with RunFolder.create(path, spec) as folder:
        folder.append_round({"round": 1, "accuracy": 0.5})


def test_resume(front: Front, tmp_path: Path) -> None:
    spec = Spec(algorithm="scaffold", model="cnn", lr=0.3, workers=1)
    interrupted_run(tmp_path / "run", spec)
    assert code_of(["resume", str(tmp_path / "run"), "--quiet"]) == 0
    assert front.asked == [(spec, str(tmp_path / "run"))]
    assert code_of(["resume", str(tmp_path / "run"), "--quiet", "--workers", "0"]) == 0
    assert front.asked[1][0].workers == 0


def test_resume_of_a_finished_run_shows_it(
    front: Front, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    interrupted_run(tmp_path / "run", Spec())
    with RunFolder.reopen(tmp_path / "run") as folder:
        folder.write_summary(SUMMARY)
    assert code_of(["resume", str(tmp_path / "run"), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["final_accuracy"] == 0.75
    assert "nothing is left to do; --rounds N makes it longer" in shown.err
    assert front.asked == []


def test_resume_of_a_run_made_in_python(
    front: Front, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    interrupted_run(tmp_path / "run", Spec(data="python", model="python"))
    assert code_of(["resume", str(tmp_path / "run")]) == 2
    assert "was made in Python" in only_line(capsys.readouterr().err)


def test_run_into_the_folder_of_another_run(
    front: Front, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    interrupted_run(tmp_path / "run", Spec())
    assert code_of(["run", "fedavg", "--seed", "1", "--out", str(tmp_path / "run")]) == 2
    assert f"fedrift resume {tmp_path / 'run'}" in only_line(capsys.readouterr().err)


def test_the_same_command_goes_on(front: Front, tmp_path: Path) -> None:
    interrupted_run(tmp_path / "run", Spec(lr=0.3, model="mlp"))
    command = ["run", "fedavg", "--lr", "0.3", "--out", str(tmp_path / "run"), "-q"]
    assert code_of([*command, "--workers", "1"]) == 0
    assert code_of([*command, "--model", "cnn"]) == 2
    assert len(front.asked) == 1


# Words


@pytest.mark.parametrize(
    ("make", "value", "expected"),
    [
        (bytes_text, 0, "0 B"),
        (bytes_text, 999, "999 B"),
        (bytes_text, 1000, "1.0 kB"),
        (bytes_text, 12_345_678, "12.3 MB"),
        (bytes_text, 10**18, "1000.0 PB"),
        (seconds_text, 0.84, "0.8 s"),
        (seconds_text, 59.4, "59 s"),
        (seconds_text, 59.6, "1 min 00 s"),
        (seconds_text, 7620, "2 h 07 min"),
    ],
)
def test_readable_quantities(make: Callable[[float], str], value: float, expected: str) -> None:
    assert make(value) == expected


def test_a_demo_that_cannot_be_given_writes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from fedrift.federation import demo

    def missing(name: str) -> str:
        raise InputError(f"the program {name} is missing")

    monkeypatch.setattr(demo, "program", missing)
    monkeypatch.chdir(tmp_path)
    assert code_of(["flower", "demo"]) == 2
    assert "flower-superlink is missing" in capfd.readouterr().err
    assert not any(tmp_path.iterdir())


def test_processes_of_a_demo_are_given_whole_paths(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They have working folders of their own, where a path from here leads elsewhere."""
    from fedrift.federation import demo

    given: list[Any] = []

    def app(self: Any, app: Path, config: Mapping[str, Any]) -> str:
        given.extend([app, *config.values()])
        raise RunError("that will do")

    monkeypatch.setattr(demo, "program", lambda name: name)
    monkeypatch.setattr(demo.Loopback, "start_link", lambda self: given.append(self.home))
    monkeypatch.setattr(
        demo.Loopback, "start_node", lambda self, name, config: given.extend(config.values())
    )
    monkeypatch.setattr(demo.Loopback, "start_app", app)
    monkeypatch.chdir(tmp_path)
    words = "flower demo fedavg --nodes 2 --rounds 1 --data digits:train=60,test=40 --no-secure"
    assert code_of(words.split()) == 1
    assert "that will do" in capfd.readouterr().err
    paths = [value for value in given if isinstance(value, Path)]
    assert len(paths) == 8 and all(path.is_relative_to(tmp_path) for path in paths)
