"""What differential privacy of whole clients costs: accuracy over ε, in several federations.

The noise of every ε is reckoned as that of a run is, for as many rounds and the same share of
clients; what a run promises is read from the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from fedrift.config.privacy import Privacy, guarantee
from fedrift.core.sampling import Participation
from fedrift.data.arrays import split as split_data
from fedrift.engine.result import Result
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Curve,
    Draft,
    curves,
    draw,
    findings_of,
    from_objects,
    load,
    mean,
    percent,
    run_all,
    seeds,
    with_defaults,
)

LAST = 3  # evaluations that an accuracy is the mean of
NONE = "no privacy"
FINE, DIGITS = 1e-3, 3  # of the noise that is looked for
USUAL: dict[str, Any] = {
    "data": "digits",
    "model": "logistic",
    "federations": {"even labels": {"clients": 100, "partition": "iid"}},
    "epsilons": [1.0, 8.0],
    "delta": 1e-5,
    "clip": 1.0,
    "share": 0.1,
    "rounds": 20,
    "epochs": 1,
    "batch_size": 10,
    "lr": 0.1,
    "eval_every": 5,
}


def noise_for(epsilon: float, delta: float, share: float, rounds: int) -> float:
    """The least noise, in so many digits, that promises at most ε when every client takes part in
    a round with this probability."""
    who = Participation(population=1, kind="bernoulli", size=1, share=share)

    def is_enough(noise: float) -> bool:
        return guarantee(Privacy(noise, 1.0, delta), who, rounds).epsilon <= epsilon

    high = 1.0
    while not is_enough(high):
        high *= 2
    low = high / 2
    while is_enough(low):
        low, high = low / 2, low
    while high - low > FINE * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    scale = 10 ** (DIGITS - 1 - math.floor(math.log10(high)))
    return math.ceil(high * scale) / scale


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Accuracy at every ε and without privacy, in every federation."""
    options = with_defaults(settings, USUAL)
    loaded = load(options["data"], data)
    x, y = torch.from_numpy(loaded.x), torch.from_numpy(loaded.y)
    test = torch.from_numpy(loaded.x_test), torch.from_numpy(loaded.y_test)
    local = {k: options[k] for k in ("model", "rounds", "epochs", "batch_size", "lr", "eval_every")}
    ways = {NONE: ""}
    for epsilon in sorted(options["epsilons"], reverse=True):
        tell(f"the noise of ε = {epsilon:g}")
        noise = noise_for(epsilon, options["delta"], options["share"], options["rounds"])
        ways[f"ε = {epsilon:g}"] = (
            f"gaussian:{noise:g},clip={options['clip']:g},delta={options['delta']:g}"
        )
    items, places = [], list[tuple[str, str, int]]()
    for seed in seeds(options):
        for federation, of in options["federations"].items():
            few = slice(of.get("samples", len(y)))
            clients = split_data(x[few], y[few], of["partition"], clients=of["clients"], seed=seed)
            for way, privacy in ways.items():
                given = {"privacy": privacy} if privacy else {}
                item = from_objects(
                    f"{federation}, {way}",
                    "fedavg:weights=uniform",
                    folder,
                    seed,
                    clients=clients,
                    test=test,
                    sampling="bernoulli",
                    per_round=round(options["share"] * of["clients"]),
                    **local,
                    **given,
                )
                items.append(item)
                places.append((federation, way, seed))
    results = dict(zip(places, run_all(items, options, tell), strict=True))
    return _found(folder, options, ways, results)


def _found(
    folder: Path,
    options: Mapping[str, Any],
    ways: Mapping[str, str],
    results: Mapping[tuple[str, str, int], Result],
) -> Findings:
    federations, numbers = list(options["federations"]), seeds(options)
    ends = {
        (federation, way): [_final(results[federation, way, seed]) for seed in numbers]
        for federation in federations
        for way in ways
    }
    lost = {
        (f, way): [a - b for a, b in zip(ends[f, NONE], ends[f, way], strict=True)]
        for f, way in ends
    }
    private = [way for way in ways if way != NONE]
    accuracy = [[way, *(percent(ends[f, way]) for f in federations)] for way in ways]
    price = [[way, *(percent(lost[f, way]) for f in federations)] for way in private]
    promised = [
        [way, ways[way].removeprefix("gaussian:").partition(",")[0], *_promises(way, results)]
        for way in private
    ]
    order = [*reversed(private), NONE]
    shown: dict[str, Curve] = {
        f: (range(len(order)), [100 * mean(ends[f, way]) for way in order]) for f in federations
    }
    ticks = [*(way.removeprefix("ε = ") for way in order[:-1]), "∞"]
    picture = partial(
        curves,
        shown={"": shown},
        x=f"ε (δ = {options['delta']:g})",
        y="test accuracy (%)",
        marks=True,
        ticks=ticks,
    )
    title = f"mean of the last {LAST} evaluations"
    return findings_of(
        [
            Draft(f"accuracy (%), {title}", ["privacy", *federations], accuracy),
            Draft(
                f"points lost to {NONE}", ["privacy", *(f"lost, {f}" for f in federations)], price
            ),
            Draft("noise, and the ε that the runs promise", ["privacy", "noise", "ε"], promised),
        ],
        options,
        figures=[draw(folder, "epsilon", picture)],
        notes=[
            f"ε is the largest of the runs', for δ = {options['delta']:g} and {_share(options)}."
        ],
        facts={},
    )


def _promises(way: str, results: Mapping[tuple[str, str, int], Result]) -> Sequence[float]:
    """The largest ε of the runs."""
    said = [float(one.info["epsilon"]) for (_, of, _), one in results.items() if of == way]
    return [round(max(said), 3)]


def _share(options: Mapping[str, Any]) -> str:
    return f"a share of {options['share']:g} of the clients in each of {options['rounds']} rounds"


def _final(result: Result) -> float:
    """Mean of the last evaluations; 0 for a run that became infinite: worse than any."""
    return mean(result.accuracy[-LAST:]) if result.status == "done" else 0.0
