"""Several trained models made one, without training: `merge`, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.analysis.landscape import grid_around, measure_surface, plane_by
from fedrift.analysis.matching import Chain, align_all
from fedrift.config.fields import whole
from fedrift.config.merging import RULES, Chosen, check_rule
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.evaluation import Evaluator, combine, evaluate_chunk
from fedrift.core.flat import Vec
from fedrift.core.isolation import one_thread
from fedrift.core.messages import Size
from fedrift.core.plain_files import write_file
from fedrift.core.problem import Problem
from fedrift.engine.ledger import Entry, Ledger
from fedrift.engine.result import Result
from fedrift.errors import InputError, named_arguments
from fedrift.merging import rules
from fedrift.merging.specialists import (
    Specialist,
    check_alike,
    check_models,
    check_start,
    check_trained_whole,
    on_unseen,
    specialists_of,
)
from fedrift.merging.statistics import fisher_information, gram_matrices
from fedrift.report.saved import SavedRun
from fedrift.storage.jsonl import dump

SAMPLES = {"fisher": 200, "regmean": 2000, "evolve": 200}
"""Of each model's own data, where a rule looks at any."""
ALL = "all"  # parameters, where a model has one coefficient
POINTS = 11  # on the line between two models
GRID = 9  # points on each side of the plane through three
Coefficients = Mapping[str, tuple[float, ...]]


@dataclass(frozen=True, eq=False, repr=False)
class Merged:
    """One model made of several, and how well it does what they did."""

    how: str  # the rule as it was named
    weights: Vec  # of the merged model, flat
    buffers: Mapping[str, Tensor]  # its buffers and frozen parameters, by name
    problem: Problem  # model, loss and layout
    names: tuple[str, ...]
    """Of the models."""
    tasks: tuple[str, ...]
    """What they are measured on: the task of every model, which has its name, or one that none has
    seen."""
    scores: np.ndarray
    """Accuracy (or loss) of every model, and in the last row of the merged one, on every task."""
    measure: str  # `accuracy`, or `loss` where there is none
    line: tuple[float, ...]
    """Mean loss over all tasks on the straight line from the first model to the second."""
    plane: Mapping[str, Any] | None
    """The plane through the first three models: mean loss and accuracy over all tasks (a row for
    every `y`, a column for every `x`), and where in it the models and the merged one stand; None
    if there are fewer, or if they stand on one line."""
    pairs: np.ndarray
    """Row i, column j: what task j loses when its model is merged with model i alone; NaN if that
    was not measured."""
    ledger: Ledger
    """One exchange: the holders of the models send weights, and the statistics that the rule asks
    for."""
    coefficients: Coefficients
    """What `evolve` found: one for every model, under `all` or for every block of layers."""

    def __repr__(self) -> str:
        """One line: what was merged by which rule, and how well it does."""
        known = self.scores[-1][~np.isnan(self.scores[-1])]
        told = f"{self.measure} {known.mean():.4f}" if len(known) else "not evaluated: no test data"
        return f"<Merged: {self.how} of {len(self.names)} models, {told}>"

    @property
    def interference(self) -> np.ndarray:
        """What merging costs every model on its own task, or on the one that none has seen: its
        score minus the merged one's; of a loss, the merged one's minus its own."""
        return _cost(self.scores, self.measure)

    @property
    def bytes_up(self) -> int:
        return self.ledger.bytes_up

    def module(self) -> nn.Module:
        """A module with the merged weights."""
        return self.problem.module(self.weights, self.buffers)

    def frame(self) -> Any:
        """One row per model, the merged one last: its score on every task; NaN where a task has
        no test. Refused where none has."""
        self._check_evaluated("frame")
        from fedrift.storage.run_record import as_frame

        rows = zip((*self.names, "merged"), self.scores.tolist(), strict=True)
        return as_frame([{"model": n, **dict(zip(self.tasks, s, strict=True))} for n, s in rows])

    def record(self) -> dict[str, Any]:
        """Everything but the weights, as JSON can hold it."""
        return {
            "how": self.how,
            "models": list(self.names),
            "tasks": list(self.tasks),
            "measure": self.measure,
            "scores": self.scores.tolist(),
            "interference": self.interference.tolist(),
            "pairs": self.pairs.tolist(),
            "line": list(self.line),
            "plane": self.plane,
            "coefficients": {name: list(row) for name, row in self.coefficients.items()},
            "bytes_up": self.bytes_up,
            "ledger": self.ledger.rows(),
        }

    def plot(self, path: str | Path) -> Path:
        """Every model on every task, the line between the first two and the plane through the
        first three, as a picture."""
        from fedrift.figures.merging import save_picture

        self._check_evaluated("plot")
        return save_picture(self.record(), Path(path))

    def _check_evaluated(self, what: str) -> None:
        if np.isnan(self.scores).all():
            raise InputError(
                f"{what}: nothing was evaluated, so there are no scores; give fr.merge tests=[…], "
                "an (x, y) or Dataset per model"
            )

    def save(self, folder: str | Path) -> Path:
        """`model.safetensors` and `merge.json` in a folder."""
        from safetensors.torch import save

        folder = Path(folder)
        tensors = {**self.problem.layout.named(self.weights), **self.buffers}
        whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
        write_file(folder / "model.safetensors", save(whole))
        write_file(folder / "merge.json", dump(self.record(), indent=1) + "\n")
        return folder


@named_arguments
def merge(
    models: Sequence[str | Path | Result | SavedRun],
    how: str = "mean",
    *,
    data: str | Sequence[Any] | None = None,
    tests: Sequence[Any] | None = None,
    data_dir: str | None = None,
    seed: int = 0,
) -> Merged:
    """One model made of several trained ones, without training.

    Args:
        models: run folders, what `load` returns of them, or results of `run`. A run that was made
            in Python does not hold its model: it needs a result of the same model beside it.
        how: the rule: mean, task:0.3, ties:0.2, dare:0.9, fisher, regmean, aligned or evolve.
        data: an (x, y) or Dataset per model that fisher, regmean and evolve may look at; folders
            of named data bring their training data, so None stands for these. Or the name of
            data, such as digits: a task that no model has seen, whose training samples the rule
            looks at, and whose test all models are measured on.
        tests: an (x, y) or Dataset per model, the test of its task; folders of named data bring
            theirs. Without any, there are weights but no scores.
        data_dir: where data files are looked for.
        seed: of everything that is drawn.
    """
    rule = check_rule(how)
    whole(0).read(seed, "seed")
    check_models(models, "merge")
    if len(models) == 1:
        raise InputError("merge: one model is given; name two or more")
    if isinstance(data, str):
        if tests is not None:
            raise InputError(f"merge: tests is given, and data '{data}' bring their own; leave it")
        specialists = on_unseen(specialists_of(models, None, None, data_dir), data, data_dir)
        tasks: tuple[str, ...] = (data,)
    else:
        specialists = specialists_of(models, data, tests, data_dir)
        tasks = tuple(one.name for one in specialists)
    check_alike(specialists, "merge")
    if RULES[rule.name].needs_start:
        check_start(specialists, rule.name)
    if rule.name == "aligned":
        check_trained_whole(specialists)
    with one_thread():
        return _Merger(how, rule, specialists, tasks, seed).merged()


def _cost(scores: np.ndarray, measure: str) -> np.ndarray:
    own = scores[:-1, 0] if scores.shape[1] == 1 else np.diagonal(scores[:-1])
    merged = scores[-1]
    return own - merged if measure == "accuracy" else merged - own


Score = Callable[[EvaluatedModel], Mapping[str, Any]]


@dataclass(frozen=True, eq=False)
class _Merger:
    """A rule with its options, and the models it is for."""

    how: str
    rule: Chosen
    specialists: Sequence[Specialist]
    names: tuple[str, ...]
    """Of the tasks: one for every model, or a single one that none has seen."""
    seed: int

    def merged(self) -> Merged:
        first, models = self.specialists[0], self.specialists
        known = [self._statistics(one) for one in models]
        whole, coefficients = self._made(models, known)
        tasks = [_score_on(one) for one in models[: len(self.names)]]
        measured = [
            [score(model) for score in tasks] for model in (*map(_evaluated, models), whole)
        ]
        key = "accuracy" if all("accuracy" in m for row in measured for m in row) else "loss"
        scores = np.array([[m.get(key, np.nan) for m in row] for row in measured], np.float64)
        moved = dict(zip(first.problem.moving, whole.buffers, strict=True)) | dict(whole.frozen)
        return Merged(
            how=self.how,
            weights=whole.w,
            buffers=moved,
            problem=first.problem,
            names=tuple(s.name for s in models),
            tasks=self.names,
            scores=scores,
            measure=key,
            line=_line(models, tasks, whole),
            plane=_plane(models, tasks, whole),
            pairs=self._pairs(known, tasks, scores, key),
            ledger=Ledger([self._exchange(known)]),
            coefficients=coefficients,
        )

    def _statistics(self, one: Specialist) -> Mapping[str, Tensor]:
        """What the holder of a model sends beside it."""
        if self.rule.name not in ("fisher", "regmean"):
            return {}
        (x, y), problem = one.some(self._samples, self.seed), one.problem
        _settle(problem, _evaluated(one))
        if self.rule.name == "fisher":
            return {"fisher": fisher_information(problem, one.w, x, y)}
        return gram_matrices(problem, one.w, x, y)

    @property
    def _samples(self) -> int:
        return int(self.rule.numbers.get("samples", SAMPLES.get(self.rule.name, 0)))

    def _weights(self, those: Sequence[Specialist], known: Sequence[Mapping[str, Tensor]]) -> Vec:
        models, problem, options = [one.w for one in those], those[0].problem, self.rule.numbers
        start = problem.w0
        if self.rule.name == "task":
            return rules.task_arithmetic(start, models, options["scale"])
        if self.rule.name == "ties":
            return rules.ties(start, models, options["keep"], options["scale"])
        if self.rule.name == "dare":
            scale = options.get("scale", 1.0 / len(models))
            return rules.dare(start, models, options["drop"], scale, self.seed)
        if self.rule.name == "fisher":
            return rules.fisher(models, [one["fisher"] for one in known])
        if self.rule.name == "regmean":
            grams = [dict(one) for one in known]
            return rules.regmean(problem.layout, models, grams, options.get("shrink", 0.9))
        if self.rule.name == "aligned":
            return rules.mean(align_all(_chain(problem), models, seed=self.seed))
        return rules.mean(models)

    def _made(
        self, those: Sequence[Specialist], known: Sequence[Mapping[str, Tensor]]
    ) -> tuple[EvaluatedModel, Coefficients]:
        """Merged weights, and the mean of the running statistics."""
        buffers = tuple(
            torch.stack([b.double() for b in same]).mean(0).to(same[0].dtype)
            for same in zip(*(one.buffers for one in those), strict=True)
        )
        around = EvaluatedModel(those[0].w, buffers, frozen=dict(those[0].frozen or {}))
        if self.rule.name == "evolve":
            w, coefficients = self._evolved(those, around)
            return replace(around, w=w), coefficients
        return replace(around, w=self._weights(those, known)), {}

    def _evolved(
        self, those: Sequence[Specialist], around: EvaluatedModel
    ) -> tuple[Vec, Coefficients]:
        """Judged on samples of the tasks, with the running statistics of what is made."""
        models, problem = [one.w for one in those], those[0].problem
        batches = [one.some(self._samples, self.seed) for one in those[: len(self.names)]]
        layout, is_by_block = problem.layout, self.rule.words["by"] == "block"
        owners = rules.blocks(layout) if is_by_block else [ALL] * len(layout.names)
        names = list(dict.fromkeys(owners))
        spans = rules.spans(layout, owners)
        columns, places = [names.index(owner) for owner, _ in spans], [place for _, place in spans]
        _settle(problem, around)

        def mixed(coefficients: Tensor) -> Vec:
            return rules.weighted(problem.w0, models, coefficients[:, columns], places)

        def loss(coefficients: Tensor) -> float:
            w = mixed(coefficients)
            fit = sum(float(problem.model.loss(w, batch)) for batch in batches) / len(batches)
            return rules.penalised(fit, coefficients)

        search = rules.SEARCHES[self.rule.words["search"]]
        best = search(loss, len(models), len(names), int(self.rule.numbers["steps"]), self.seed)
        found = {name: tuple(row) for name, row in zip(names, best.T.tolist(), strict=True)}
        return mixed(best), found

    def _pairs(
        self,
        known: Sequence[Mapping[str, Tensor]],
        tasks: Sequence[Score],
        scores: np.ndarray,
        key: str,
    ) -> np.ndarray:
        number = len(self.specialists)
        lost = np.zeros((number, number))
        if np.isnan(scores).any() or len(tasks) < number:
            return np.full_like(lost, np.nan)
        for i, j in combinations(range(number), 2):
            row = scores[-1]
            if number > 2:
                both = [self.specialists[i], self.specialists[j]]
                made, _ = self._made(both, [known[i], known[j]])
                row = np.array([score(made)[key] if n in (i, j) else 0.0
                                for n, score in enumerate(tasks)])  # fmt: skip
            cost = _cost(np.vstack((scores[:-1], row)), key)
            lost[i, j], lost[j, i] = cost[j], cost[i]
        return lost

    def _exchange(self, known: Sequence[Mapping[str, Tensor]]) -> Entry:
        everybody = tuple(range(len(self.specialists)))
        up = {"w": Size(tensors=sum(one.w.nbytes for one in self.specialists))}
        beside = sum(t.nbytes for one in known for t in one.values())
        if beside:
            up["statistics"] = Size(tensors=beside)
        looks = self._samples * len(everybody) if self.rule.name in ("fisher", "regmean") else 0
        return Entry(
            round=1,
            phase="merge",
            asked=everybody,
            replied=everybody,
            nonfinite=(),
            down={},
            up=up,
            gradients=looks if self.rule.name == "fisher" else 0,
            forwards=looks if self.rule.name == "regmean" else 0,
            steps=0,
        )


def _chain(problem: Problem) -> Chain:
    try:
        return Chain.of(problem.layout)
    except InputError as error:
        raise InputError(
            f"'aligned' needs layers in a chain, and {error}; use mean, or another rule"
        ) from None


def _evaluated(one: Specialist) -> EvaluatedModel:
    return EvaluatedModel(one.w, one.buffers, frozen=dict(one.frozen or {}))


def _settle(problem: Problem, shown: EvaluatedModel) -> None:
    """Put the running statistics and what was decided during the run into the bound model."""
    problem.model.begin(shown.buffers, shown.frozen, shown.temperature)


def _score_on(specialist: Specialist) -> Score:
    """What a model gets in the task of a specialist; nothing if there is no test."""
    if specialist.test is None:
        return lambda _: {}
    evaluator = Evaluator(specialist.problem, *specialist.test, evaluate_chunk)
    return lambda model: combine(evaluator.chunks(model))  # type: ignore[arg-type]


def _line(
    specialists: Sequence[Specialist], tasks: Sequence[Score], whole: EvaluatedModel
) -> tuple[float, ...]:
    if len(specialists) < 2 or any(s.test is None for s in specialists):
        return ()
    a, b = specialists[0].w.double(), specialists[1].w.double()
    points = (a + t * (b - a) for t in np.linspace(0, 1, POINTS))
    return tuple(_mean_score(w, tasks, whole)[0] for w in points)


def _mean_score(
    w: Vec, tasks: Sequence[Score], whole: EvaluatedModel
) -> tuple[float, float | None]:
    """Loss and accuracy over all tasks, of weights with the merged model's running statistics."""
    shown = [score(replace(whole, w=w.to(whole.w.dtype))) for score in tasks]
    loss = float(np.mean([one["loss"] for one in shown]))
    is_right = all("accuracy" in one for one in shown)
    return loss, float(np.mean([one["accuracy"] for one in shown])) if is_right else None


def _plane(
    specialists: Sequence[Specialist], tasks: Sequence[Score], whole: EvaluatedModel
) -> Mapping[str, Any] | None:
    if len(specialists) < 3 or any(s.test is None for s in specialists):
        return None
    models = [one.w.double() for one in specialists[:3]]
    try:
        through = plane_by(torch.ones_like(models[0]), *models)
    except InputError:  # they stand on one line
        return None
    places = [through.place(w.double())[:2] for w in (*models, whole.w)]
    x, y = grid_around(places[:3], GRID)
    score = partial(_mean_score, tasks=tasks, whole=whole)
    surface = measure_surface(score, through.point, x.tolist(), y.tolist())
    return {**asdict(surface), "models": places}
