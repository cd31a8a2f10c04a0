"""The front door: its names, runs and comparisons read back, reports written from Python."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import fedrift as fr
from fedrift.cli import code_of
from tests.support.problems import Net, blobs, small_run, uneven_clients

SPEC = "--data digits --clients 5 --rounds 2 --lr 0.1 --workers 0 --quiet --out".split()


def python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def saved_run(folder: str | Path) -> fr.SavedRun:
    found = fr.load(folder)
    assert isinstance(found, fr.SavedRun)
    return found


def saved_comparison(folder: str | Path) -> fr.SavedComparison:
    found = fr.load(folder)
    assert isinstance(found, fr.SavedComparison)
    return found


def test_every_public_name_is_there_and_no_other() -> None:
    assert {"run", "compare", "split", "load", "report"} <= set(fr.__all__) <= set(dir(fr))
    assert all(getattr(fr, name) is not None for name in dir(fr))
    assert set(dir(fr)) - set(fr.__all__) == {"conform"}
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = fr.walk  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "lines",
    [
        "import fedrift as fr; call = fr.report; import fedrift.report; after = fr.report",
        "import fedrift.report; import fedrift as fr; call = after = fr.report",
        "from fedrift.report import write; import fedrift as fr; call = after = fr.report",
        "import fedrift as fr; from fedrift import report as call; after = fr.report",
    ],
)
def test_report_is_a_function_and_a_package_in_any_order(lines: str) -> None:
    code = (
        f"{lines}\nfrom fedrift.report import write as same\nimport fedrift.report as package\n"
        "assert callable(call) and call is after is package and package.write is same\n"
        "try: call([], 'x.txt')\nexcept fr.InputError as error: print(error)"
    )
    assert python(code) == "the report 'x.txt' must end in .html"


def test_help_shows_what_report_takes() -> None:
    assert list(inspect.signature(fr.report).parameters)[:3] == ["runs", "path", "target"]


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    result = small_run("scaffold", rounds=3, out=tmp_path / "run")
    run = saved_run(tmp_path / "run")
    assert (run.status, run.fingerprint, run.diverged_at) == ("done", result.fingerprint, None)
    assert (run.rounds, run.accuracy, run.loss) == (result.rounds, result.accuracy, result.loss)
    assert run.config.algorithm == "scaffold" and run.config.rounds == 3
    assert run.info["final_accuracy"] == result.accuracy[-1]
    assert run.seconds == result.seconds and run.clients == result.clients
    assert run.ledger.total == result.ledger.total
    assert run.frame().equals(result.frame())
    assert run.plot(tmp_path / "curve.png").stat().st_size > 1000
    assert "scaffold, done, 3 evaluated" in repr(run)
    assert all(torch.equal(v, run.tensors()[n]) for n, v in result.tensors().items())


def test_a_model_of_ones_own_is_filled_with_the_weights(tmp_path: Path) -> None:
    result = small_run("fedavg", rounds=2, out=tmp_path / "run")
    run, x = saved_run(tmp_path / "run"), blobs(20)[0]
    for model in (Net, Net()):
        assert torch.equal(run.module(model)(x), result.module()(x))
    with pytest.raises(fr.InputError, match=r"give the model: module\(MyNet\)"):
        run.module()
    with pytest.raises(fr.InputError, match="the weights of another model than Linear"):
        run.module(torch.nn.Linear(3, 2))


def test_a_model_by_name_is_made_again(tmp_path: Path) -> None:
    assert code_of(["run", "fedavg", *SPEC, str(tmp_path / "run")]) == 0
    run = saved_run(tmp_path / "run")
    again = run.result()
    assert again.fingerprint == run.fingerprint
    assert torch.equal(run.weights, again.weights)
    assert {n: tuple(p.shape) for n, p in run.module().named_parameters()} == {
        n: tuple(t.shape) for n, t in run.tensors().items()
    }


def test_code_that_a_folder_names_is_run_only_if_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_net.py").write_text(
        "from torch import nn\nmake = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    model = ["--model", "own_net:make"]
    assert code_of(["run", "fedavg", *model, *SPEC, str(tmp_path / "run")]) == 0
    run = saved_run(tmp_path / "run")
    with pytest.raises(fr.InputError, match="say trust_code=True"):
        run.module()
    assert len(run.module(trust_code=True)) == 2  # type: ignore[arg-type]


def test_an_unfinished_run_has_a_curve_and_no_weights(tmp_path: Path) -> None:
    small_run("fedavg", rounds=2, out=tmp_path / "run")
    for name in ("summary.json", "model.safetensors"):
        (tmp_path / "run" / name).unlink()
    run = saved_run(tmp_path / "run")
    assert (run.status, run.rounds, run.fingerprint) == ("unfinished", [1, 2], "")
    with pytest.raises(
        fr.InputError, match="holds no weights yet: the run is unfinished; go on by the same call"
    ):
        run.tensors()


def test_a_comparison_of_the_command_line_comes_back(tmp_path: Path) -> None:
    words = ["compare", "fedavg", "fedprox", "--partition", "dirichlet", "--alpha", "0.1,1"]
    assert code_of([*words, *SPEC, str(tmp_path / "all")]) == 0
    found = saved_comparison(tmp_path / "all")
    frame = found.frame()
    assert list(frame.columns[:3]) == ["algorithm", "alpha", "seed"]
    assert len(found.results) == 4 and len(frame) == 8 and len(found.of("fedprox")) == 2
    assert found.problems == () and "fedavg: 2" in repr(found)
    assert found.report(tmp_path / "page.html").stat().st_size > 10_000


def test_a_comparison_of_python_comes_back(tmp_path: Path) -> None:
    task: dict[str, Any] = {"model": Net, "clients": uneven_clients(), "test": blobs(50, seed=5)}
    settings: dict[str, Any] = {**task, "rounds": 2, "workers": 0, "out": tmp_path / "all"}
    made = fr.compare({"mild": "fedprox:mu=0.1", "strong": "fedprox:mu=1"}, seeds=2, **settings)
    found = saved_comparison(tmp_path / "all")
    assert sorted(r.fingerprint for r in found.results) == sorted(
        r.fingerprint for r in made.results
    )
    assert len(found.of("fedprox:mu=1")) == 2
    written = [
        fr.report(runs, tmp_path / "page.html").findings.baseline
        for runs in (made, found, tmp_path / "all", found.results, made.results, made.results[0])
    ]
    assert set(written) <= {"mild", "fedprox:mu=0.1"}


def test_reading_and_reporting_need_no_torch(tmp_path: Path) -> None:
    small_run("fedavg", rounds=2, out=tmp_path / "run")
    code = (
        "import sys; import fedrift as fr\n"
        f"run = fr.load({str(tmp_path / 'run')!r}); run.frame(); run.accuracy; repr(run)\n"
        f"fr.report(run, {str(tmp_path / 'page.html')!r})\n"
        "print('torch' in sys.modules)"
    )
    assert python(code) == "False"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nothing", "does not exist; name a run folder or a comparison folder"),
        ("empty", "holds no run folder: neither spec.toml nor compare.toml"),
        ("file", "is no run folder"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(fr.InputError, match=said):
        fr.load(tmp_path / name)


@pytest.mark.parametrize(
    ("old", "new"), [("said", "config"), ("about", "info"), ("rest", "buffers")]
)
def test_old_names_of_a_result_warn(old: str, new: str) -> None:
    result = small_run("fedavg", rounds=1)
    with pytest.warns(DeprecationWarning, match=f"Result.{old} is now Result.{new}"):
        assert getattr(result, old) is getattr(result, new)
