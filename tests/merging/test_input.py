"""What `merge` and `experts` are given in Python: what they read, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import fedrift as fr
from fedrift import InputError
from fedrift.api import run_spec
from fedrift.cli import code_of
from fedrift.config.spec import Spec
from fedrift.engine.prepare import load
from fedrift.report.saved import SavedRun


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def task(seed: int) -> tuple[Tensor, Tensor]:
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(seed))
    return x, (x[:, seed] > 0).long() + seed


TASKS = [task(0), task(1)]
SETS = [TensorDataset(*one) for one in TASKS]
X, Y = TASKS[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def results(folder: Path) -> list[fr.Result]:
    """Each is in a folder of its own, too."""
    return [run(t, out=folder / str(i)) for i, t in enumerate(TASKS)]


def run(one: tuple[Tensor, Tensor], model: Any = net, **more: Any) -> fr.Result:
    return fr.run("fedavg", model=model, clients=[one], rounds=3, lr=0.3, workers=0, **more)


def saved(path: Path) -> SavedRun:
    one = fr.load(path)
    assert isinstance(one, SavedRun)
    return one


EACH = "give a list with an \\(x, y\\) or Dataset per model, None where there is none"
SETS_REFUSED: list[tuple[Any, str]] = [
    ([(X, Y)], f"has 1 entries for 2 models; {EACH}"),
    ((X, Y), f"is one tuple for 2 models; {EACH}"),
    (SETS[0], f"is one TensorDataset for 2 models; {EACH}"),
    ([(X, Y), (X, Y, Y)], r"\[1\] must be a pair \(x, y\) or a Dataset, not tuple"),
    ([(X, Y), (X, Y[:9])], r"\[1\]: x has 40 samples but y has 9"),
    ([(X * torch.nan, Y), None], r"\[0\] x: holds NaN or infinite values; clean the data first"),
    ([(X[:0], Y[:0]), None], r"\[0\] has no samples; give some, or None"),
    ([(X[:, :4], Y), None], r"\[0\]: no loss can be computed .* \(2x4 and 5x6\)"),
    (
        [None, (X, Y + 10)],
        r"\[1\]: label 10 is outside the model's 3 classes \(0 to 2\); give labels that count from "
        "0, or the model 12 outputs",
    ),
    ([(X, Y.float()), None], r"\[0\]: no loss can be computed"),
]


@pytest.mark.parametrize("make", [fr.merge, fr.experts])
@pytest.mark.parametrize("field", ["data", "tests"])
@pytest.mark.parametrize(("value", "words"), SETS_REFUSED)
def test_data_that_do_not_fit_are_refused(
    results: list[fr.Result], make: Callable[..., Any], field: str, value: Any, words: str
) -> None:
    with pytest.raises(
        InputError, match=f"^{make.__name__}: {field}{' ' * words[0].isalpha()}{words}"
    ):
        make(results, **{"data": TASKS, field: value})


MODELS_REFUSED: list[tuple[Callable[[list[fr.Result]], Any], str]] = [
    (
        lambda all_of: all_of[0],
        r"models must be a list of .*, such as \[one, two\], not one Result",
    ),
    (lambda _: "runs/one", "models must be a list of .*, not one str"),
    (lambda all_of: iter(all_of), "models must be a list of .*, not one list_iterator"),
    (lambda _: [], "no model is given; name run folders or give results"),
    (
        lambda all_of: [all_of[0], all_of[1].module()],
        r"models\[1\] is a Sequential; give run folders, results of fr.run or what fr.load returns",
    ),
    (
        lambda all_of: [all_of[0], replace(all_of[1], weights=all_of[1].weights * torch.nan)],
        "'.*' has weights that are no finite numbers; use another run",
    ),
]


@pytest.mark.parametrize("make", [fr.merge, fr.experts])
@pytest.mark.parametrize(("given", "words"), MODELS_REFUSED)
def test_what_is_no_list_of_models_is_refused(
    results: list[fr.Result], make: Callable[..., Any], given: Any, words: str
) -> None:
    with pytest.raises(InputError, match=f"^{make.__name__}: {words}"):
        make(given(results), data=TASKS, tests=TASKS)


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"how": None}, "merge rule None must be a text, such as 'mean' or 'ties:0.2'"),
        ({"seed": "one"}, "seed"),
        ({"models": 1}, "merge: one model is given; name two or more"),
    ],
)
def test_other_arguments_that_are_wrong(
    results: list[fr.Result], more: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        fr.merge(results[: more.pop("models", 2)], **more)


def test_an_added_expert_brings_data_that_fit(results: list[fr.Result]) -> None:
    made = fr.experts(results, data=SETS, tests=SETS)
    more = made.add(results[1], data=SETS[1], test=SETS[1])
    assert (more.scores[2, :2] == made.scores[1]).all()
    for field in ("data", "test"):
        given: dict[str, Any] = {"data": SETS[1], field: (X, Y + 10)}
        with pytest.raises(InputError, match=f"^experts: {field}: label 10 is outside"):
            made.add(results[1], **given)


@pytest.mark.parametrize("how", ["mean", "fisher", "evolve:steps=3"])
def test_data_sets_and_arrays_are_read_as_by_run(results: list[fr.Result], how: str) -> None:
    plain = fr.merge(results, how, data=TASKS, tests=TASKS)
    arrays = [(x.double().numpy(), y.numpy().astype(np.uint8)) for x, y in TASKS]
    for given in (SETS, arrays):
        again = fr.merge(results, how, data=given, tests=given)
        assert torch.equal(again.weights, plain.weights)
        np.testing.assert_array_equal(again.scores, plain.scores)
    router = fr.experts(results, data=TASKS, tests=TASKS)
    np.testing.assert_array_equal(fr.experts(results, data=SETS, tests=SETS).scores, router.scores)


def test_labels_of_a_run_with_mixed_samples_are_looked_at() -> None:
    two = [run(t, augment=["mixup:alpha=1"]) for t in TASKS]
    with pytest.raises(InputError, match=r"tests\[0\]: label 10 is outside"):
        fr.merge(two, tests=[(torch.cat((X, X)), torch.cat((Y, Y + 10))), None])


def test_without_tests_there_are_weights_and_a_word_about_the_scores(
    results: list[fr.Result], tmp_path: Path
) -> None:
    merged = fr.merge(results, "ties:0.3")
    assert repr(merged) == "<Merged: ties:0.3 of 2 models, not evaluated: no test data>"
    for ask in (merged.frame, lambda: merged.plot(tmp_path / "none.png")):
        with pytest.raises(InputError, match=r"nothing was evaluated.*give fr.merge tests=\[…\]"):
            ask()
    some = fr.merge(results, "ties:0.3", tests=[TASKS[0], None])
    assert torch.equal(some.weights, merged.weights)
    assert np.isfinite(some.scores[:, 0]).all() and np.isnan(some.scores[:, 1]).all()
    assert repr(some).endswith(f"{some.measure} {some.scores[-1, 0]:.4f}>")
    some.frame()


@pytest.mark.parametrize("how", ["mean", "ties:0.3", "evolve:steps=3"])
def test_a_loaded_run_is_its_result(results: list[fr.Result], folder: Path, how: str) -> None:
    expected = fr.merge(results, how, data=TASKS, tests=TASKS)
    for first in (saved(folder / "0"), folder / "0", str(folder / "0")):
        merged = fr.merge([first, results[1]], how, data=TASKS, tests=TASKS)
        assert torch.equal(merged.weights, expected.weights)
        np.testing.assert_array_equal(merged.scores, expected.scores)
    together = fr.experts([saved(folder / "0"), results[1]], data=TASKS, tests=TASKS)
    known = fr.experts(results, data=TASKS, tests=TASKS)
    np.testing.assert_array_equal(together.scores, known.scores)


def test_a_loaded_run_with_named_data_is_its_folder(tmp_path: Path) -> None:
    spec = {"data": "digits:train=100", "model": "logistic", "clients": 2, "rounds": 1}
    for seed in (0, 1):
        run_spec(Spec.of({**spec, "seed": seed, "workers": 0}), out=tmp_path / str(seed))
    paths = [tmp_path / "0", tmp_path / "1"]
    expected = fr.merge(paths, "fisher")
    merged = fr.merge([saved(path) for path in paths], "fisher")
    assert merged.names == expected.names and torch.equal(merged.weights, expected.weights)
    np.testing.assert_array_equal(merged.scores, expected.scores)


def test_named_data_are_a_task_that_no_model_has_seen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = {"data": "digits:train=100", "model": "logistic", "clients": 2, "rounds": 1}
    paths = [tmp_path / "0", tmp_path / "1"]
    for path, partition in zip(paths, ("iid", "classes:5"), strict=True):
        run_spec(Spec.of({**spec, "partition": partition, "workers": 0}), out=path)
    name = "digits:train=40,test=300"
    few = load(Spec(data=name))
    train, test = (few.x, few.y), (few.x_test, few.y_test)
    for how in ("evolve:steps=10", "fisher"):
        merged = fr.merge(paths, how, data=name)
        same = fr.merge(paths, how, data=[train] * 2, tests=[test] * 2)
        assert torch.equal(merged.weights, same.weights)
        assert merged.tasks == (name,) and merged.scores.shape == (3, 1)
        np.testing.assert_array_equal(merged.scores[:, 0], same.scores[:, 0])
        np.testing.assert_array_equal(merged.interference, same.interference)
        assert np.isnan(merged.pairs).all() and merged.line == same.line
        assert list(merged.frame().columns) == ["model", name]
    words = ["merge", *map(str, paths), "--how", "fisher", "--data", name]
    assert code_of([*words, "--out", str(tmp_path / "merged")]) == 0
    said = capsys.readouterr().out
    assert f"{merged.scores[-1, 0]:.4f}" in said and name in said
    assert (tmp_path / "merged" / "merge.png").is_file()
    for wrong, told in (
        ("digit", "did you mean 'digits'"),
        ("synthetic:1,1", "merge: data 'synthetic:1,1'"),
        ("python-docs", "merge: data 'python-docs'"),
    ):
        assert code_of([*words[:-1], wrong]) == 2
        assert told in " ".join(capsys.readouterr().err.split())
    with pytest.raises(InputError, match="data 'digits' bring their own"):
        fr.merge(paths, data="digits", tests=[test] * 2)


def test_a_run_made_in_python_whose_model_or_start_is_not_known(
    results: list[fr.Result], folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [folder / "0", folder / "1"]
    words = f"'{paths[0]}' was made in Python, and its model is not in it; .*"
    for make in (fr.merge, fr.experts):
        with pytest.raises(InputError, match=f"{words}give fr.{make.__name__} its result.*fr.run"):
            make([saved(path) for path in paths])
    other = run(TASKS[0], nn.Linear(5, 3))
    with pytest.raises(InputError, match=f"{words}a result of the same model beside it"):
        fr.merge([saved(paths[0]), other])
    assert code_of(["merge", *map(str, paths)]) == 2
    shown = capsys.readouterr().err
    assert "fr.merge" in shown and "fedrift.analysis" not in shown
    run(TASKS[0], seed=5, out=tmp_path / "later")
    two = [saved(tmp_path / "later"), results[1]]
    fr.merge(two, "mean", tests=TASKS).frame()
    with pytest.raises(InputError, match=r"'ties' needs a common start, and that of .*later"):
        fr.merge(two, "ties:0.3")
