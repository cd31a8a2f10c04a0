"""Specialists of one start, synchronised often, seldom or never: merges and a router.

Each specialist sees some of the classes. Together they are asked for all of them: averaged every
few epochs (FedAvg), merged once at the end by every rule, or left as they are behind a router.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedrift import models
from fedrift.api import run
from fedrift.core.flat import Batch
from fedrift.core.isolation import drawing_alone
from fedrift.data.samples import DataSet
from fedrift.engine.result import Result
from fedrift.errors import InputError
from fedrift.merging import merge
from fedrift.merging.experts import experts
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Draft,
    draw,
    findings_of,
    listed,
    load,
    mean,
    over_seeds,
    seeds,
    with_defaults,
)
from fedrift.rng import generator, torch_seed

USUAL: dict[str, Any] = {
    "data": "digits",
    "model": "mlp",
    "specialists": 3,
    "start": 0,  # samples of all classes that the common start is trained on; 0: none
    "start_epochs": 10,
    "every": [1, 5, 25],
    "epochs": 25,
    "rules": ["mean", "task:0.3", "ties:0.2", "dare:0.5", "fisher", "regmean", "aligned", "evolve"],
    "routers": ["ridge, top-1", "ridge, soft", "prototype, top-1"],
    "batch_size": 16,
    "lr": 0.05,
}
JOINT, ALONE = "joint training", "specialists alone (mean)"


@dataclass(frozen=True)
class Bench:
    """A start, the data of each specialist, all of them together, and the test of everything."""

    start: nn.Module
    tasks: Sequence[Batch]
    whole: Batch
    test: Batch
    local: Mapping[str, Any]
    seed: int

    def trained(self, clients: Sequence[Batch], epochs: int, rounds: int = 1) -> Result:
        return run(
            "fedavg",
            model=self.start,
            clients=list(clients),
            test=self.test,
            rounds=rounds,
            epochs=epochs,
            eval_every=rounds,
            workers=0,
            seed=self.seed,
            **self.local,
        )


def bench_of(options: Mapping[str, Any], data: DataSet, seed: int) -> Bench:
    """Classes are dealt out in turn: 0, 3, 6, … to the first of three."""
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)
    local = {key: options[key] for key in ("batch_size", "lr")}
    make = models.factory(options["model"], data.x.shape[1:], data.classes)
    with drawing_alone(torch_seed(seed, "init")):
        start = make()
    test = torch.from_numpy(data.x_test), torch.from_numpy(data.y_test)
    tasks = [(x[y % k == i], y[y % k == i]) for k in [options["specialists"]] for i in range(k)]
    bench = Bench(start, tasks, (x, y), test, local, seed)
    if not options["start"]:
        return bench
    few = torch.from_numpy(generator(seed, "start").permutation(len(x))[: options["start"]])
    begun = bench.trained([(x[few], y[few])], int(options["start_epochs"])).module()
    return Bench(begun, tasks, (x, y), test, local, seed)


def compared(bench: Bench, options: Mapping[str, Any], tell: Tell) -> dict[str, float]:
    """Accuracy on all classes of every way to make one of several, in per cent."""
    epochs, found = int(options["epochs"]), dict[str, float]()

    def note(name: str, make: Callable[[], float]) -> None:
        found[name] = 100 * make()
        tell(f"{name}, seed {bench.seed}: {found[name]:.1f} %")

    note(JOINT, lambda: bench.trained([bench.whole], epochs).accuracy[-1])
    for every in options["every"]:
        if epochs % every:
            raise InputError(f"every={every} of the study must divide epochs={epochs}")
        rounds = epochs // every
        name = f"averaged every {every} epoch{'' if every == 1 else 's'}"
        note(name, lambda e=every, r=rounds: bench.trained(bench.tasks, e, r).accuracy[-1])
    own = [bench.trained([task], epochs) for task in bench.tasks]
    note(ALONE, lambda: mean([one.accuracy[-1] for one in own]))
    tests = [bench.test] * len(own)
    for how in options["rules"]:
        note(how, lambda h=how: float(merge(own, h, data=bench.tasks, tests=tests).scores[-1, 0]))
    for text in options["routers"]:
        router, mix = text.split(", ")
        made = lambda r=router, m=mix: experts(own, r, m, data=bench.tasks, tests=tests)  # noqa: E731
        note(text, lambda f=made: float(f().scores[-1, 0]))
    return found


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Every way to make one model of several, against training it in one place."""
    options = with_defaults(settings, USUAL)
    loaded = load(options["data"], data)
    numbers = seeds(options)
    runs = [compared(bench_of(options, loaded, seed), options, tell) for seed in numbers]
    kept = {name: [one[name] for one in runs] for name in runs[0]}
    shown = {name: mean(values) for name, values in kept.items()}
    title = "accuracy on all classes (%)"
    return findings_of(
        [Draft(title, ["how", "accuracy"], [[n, over_seeds(v)] for n, v in kept.items()])],
        options,
        figures=[draw(folder, "ways", partial(listed, values=shown, x=title))],
        notes=[
            f"Each of {options['specialists']} specialists knows its own classes only, so that it "
            "cannot get more than their share. With top-1 one expert computes for an input."
        ],
        facts={},
    )
