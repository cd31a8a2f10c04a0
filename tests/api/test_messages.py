"""What the front door says: help that explains every argument, messages that name the cause."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import fedrift as fr
from fedrift.cli import code_of
from fedrift.data import datasets
from tests.support.problems import blobs, small_run
from tests.support.product import Spec

DOCS = Path(__file__).resolve().parents[2] / "docs"
X, Y = blobs(60)


@pytest.mark.parametrize("function", [fr.run, fr.compare, fr.split])
def test_help_explains_every_argument(function: Any) -> None:
    text = inspect.getdoc(function) or ""
    explained = re.findall(r"^ {4}(\w+): ", text, flags=re.MULTILINE)
    assert explained == [*inspect.signature(function).parameters]
    assert " object at 0x" not in str(inspect.signature(function))


def test_the_commands_of_the_pages_can_be_typed() -> None:
    commands = [
        line
        for page in (DOCS / "algorithms").glob("*.md")
        for line in page.read_text(encoding="utf-8").splitlines()
        if line.startswith("fedrift run ")
    ]
    assert len(commands) > 30
    for command in commands:
        Spec(algorithm=shlex.split(command)[2]).validate()


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(5, 4)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.left(a) + b.sum()


class Line(nn.Module):
    """A class for each place of a line, with the axes in the other order."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(1, 50)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(x.unsqueeze(-1))


PLACES = torch.full((60, 8), 20)
SAID: list[tuple[Any, Any, Any, str]] = [
    (Two, X, Y, r"Two cannot be called with two samples, a batch of shape \(2, 8\)"),
    (Two, {"a": X[:, :5], "c": X}, Y, r"keyword arguments a \(2, 5\), c \(2, 8\) .*dict"),
    (Two, (X, X), Y, r"2 arguments of shape \(2, 8\), \(2, 8\) \(the tuple x"),
    (Line, X, PLACES, r"label 20.*dimension 1 of the output \(N, 8, 50\) is taken as classes"),
    (Line, X, PLACES[:, :5] // 9, r"dimension 1 of the output \(N, 8, 50\) is taken as classes"),
    (nn.Linear(8, 4), X.long(), Y, r"; the inputs are whole numbers: give x\.float\(\)"),
    (nn.Linear(8, 4), X, ["cat", "dog"] * 30, r"clients\[0\] y: list .*holds text.*number it"),
    (nn.Linear(8, 4), X, torch.ones(60, 4).long(), r"several labels at once give y\.float\(\)"),
]


def test_what_is_no_list_of_clients_is_told_the_way() -> None:
    ones = {"north": (X, Y)}
    with pytest.raises(fr.InputError, match=r"not dict; give list\(clients\.values\(\)\)"):
        fr.run("fedavg", model=nn.Linear(8, 4), clients=ones, rounds=1)  # type: ignore[arg-type]
    loader = DataLoader(TensorDataset(X, Y))
    with pytest.raises(fr.InputError, match=r"not DataLoader; give its data set \(\.dataset\)"):
        fr.run("fedavg", model=nn.Linear(8, 4), clients=[loader], rounds=1)  # type: ignore[list-item]
    how: dict[str, Any] = {"clients": [(X, X[:, 0])], "rounds": 1}
    with pytest.raises(fr.InputError, match=r"the output's shape, y\[:, None\]"):
        fr.run("fedavg", model=nn.Linear(8, 1), loss=nn.MSELoss(), **how)


@pytest.mark.parametrize(("model", "x", "y", "says"), SAID)
def test_what_does_not_fit_is_named(model: Any, x: Any, y: Any, says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run("fedavg", model=model, clients=[(x, y)], test=None, per_round=None)


def test_a_comparison_says_how_much_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    how = ["--rounds", "2", "--clients", "3", "--model", "logistic", "--workers", "0"]
    assert code_of(["compare", "fedavg", "fedprox", *how]) == 0
    said = capsys.readouterr().err
    assert "2 runs, 4 rounds in all" in said
    assert re.search(r"1 of 2: fedavg, seed 0: done, accuracy 0\.\d+, about .* left", said)
    assert re.search(r"2 of 2: fedprox, seed 0: done, accuracy 0\.\d+$", said, re.MULTILINE)


@pytest.mark.parametrize("partition", ["dirichlet", "dirichlet:0.5", "dirichlet:alpha=0.5"])
def test_a_run_says_the_alpha_that_it_has(
    partition: str, capsys: pytest.CaptureFixture[str]
) -> None:
    how = ["--rounds", "1", "--clients", "3", "--model", "logistic", "--workers", "0"]
    assert code_of(["run", "--partition", partition, "--alpha", "0.1", *how]) == 0
    assert re.search(r"^data .* samples, dirichlet:0\.1$", capsys.readouterr().err, re.MULTILINE)


def test_a_model_by_name_gets_as_many_outputs_as_there_are_labels() -> None:
    x, y = torch.randn(30, 1, 8, 8), torch.arange(30) % 3
    how: dict[str, Any] = {"clients": [(x, y)] * 2, "rounds": 1, "workers": 0}
    made = fr.run("fedavg", model="logistic", test=(x, y + 1), **how)
    assert sorted(tuple(w.shape) for w in made.tensors().values()) == [(4,), (4, 64)]
    with pytest.raises(fr.InputError, match="did you mean 'logistic'"):
        fr.run("fedavg", model="logistics", **how)
    with pytest.raises(fr.InputError, match=r"model='mlp'.*labels"):
        fr.run("fedavg", model="mlp", clients=[(x, torch.randn(30))], rounds=1)


def broken(output: Any, target: Any) -> float:
    raise ValueError("no number today")


@pytest.mark.parametrize("workers", [0, 2])
def test_a_metric_that_fails_is_named(workers: int) -> None:
    says = r"metrics\['mine'\] failed: ValueError: no number today \(test_messages.py, line \d+"
    with pytest.raises(fr.RunError, match=says) as caught:
        small_run("fedavg", metrics={"mine": broken}, workers=workers)
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_metric_does_not_stand_in_the_place_of_accuracy() -> None:
    with pytest.raises(fr.InputError, match="metrics: 'accuracy' is computed already, the share"):
        small_run("fedavg", metrics={"accuracy": lambda o, y: 0.5})
    x, y = torch.randn(60, 8), torch.randn(60, 4)
    own = {"accuracy": lambda o, y: 0.25}
    made = small_run(
        "fedavg",
        clients=[(x, y)],
        per_round=None,
        test=(x, y),
        loss=nn.functional.mse_loss,
        metrics=own,
    )
    assert made.accuracy == [0.25] * 5, "there is none of ours where targets are no classes"


MISSPELT: list[tuple[Any, dict[str, Any], str]] = [
    (small_run, {"lrr": 0.1}, r"unknown argument of run 'lrr': did you mean 'lr'\?"),
    (fr.split, {"client": 3}, r"unknown argument of split 'client': did you mean 'clients'\?"),
    (fr.merge, {"test": None}, r"unknown argument of merge 'test': did you mean 'tests'\?"),
    (fr.experts, {"routr": "ridge"}, r"argument of experts 'routr': did you mean 'router'\?"),
    (small_run, {"compress": "up=topk:0.1,no-feedbak"}, r"\(did you mean 'no-feedback'\?\)"),
    (small_run, {"compress": "upp=topk:0.1"}, r"\(did you mean 'up'\?\)"),
    (small_run, {"privacy": "gaussian:1,clp=1"}, r"no option 'clp' \(did you mean 'clip'\?\)"),
    (small_run, {"faults": "stragglers:0.1,lat=drop"}, r"no option 'lat' \(did you mean 'late'"),
    (small_run, {"faults": "stragglers:0.1,late=partail"}, r"did you mean 'partial'\?"),
    (small_run, {"devices": "lognormal:1,speeed=3"}, r"no option 'speeed' \(did you mean 'speed'"),
    (small_run, {"adapter": "lora:rnk=2"}, r"no option 'rnk' \(did you mean 'rank'\?\); write"),
    (small_run, {"adapter": "lora:how=seperate"}, r"did you mean 'separate'\?"),
    (small_run, {"algorithm": "fedavg:weights=sampels"}, r"\(did you mean 'samples'\?\)"),
    (small_run, {"algorithm": "fedprox:muu=1"}, r"option of fedprox 'muu': did you mean 'mu'\?"),
]


@pytest.mark.parametrize(("function", "given", "says"), MISSPELT)
def test_what_is_misspelt_is_answered_with_what_was_meant(
    function: Any, given: dict[str, Any], says: str
) -> None:
    first = (given.get("algorithm", "fedavg"),) if function is small_run else (X, Y)
    given = {key: value for key, value in given.items() if key != "algorithm"}
    with pytest.raises(fr.InputError, match=says):
        function(*first, **given)


def test_options_of_partitions_and_data_have_suggestions() -> None:
    with pytest.raises(fr.InputError, match=r"no option 'min_sze' \(did you mean 'min_size'\?\)"):
        fr.split(X, Y, "dirichlet:1,min_sze=2", clients=3)
    with pytest.raises(fr.InputError, match=r"no option 'trian' \(did you mean 'train'"):
        datasets.check("digits:trian=30")


def test_a_loss_per_sample_is_to_be_averaged() -> None:
    def each(output: Tensor, target: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output, target, reduction="none")

    says = r"loss: it gave a Tensor of shape \(2,\) .* one number, their mean, .*\.mean\(\)"
    with pytest.raises(fr.InputError, match=says):
        small_run("fedavg", loss=each)
    small_run("fedavg", loss=lambda o, y: each(o, y).mean(), rounds=1)


class Words(nn.Module):
    """Looks words up, and their places, which are no inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(40, 4), nn.Embedding(6, 4)
        self.out = nn.Linear(24, 4)

    def forward(self, tokens: Tensor) -> Tensor:
        told = self.words(tokens) + self.places(torch.arange(6))
        return self.out(told.flatten(1))


def words(samples: int, wrong: int | None = None, at: int = 0) -> tuple[Tensor, Tensor]:
    x = torch.arange(samples * 6).view(samples, 6) % 40
    if wrong is not None:
        x[at, 2] = wrong
    return x, torch.arange(samples) % 4


@pytest.mark.parametrize(
    ("clients", "test", "says"),
    [
        (
            [words(9, 40), words(9)],
            None,
            r"two samples, .*: 40 is outside the 40 rows of .*'words'",
        ),
        ([words(40), words(9, 47, at=7)], None, r"clients\[1\]: 47 is .* the embedding 48 rows$"),
        ([words(40), words(9, -1, at=7)], None, r"clients\[1\]: -1 is .* count from 0$"),
        ([words(9), words(9)], words(9, 99, at=8), r"test: 99 is outside the 40 rows"),
    ],
)
def test_tokens_beyond_an_embedding_are_named(clients: Any, test: Any, says: str) -> None:
    how: dict[str, Any] = {"model": Words, "per_round": None, "rounds": 1}
    with pytest.raises(fr.InputError, match=says):
        small_run("fedavg", clients=clients, test=test, **how)
    small_run("fedavg", clients=[words(9), words(9)], test=words(9), **how)


def test_tokens_that_the_model_makes_itself_are_its_own() -> None:
    class Modulo(Words):
        def forward(self, tokens: Tensor) -> Tensor:
            return super().forward(tokens % 40)

    small_run("fedavg", model=Modulo, clients=[words(40, 99, at=39)], per_round=None, test=None)


def with_defaults(**given: Any) -> Any:
    pairs = [(X[:30], Y[:30]), (X[30:], Y[30:])]
    usual = {"model": lambda: nn.Linear(X.shape[1], 4), "clients": pairs, "rounds": 1, "workers": 0}
    return {**usual, **given}


class Said(nn.Module):
    """Answers with a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(X.shape[1], 4)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"out": self.out(x)}


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"learning_rate": 0.1}, "unknown argument of run 'learning_rate': did you mean 'lr'?"),
        ({"clients": "digits"}, "data sets by name are for the command line"),
        ({"model": nn.Linear}, "model: Linear cannot be called without arguments"),
        ({"model": Said}, "the model gives a dict: return a tensor, or give a loss that takes a"),
        ({"loss": nn.CrossEntropyLoss}, "is a class; give one of it, loss=CrossEntropyLoss()"),
        ({"loss": "mze"}, "unknown loss 'mze': did you mean 'mse'?"),
        ({"loss": 2}, "loss=2 must be a function of output and target, such as torch.nn"),
        ({"data": "digits"}, "unknown argument of run 'data': did you mean 'clients'?"),
        ({"metrics": [len]}, "metrics must map names to functions of output and target, such as"),
        (
            {"clients": [(X, nn.functional.one_hot(Y, 4))]},
            "give class labels, y.argmax(dim=1)",
        ),
    ],
)
def test_the_mistakes_of_a_first_day_are_answered_with_what_helps(
    given: dict[str, Any], told: str
) -> None:
    with pytest.raises(fr.InputError, match=re.escape(told)):
        fr.run("fedavg", **with_defaults(**given))


def test_a_data_set_to_be_divided_is_told_how() -> None:
    data: Any = torch.utils.data.TensorDataset(X, Y)
    with pytest.raises(fr.InputError, match="split divides arrays; write for example x, y = next"):
        fr.split(data, None, "iid")
    x, y = next(iter(torch.utils.data.DataLoader(data, batch_size=len(data))))
    assert len(fr.split(x, y, "iid", clients=3)) == 3
    partition: Any = {"partition": "iid"}
    with pytest.raises(fr.InputError, match="did you mean 'scheme'"):
        fr.split(x, y, **partition)


def test_a_comparison_knows_who_was_in_it_and_takes_seeds(tmp_path: Path) -> None:
    made = fr.compare(["fedavg", "fedprox:mu=1"], out=tmp_path / "out", **with_defaults())
    loaded: Any = fr.load(tmp_path / "out")
    for comparison in (made, loaded):
        assert len(comparison.of("fedprox:mu=1")) == 1
        with pytest.raises(fr.InputError, match="did you mean 'fedprox:mu=1'"):
            comparison.of("fedprox:mu=2")
    with pytest.raises(fr.InputError, match=re.escape("seed=3: compare takes seeds, such as see")):
        fr.compare(["fedavg"], seed=3, **with_defaults())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("run fedavg scaffold", "fedrift compare takes several algorithms; see fedrift run --help"),
        ("run --algorithm fedavg", "No such option '--algorithm'; see fedrift run --help"),
        ("run --learning-rate 1", "No such option '--learning-rate'. Did you mean '--lr'?"),
        ("run --clients-per-round 5", "Did you mean '--per-round'?"),
        ("run nowhere:Mine", "there is no nowhere.py in"),
    ],
)
def test_a_line_that_cannot_be_run_is_told_what_to_read(
    line: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert code_of(line.split()) == 2
    assert told in capsys.readouterr().err
