"""Runs merged: statistics against direct calculation, scores, files, and what is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedrift as fr
from fedrift import InputError, merging
from fedrift.api import run_spec
from fedrift.cli import code_of
from fedrift.config import merging as config_merging
from fedrift.config.merging import RULES, check_rule
from fedrift.config.spec import Spec
from fedrift.engine.callbacks import callbacks_of
from fedrift.merging.rules import fisher, regmean
from fedrift.merging.statistics import fisher_information, gram_matrices


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.ReLU(), nn.Linear(6, 3))


def task(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    random = torch.Generator().manual_seed(seed)
    x = torch.randn(60, 5, generator=random)
    return x, (x[:, seed] > 0).long() + seed


TASKS = [task(0), task(1)]


@pytest.fixture(scope="module")
def specialists() -> list[fr.Result]:
    return [
        fr.run("fedavg", model=net, clients=[t], test=t, rounds=20, lr=0.3, workers=0, seed=0)
        for t in TASKS
    ]


EVERY = [*RULES, "task:0.5", "ties:0.3,scale=2", "dare:0.5", "evolve:steps=30,by=block,search=cma"]


@pytest.mark.parametrize("how", EVERY)
def test_every_rule(specialists: list[fr.Result], how: str) -> None:
    merged = fr.merge(specialists, how, data=TASKS, tests=TASKS)
    assert merged.scores.shape == (3, 2) and merged.measure == "accuracy"
    assert merged.scores[0, 0] == specialists[0].accuracy[-1]
    assert merged.interference[1] == merged.scores[1, 1] - merged.scores[2, 1]
    x, y = TASKS[0]
    right = (merged.module()(x).argmax(1) == y).double().mean().item()
    assert merged.scores[2, 0] == pytest.approx(right)
    each = specialists[0].weights.numel() * 4
    assert merged.bytes_up >= 2 * each and (how != "mean" or merged.bytes_up == 2 * each)
    assert torch.equal(merged.weights, fr.merge(specialists, how, data=TASKS, tests=TASKS).weights)
    assert merged.line[0] > 0 and len(merged.line) == 11


def test_the_plane_goes_through_three_models(specialists: list[fr.Result], tmp_path: Path) -> None:
    three = [*specialists, fr.run("fedavg", model=net, clients=TASKS, rounds=3, lr=0.1, workers=0)]
    tests = [*TASKS, TASKS[0]]
    merged = fr.merge(three, tests=tests)
    plane = merged.plane
    assert plane is not None
    models, x, y, loss = (np.array(plane[key]) for key in ("models", "x", "y", "loss"))
    assert loss.shape == np.shape(plane["accuracy"]) == (9, 9)
    weights = [one.weights.double().numpy() for one in three]
    for i, j in ((0, 1), (0, 2), (1, 2)):
        apart = np.linalg.norm(weights[i] - weights[j])
        assert np.linalg.norm(models[i] - models[j]) == pytest.approx(apart)
    assert models[3] == pytest.approx(models[:3].mean(0), abs=1e-5)
    # a point of the grid as the combination of the three models that has its coordinates
    sides = models[1:3] - models[0]
    share = np.linalg.solve(sides.T, [x[2], y[7]])
    there = weights[0] + share @ np.stack([w - weights[0] for w in weights[1:]])
    module = three[0].problem.module(torch.from_numpy(there).float(), {}).eval()
    losses = [nn.functional.cross_entropy(module(a), b).item() for a, b in tests]
    assert loss[7, 2] == pytest.approx(np.mean(losses), rel=1e-5)
    assert merged.plot(tmp_path / "three.png").stat().st_size > 10_000
    assert fr.merge([three[0], three[0], three[2]], tests=tests).plane is None, "one line"


def test_what_evolves_is_no_worse_than_the_mean_on_its_samples(
    specialists: list[fr.Result],
) -> None:
    mean = fr.merge(specialists, "mean", tests=TASKS).scores[-1].mean()
    assert fr.merge(specialists, "evolve", data=TASKS, tests=TASKS).scores[-1].mean() > mean - 0.1


def test_evolve_finds_the_weights_of_an_unseen_task(specialists: list[fr.Result]) -> None:
    """Few samples of a task that no model was trained on, against all coefficients of a grid."""
    problem = specialists[0].problem
    x, y = TASKS[0][0][:40], TASKS[1][1][:40]
    changes = torch.stack([one.weights - problem.w0 for one in specialists])

    def value(coefficients: torch.Tensor) -> float:
        w = problem.w0 + coefficients.float() @ changes
        return float(problem.model.loss(w, (x, y))) + 0.05 * float(coefficients.abs().sum())

    steps = torch.linspace(-1, 1, 21)
    grid = min(value(torch.tensor([a, b])) for a in steps for b in steps)
    number = len(specialists)
    unseen = [(x, y)] * number
    merged = fr.merge(specialists, "evolve", data=unseen, tests=unseen)
    found = torch.linalg.lstsq(changes.T.double(), (merged.weights - problem.w0).double()).solution
    assert value(found) < grid + 0.02
    assert value(found) < value(torch.full((number,), 1 / number)) - 0.05, "better than the mean"
    assert np.ptp(merged.scores[-1]) == 0, "one task, whoever's it is called"


@pytest.mark.parametrize("search", ["own", "cma"])
def test_a_coefficient_for_every_block(specialists: list[fr.Result], search: str) -> None:
    """One model knows the first layer and has unlearned the second, the other the other way round:
    a coefficient for a whole model is of no use, one for each layer gives what was trained."""
    result, (x, y) = specialists[0], TASKS[0]
    problem, first = result.problem, 5 * 6 + 6
    change = result.weights - problem.w0
    change[first:] *= -1
    halves = [replace(result, weights=problem.w0 + sign * change) for sign in (1, -1)]
    data, how = [(x, y)] * 2, f"evolve:steps=400,search={search}"
    whole = fr.merge(halves, how, data=data, tests=data)
    merged = fr.merge(halves, f"{how},by=block", data=data, tests=data)

    (own,) = (np.array(row) for row in whole.coefficients.values())
    assert list(whole.coefficients) == ["all"]
    expected = problem.w0.double() + (own[0] - own[1]) * change.double()
    torch.testing.assert_close(whole.weights.double(), expected, rtol=1e-6, atol=1e-6)
    assert list(merged.coefficients) == ["0", "2"]
    expected = problem.w0.double().clone()
    for place, row in zip(
        (slice(0, first), slice(first, None)), merged.coefficients.values(), strict=True
    ):
        expected[place] += (row[0] - row[1]) * change.double()[place]
    torch.testing.assert_close(merged.weights.double(), expected, rtol=1e-6, atol=1e-6)

    def value(w: torch.Tensor, coefficients: Mapping[str, Sequence[float]]) -> float:
        sizes = np.abs(list(coefficients.values())).mean(0).sum()
        return float(problem.model.loss(w, (x, y))) + 0.05 * float(sizes)

    trained = value(result.weights, {"0": (1.0, 0.0), "2": (0.0, -1.0)})
    assert value(merged.weights, merged.coefficients) < trained + 0.01
    assert value(whole.weights, whole.coefficients) > trained + 0.1
    assert merged.record()["coefficients"] == {n: list(c) for n, c in merged.coefficients.items()}


def test_coefficients_are_shown(folders: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [str(folders / "narrow"), str(folders / "ditto")]
    assert code_of(["merge", *runs, "--how", "evolve:steps=3,by=block"]) == 0
    lines = capsys.readouterr().out.splitlines()
    at = next(i for i, line in enumerate(lines) if line.startswith("coefficient in ↓ of →"))
    rows = [line.split() for line in lines[at + 1 :] if line.startswith("fc")]
    assert rows and all(len(row) == 3 and row[1][0] in "+-" for row in rows)
    assert code_of(["merge", *runs, "--how", "mean"]) == 0
    assert "coefficient" not in capsys.readouterr().out


def test_the_library_cma_is_asked_for_before_anything_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(config_merging, "find_spec", lambda name: None)
    assert code_of(["merge", "here", "there", "--how", "evolve:search=cma"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "search=cma needs the library cma: pip install 'fedrift[evolve]'" in said
    assert check_rule("evolve").words == {"by": "model", "search": "own"}


def test_fisher_information_is_the_expected_square_of_the_score(
    specialists: list[fr.Result],
) -> None:
    one, (x, _) = specialists[0], TASKS[0]
    given = fisher_information(one.problem, one.weights, x[:4])
    module = one.module().double()
    total = torch.zeros(given.numel(), dtype=torch.float64)
    for sample in x[:4].double():
        for c in range(3):
            module.zero_grad()
            log = torch.log_softmax(module(sample[None]), 1)[0, c]
            log.backward()
            g = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
            total += float(log.detach().exp()) * g**2
    torch.testing.assert_close(given, total / 4, rtol=1e-4, atol=1e-9)


def test_gram_matrices_are_of_what_enters_each_layer(specialists: list[fr.Result]) -> None:
    one, (x, _) = specialists[0], TASKS[0]
    grams = gram_matrices(one.problem, one.weights, x)
    first = np.c_[x.double().numpy(), np.ones(60)]
    np.testing.assert_allclose(grams["0.weight"], first.T @ first, rtol=1e-9)
    hidden = torch.relu(one.module()[0](x)).detach().double().numpy()  # type: ignore[index]
    second = np.c_[hidden, np.ones(60)]
    np.testing.assert_allclose(grams["2.weight"], second.T @ second, rtol=1e-4)


class Reader(nn.Module):
    """Says of every position of a text what comes next."""

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.known, self.out = nn.Embedding(4, 3), nn.Linear(3, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.known(x).cumsum(1)).transpose(1, 2)


def test_fisher_information_adds_up_over_the_positions_of_a_text() -> None:
    x = torch.randint(0, 4, (6, 5), generator=torch.Generator().manual_seed(3))
    one = fr.run("fedavg", model=Reader, clients=[(x, x.roll(-1, 1))], rounds=1, lr=1, workers=0)
    given = fisher_information(one.problem, one.weights, x[:2])
    module = one.module().double()
    total = torch.zeros(given.numel(), dtype=torch.float64)
    for text in x[:2]:
        for position, c in np.ndindex(5, 4):
            module.zero_grad()
            log = torch.log_softmax(module(text[None]), 1)[0, c, position]
            log.backward()
            g = torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])
            total += float(log.detach().exp()) * g**2
    torch.testing.assert_close(given, total / 2, rtol=1e-4, atol=1e-9)


def test_positions_that_are_filled_up_count_for_nothing() -> None:
    """Two texts of three and five tokens are what they are without their filling."""
    x = torch.randint(0, 4, (2, 5), generator=torch.Generator().manual_seed(3))
    y = x.roll(-1, 1)
    x[0, 3:], y[0, 3:] = 0, -100
    made = [
        fr.run("fedavg", model=Reader, clients=[(x, y)], rounds=1, lr=lr, workers=0)
        for lr in (0.5, 3.0)
    ]
    models, layout = [one.weights for one in made], made[0].problem.layout
    known, grams = [], []
    for one in made:
        texts = [(one.problem, one.weights, part) for part in (x[:1, :3], x[1:])]
        known.append(sum(fisher_information(*text) for text in texts) / 2)
        both = [gram_matrices(*text)["out.weight"] for text in texts]
        grams.append({"out.weight": both[0] + both[1]})
    data = [(x, y)] * 2
    torch.testing.assert_close(fr.merge(made, "fisher", data=data).weights, fisher(models, known))
    merged = fr.merge(made, "regmean", data=data).weights
    torch.testing.assert_close(merged, regmean(layout, models, grams))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("aligned", "'aligned' needs layers in a chain, and layer 'known' does not follow from"),
        ("regmean", "needs a model with layers nn.Linear that are trained; it has none"),
    ],
)
def test_models_that_a_rule_does_not_know(how: str, words: str) -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            self.first, self.known = nn.Conv1d(1, 3, 1), nn.Embedding(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.known(x).transpose(1, 2) + self.first(x[:, None].float()).mean()

    x = torch.randint(0, 4, (6, 5), generator=torch.Generator().manual_seed(3))
    data = [(x, x.roll(-1, 1))] * 2
    one = fr.run("fedavg", model=Counts, clients=data[:1], rounds=1, workers=0)
    with pytest.raises(InputError, match=words):
        fr.merge([one, one], how, data=data)


def test_regmean_of_a_model_that_is_one_layer() -> None:
    """Least squares of each, merged, are the pooled least squares."""
    random = torch.Generator().manual_seed(4)
    tasks = [
        (torch.randn(20, 3, generator=random), torch.randn(20, 2, generator=random)) for _ in "ab"
    ]
    ones = [np.c_[x.numpy(), np.ones(20)].astype(float) for x, _ in tasks]
    right = [y.double().numpy() for _, y in tasks]
    made = []
    for x, y in zip(ones, right, strict=True):
        found = np.linalg.lstsq(x, y, rcond=None)[0]
        layer = nn.Linear(3, 2).double()
        layer.weight.data, layer.bias.data = torch.tensor(found[:-1].T), torch.tensor(found[-1])
        options: dict[str, Any] = {"loss": nn.functional.mse_loss, "dtype": "float64"}
        made.append(
            fr.run("fedavg", model=layer, clients=tasks, rounds=1, lr=1e-30, workers=0, **options)
        )
    merged = fr.merge(made, "regmean:shrink=1", data=tasks).module()
    pooled = np.linalg.lstsq(np.concatenate(ones), np.concatenate(right), rcond=None)[0]
    weight, bias = (p.detach().numpy() for p in merged.parameters())
    np.testing.assert_allclose(weight.T, pooled[:-1], rtol=1e-6)
    np.testing.assert_allclose(bias, pooled[-1], rtol=1e-6)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


@pytest.mark.parametrize("how", ["fisher", "regmean", "evolve:steps=5"])
def test_a_rule_looks_at_models_with_their_running_statistics(how: str) -> None:
    made = [fr.run("fedavg", model=normalised, clients=[t], rounds=3, workers=0) for t in TASKS]
    first = fr.merge(made, how, data=TASKS, tests=TASKS).weights
    for one in made:  # whoever has used the model before
        one.problem.model.begin((), {}, 1.0)
    assert torch.equal(first, fr.merge(made, how, data=TASKS, tests=TASKS).weights)


def test_saved(specialists: list[fr.Result], tmp_path: Path) -> None:
    merged = fr.merge(specialists, tests=TASKS)
    folder = merged.save(tmp_path / "merged")
    assert merged.plot(folder / "merge.png").read_bytes().startswith(b"\x89PNG")
    kept = json.loads((folder / "merge.json").read_text())
    assert kept["how"] == "mean" and len(kept["scores"]) == 3
    assert (folder / "model.safetensors").stat().st_size > 100


def test_the_picture_says_what_its_rows_and_columns_are(
    specialists: list[fr.Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedrift.figures import merging as picture

    drawn: list[Any] = []
    monkeypatch.setattr(picture, "save", lambda figure, path: drawn.append(figure) or path)
    how = "evolve:steps=3,by=block,search=cma"
    merged = fr.merge(specialists, how, data=TASKS, tests=TASKS)
    merged.plot(tmp_path / "merge.png")
    scores, pairs, line = drawn[0].axes
    assert [axis.get_xlabel() for axis in (scores, pairs)] == ["task", "task"]
    assert pairs.get_ylabel() == "merged with this one alone"
    assert len(pairs.texts) == 2, "none for a model with itself"
    last = scores.get_yticklabels()[-1].get_text()
    assert "\n" in last and last.replace("\n", "").replace(" ", "") == f"merged:{how}"
    assert line.get_title() == "between the first two models"


def test_unfinished_runs_and_comparisons_are_refused_in_one_sentence(
    folders: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(report: fr.RoundReport) -> None:
        raise KeyboardInterrupt

    words = {"data": "digits:train=100,test=50", "model": "mlp:hidden=4,depth=1", "clients": 2}
    whole = Spec.of({**words, "rounds": 3, "steps": 1, "workers": 0, "partition": "iid"})
    with pytest.raises(KeyboardInterrupt):
        run_spec(whole, out=tmp_path / "half", callbacks=callbacks_of([], stop))
    shutil.copytree(folders / "narrow", tmp_path / "both" / "runs" / "narrow-s0")
    for name, said in (("half", "is not finished"), ("both", "is no run folder but a comparison")):
        for command in ("merge", "experts"):
            assert code_of([command, str(tmp_path / name), str(folders / "narrow")]) == 2
            error = " ".join(capsys.readouterr().err.split())
            assert said in error and error.count("error") == 1


def test_a_shared_model_beside_those_of_the_clients_is_merged(folders: Path) -> None:
    assert fr.merge([folders / "ditto", folders / "narrow"]).scores.shape == (3, 2)


def test_a_result_without_a_model_for_all_is_refused() -> None:
    x, y = TASKS[0]
    made = fr.run("fedper", model=Parts, clients=[(x, y)] * 2, rounds=1, workers=0)
    with pytest.raises(InputError, match=r"merge: 'fedper 1' has no model for all"):
        fr.merge([made, made])


class Parts(nn.Sequential):
    head = "1"

    def __init__(self) -> None:
        super().__init__(nn.Linear(TASKS[0][0].shape[1], 4), nn.Linear(4, 9))


def test_small_differences_keep_their_digits(
    folders: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merging, "_cost", lambda scores, measure: np.array([0.0000123, -2e-6]))
    assert code_of(["merge", str(folders / "narrow"), str(folders / "ditto")]) == 0
    assert "narrow +0.000012, ditto -0.000002" in " ".join(capsys.readouterr().out.split())


def test_what_cannot_be_merged_is_refused(specialists: list[fr.Result]) -> None:
    x, y = TASKS[0]
    other = fr.run("fedavg", model=nn.Linear(5, 3), clients=[(x, y)], rounds=1, workers=0)
    with pytest.raises(InputError, match="different architectures"):
        fr.merge([specialists[0], other])
    later = fr.run("fedavg", model=net, clients=[(x, y)], rounds=1, workers=0, seed=5)
    with pytest.raises(InputError, match="needs a common start"):
        fr.merge([specialists[0], later], "ties:0.2")
    assert fr.merge([specialists[0], later]).scores.shape == (3, 2)
    with pytest.raises(InputError, match="has no data to look at"):
        fr.merge(specialists, "fisher")
    with pytest.raises(InputError, match="no model is given"):
        fr.merge([])


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("media", "unknown merge rule 'media'"),
        ("ties:2", "keep must be a number of at least 0 and at most 1, not '2'"),
        ("mean:3", "write mean"),
        ("task:scale=0.1,keep=2", "has no option 'keep'"),
        ("evolve:by=layer", "'evolve': by must be model or block, not 'layer'"),
        ("evolve:search=nevergrad", "search must be own or cma, not 'nevergrad'"),
        ("evolve:serch=cma", r"has no option 'serch' \(did you mean 'search'\?\)"),
    ],
)
def test_a_wrong_rule_is_refused(specialists: list[fr.Result], how: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        fr.merge(specialists, how)


def test_the_ledger_has_the_one_exchange(specialists: list[fr.Result]) -> None:
    merged = fr.merge(specialists, "regmean", data=TASKS, tests=TASKS)
    (entry,) = merged.ledger.entries
    grams = (6 * 6 + 7 * 7) * 8  # inputs and a one for the bias, in double precision
    each = specialists[0].weights.numel() * 4
    assert {n: s.total for n, s in entry.up.items()} == {"w": 2 * each, "statistics": 2 * grams}
    assert entry.phase == "merge" and entry.replied == (0, 1)


def test_interference_of_pairs(specialists: list[fr.Result]) -> None:
    two = fr.merge(specialists, tests=TASKS)
    assert two.pairs[0, 1] == two.interference[1] and two.pairs[1, 0] == two.interference[0]
    three = fr.merge([*specialists, specialists[0]], tests=[*TASKS, TASKS[0]])
    assert three.pairs.shape == (3, 3) and not np.diagonal(three.pairs).any()
    np.testing.assert_allclose(three.pairs[:2, :2], two.pairs)
    assert three.pairs[0, 2] == 0.0, "merged with itself it loses nothing"
    assert not np.isnan(three.pairs).any() and np.isnan(fr.merge(specialists).pairs).all()


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs that do not fit together: texts of two alphabets, and images in two architectures."""
    place = tmp_path_factory.mktemp("unlike")
    small = {"clients": 2, "rounds": 1, "steps": 1, "workers": 0, "partition": "iid"}
    for name, sentence in (("latin", "the quick brown fox. "), ("greek", "άλφα βήτα γάμμα. ")):
        file = place / f"{name}.txt"
        file.write_text(sentence * 100, encoding="utf-8")
        text = {"data": f"text:{file},context=8", "model": "gpt:layers=1,width=8,heads=2,context=8"}
        run_spec(Spec.of({**small, **text}), out=place / name)
    for name, width in (("narrow", 4), ("wide", 5)):
        images = {"data": "digits:train=100,test=50", "model": f"mlp:hidden={width},depth=1"}
        run_spec(Spec.of({**small, **images}), out=place / name)
    for algorithm in ("localonly", "fedper", "ditto(fedavg)"):
        images = {"data": "digits:train=100,test=50", "model": "mlp:hidden=4,depth=1"}
        run_spec(Spec.of({**small, **images, "algorithm": algorithm}), out=place / algorithm[:5])
    return place


@pytest.mark.parametrize("command", ["merge", "experts"])
@pytest.mark.parametrize(
    ("one", "two", "words"),
    [
        (
            "latin",
            "greek",
            "read texts of other alphabets, so that equal tokens mean other characters; run them "
            "on data with alphabet=bytes",
        ),
        (
            "narrow",
            "wide",
            "are models of different architectures (310 and 385 trained parameters)",
        ),
        ("narrow", "latin", "are models of different architectures"),
        ("local", "narrow", "has no model for all: its clients keep a part of theirs, or all"),
        ("narrow", "fedpe", "has no model for all"),
    ],
)
def test_runs_that_do_not_fit_together_are_refused_in_one_sentence(
    command: str, one: str, two: str, words: str, folders: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [str(folders / one), str(folders / two)]
    assert code_of([command, *runs]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert said.startswith(f"error: {command}: ") and words in said and said.count("error") == 1
    with pytest.raises(InputError, match=words.split(" (")[0]):
        getattr(fr, command)(runs)


@pytest.mark.parametrize("place", ["first", "last"])
@pytest.mark.parametrize("field", ["data", "tests"])
def test_tokens_that_the_model_does_not_know(field: str, place: str, folders: Path) -> None:
    x, y = torch.zeros(6, 8, dtype=torch.long), torch.zeros(6, 8, dtype=torch.long)
    x[0 if place == "first" else -1, 3] = 500
    given = {field: [None, (x, y)]}
    for what in (fr.merge, fr.experts):
        with pytest.raises(InputError, match=rf"{field}\[1\]: 500 is outside the .* rows"):
            what([folders / "latin"] * 2, **given)  # type: ignore[operator]


def test_the_command_refuses_what_it_would_write_over_and_a_single_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = Spec(data="digits:train=100", model="logistic", clients=2, rounds=1, workers=0)
    for seed in (0, 1):
        run_spec(replace(spec, seed=seed), out=tmp_path / f"run{seed}")
    runs = [str(tmp_path / f"run{seed}") for seed in (0, 1)]
    assert code_of(["merge", runs[0], "--out", str(tmp_path / "new")]) == 2
    assert "merge: one model is given; name two or more" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    (tmp_path / "file").write_text("mine")
    for out in ("file", "run1"):
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        assert code_of(["merge", *runs, "--out", str(tmp_path / out)]) == 2
        assert "name a new folder" in capsys.readouterr().err
        assert before == {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    assert code_of(["merge", *runs, "--out", str(tmp_path / "new")]) == 0
    assert code_of(["merge", *runs, "--out", str(tmp_path / "new")]) == 2
