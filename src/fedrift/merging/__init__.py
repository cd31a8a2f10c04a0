"""Several trained models made one, without training: `merge`, and what came of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.analysis.matching import Chain, align_all
from fedrift.analysis.saved import Loader
from fedrift.config.merging import RULES, check_rule
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.evaluation import Evaluator, combine, evaluate_chunk
from fedrift.core.flat import Batch, Vec, count, take
from fedrift.core.problem import Problem
from fedrift.engine.execute import one_thread
from fedrift.engine.result import Result
from fedrift.errors import InputError
from fedrift.merging import rules
from fedrift.merging.statistics import fisher_information, gram_matrices
from fedrift.rng import generator
from fedrift.storage.jsonl import dump, replace_bytes

SAMPLES = {"fisher": 200, "regmean": 2000, "evolve": 200}
"""Of each model's own data, where a rule looks at any."""
PENALTY = 0.05  # of the coefficients' absolute values, in `evolve`
POINTS = 11  # on the line between two models


@dataclass(frozen=True, eq=False)
class Specialist:
    """One of the models that are merged, its data to look at, and the test of its own task."""

    name: str
    problem: Problem
    w: Vec
    buffers: tuple[Tensor, ...] = ()
    frozen: Mapping[str, Tensor] | None = None
    data: Batch | None = None
    test: Batch | None = None

    def some(self, samples: int, seed: int) -> Batch:
        """Some of its data, drawn once."""
        if self.data is None:
            raise InputError(f"merge: '{self.name}' has no data to look at; give data=…")
        x, y = self.data
        chosen = generator(seed, "merge").permutation(count(x))[:samples]
        return take(x, torch.from_numpy(np.sort(chosen))), take(
            y, torch.from_numpy(np.sort(chosen))
        )


@dataclass(frozen=True, eq=False)
class Merged:
    """One model made of several, and how well it does what they did."""

    how: str
    weights: Vec
    buffers: Mapping[str, Tensor]
    problem: Problem
    names: tuple[str, ...]
    """Of the models; every one stands for the task it was trained on."""
    scores: np.ndarray
    """Accuracy (or loss) of every model, and in the last row of the merged one, on every task."""
    measure: str
    line: tuple[float, ...]
    """Mean loss over all tasks on the straight line from the first model to the second."""
    bytes_up: int
    """What the models' holders would send: weights, and the statistics that the rule asks for."""

    @property
    def interference(self) -> np.ndarray:
        """What merging costs every task: the score of its own model minus the merged one's."""
        return np.diagonal(self.scores[:-1]) - self.scores[-1]

    def module(self) -> nn.Module:
        """A module with the merged weights."""
        return self.problem.module(self.weights, self.buffers)

    def frame(self) -> Any:
        """One row per model, the merged one last: its score on every task."""
        from fedrift.storage.run_folder import as_frame

        rows = zip((*self.names, "merged"), self.scores.tolist(), strict=True)
        return as_frame([{"model": n, **dict(zip(self.names, s, strict=True))} for n, s in rows])

    def record(self) -> dict[str, Any]:
        """Everything but the weights, as JSON can hold it."""
        return {
            "how": self.how,
            "models": list(self.names),
            "measure": self.measure,
            "scores": self.scores.tolist(),
            "interference": self.interference.tolist(),
            "line": list(self.line),
            "bytes_up": self.bytes_up,
        }

    def plot(self, path: str | Path) -> Path:
        """Every model on every task, and the line between the first two, as a picture."""
        from fedrift.figures.merging import save_picture

        return save_picture(self.record(), Path(path))

    def save(self, folder: str | Path) -> Path:
        """`model.safetensors` and `merge.json` in a folder."""
        from safetensors.torch import save

        folder = Path(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            tensors = {**self.problem.layout.named(self.weights), **self.buffers}
            whole = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
            replace_bytes(folder / "model.safetensors", save(whole))
            replace_bytes(folder / "merge.json", (dump(self.record(), indent=1) + "\n").encode())
        except OSError as error:
            raise InputError(f"out '{folder}' cannot be written: {error.strerror}") from None
        return folder


def merge(
    models: Sequence[str | Path | Result],
    how: str = "mean",
    *,
    data: Sequence[Batch] | None = None,
    tests: Sequence[Batch] | None = None,
    data_dir: str | None = None,
    seed: int = 0,
) -> Merged:
    """One model made of several trained ones, without training.

    Args:
        models: run folders, or results of `run`.
        how: the rule: mean, task:0.3, ties:0.2, dare:0.9, fisher, regmean, aligned or evolve.
        data: for results, an (x, y) each that fisher, regmean and evolve may look at; folders of
            named data bring their training data.
        tests: for results, the test of each one's task.
        data_dir: where data files are looked for.
        seed: of everything that is drawn.
    """
    named, options = check_rule(how)
    if len(models) < 1:
        raise InputError("merge: no model is given; name run folders or give results")
    loader = Loader(data_dir)
    specialists = [
        _of_result(model, i, data, tests)
        if isinstance(model, Result)
        else _of_folder(model, loader)
        for i, model in enumerate(models)
    ]
    _check_alike(specialists)
    if RULES[named.name].needs_start:
        _check_start(specialists, named.name)
    with one_thread():
        weights, sent = _merged(named.name, options, specialists, seed)
        return _scored(how, specialists, weights, sent)


def _of_folder(folder: str | Path, loader: Loader) -> Specialist:
    case = loader.case(folder, str(folder))
    split = case.task.split
    whole = None if split.make is not None else (split.x, split.y)
    shown = case.shown
    return Specialist(
        str(folder), case.task.problem, shown.w, shown.buffers, shown.frozen, whole, case.task.test
    )


def _of_result(
    result: Result, i: int, data: Sequence[Batch] | None, tests: Sequence[Batch] | None
) -> Specialist:
    problem = result.problem
    buffers = tuple(result.buffers[name] for name in problem.moving)
    return Specialist(
        f"{result.info.get('algorithm', 'run')} {i + 1}",
        problem,
        result.weights,
        buffers,
        {n: t for n, t in result.buffers.items() if n not in problem.moving},
        None if data is None else data[i],
        None if tests is None else tests[i],
    )


def _check_alike(specialists: Sequence[Specialist]) -> None:
    first = specialists[0]
    for other in specialists[1:]:
        if other.problem.layout != first.problem.layout:
            raise InputError(
                f"merge: '{first.name}' and '{other.name}' are models of different architectures "
                f"({first.w.numel():,} and {other.w.numel():,} parameters); merge runs of one model"
            )


def _check_start(specialists: Sequence[Specialist], rule: str) -> None:
    first = specialists[0]
    for other in specialists[1:]:
        if not torch.equal(other.problem.w0, first.problem.w0):
            raise InputError(
                f"merge rule '{rule}' needs a common start, and '{first.name}' and '{other.name}' "
                "began with other weights; run them with the same seed, or use mean or aligned"
            )


def _merged(
    rule: str, options: Mapping[str, float], specialists: Sequence[Specialist], seed: int
) -> tuple[Vec, int]:
    """The merged weights, and how many bytes of statistics the rule needs besides the models."""
    models, problem = [one.w for one in specialists], specialists[0].problem
    start, samples = problem.w0, int(options.get("samples", SAMPLES.get(rule, 0)))
    if rule == "task":
        return rules.task_arithmetic(start, models, options["scale"]), 0
    if rule == "ties":
        return rules.ties(start, models, options["keep"], options["scale"]), 0
    if rule == "dare":
        scale = options.get("scale", 1.0 / len(models))
        return rules.dare(start, models, options["drop"], scale, seed), 0
    if rule == "fisher":
        known = [
            fisher_information(problem, one.w, one.some(samples, seed)[0]) for one in specialists
        ]
        return rules.fisher(models, known), sum(f.numel() for f in known) * start.element_size()
    if rule == "regmean":
        grams = [gram_matrices(problem, one.w, one.some(samples, seed)[0]) for one in specialists]
        sent = sum(g.numel() * g.element_size() for own in grams for g in own.values())
        return rules.regmean(problem.layout, models, grams, options.get("shrink", 0.9)), sent
    if rule == "aligned":
        return rules.mean(align_all(Chain.of(problem.layout), models, seed=seed)), 0
    if rule == "evolve":
        return _evolved(specialists, int(options.get("steps", 200)), samples, seed), 0
    return rules.mean(models), 0


def _evolved(specialists: Sequence[Specialist], steps: int, samples: int, seed: int) -> Vec:
    models, problem = [one.w for one in specialists], specialists[0].problem
    batches = [one.some(samples, seed) for one in specialists]
    groups = [slice(0, problem.w0.numel())]

    def loss(weights: Tensor) -> float:
        w = rules.weighted(problem.w0, models, weights, groups)
        fit = sum(float(problem.model.loss(w, batch)) for batch in batches) / len(batches)
        return fit + PENALTY * float(weights.abs().sum())

    best = rules.search(loss, len(models), len(groups), steps, seed)
    return rules.weighted(problem.w0, models, best, groups)


def _scored(how: str, specialists: Sequence[Specialist], weights: Vec, sent: int) -> Merged:
    first = specialists[0]
    buffers = tuple(
        torch.stack([b.double() for b in those]).mean(0).to(those[0].dtype)
        for those in zip(*(one.buffers for one in specialists), strict=True)
    )
    frozen = dict(first.frozen or {})
    whole = EvaluatedModel(weights, buffers, frozen=frozen)
    shown = [EvaluatedModel(s.w, s.buffers, frozen=dict(s.frozen or {})) for s in specialists]
    tasks = [_score_on(s) for s in specialists]
    measured = [[score(model) for score in tasks] for model in (*shown, whole)]
    has_accuracy = all("accuracy" in m for row in measured for m in row)
    key = "accuracy" if has_accuracy else "loss"
    scores = np.array([[m.get(key, np.nan) for m in row] for row in measured], np.float64)
    moved = dict(zip(first.problem.moving, buffers, strict=True)) | frozen
    each = first.w.numel() * first.w.element_size()
    return Merged(
        how=how,
        weights=weights,
        buffers=moved,
        problem=first.problem,
        names=tuple(s.name for s in specialists),
        scores=scores,
        measure=key,
        line=_line(specialists, tasks, whole),
        bytes_up=each * len(specialists) + sent,
    )


Score = Callable[[EvaluatedModel], Mapping[str, Any]]


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
    points = [(a + t * (b - a)).to(whole.w.dtype) for t in np.linspace(0, 1, POINTS)]
    losses = [[score(replace(whole, w=w))["loss"] for score in tasks] for w in points]
    return tuple(float(np.mean(row)) for row in losses)
