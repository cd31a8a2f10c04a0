"""Fed3R, then fine-tuning: Fanì, Camoriano, Caputo, Ciccone, ICML 2024, in three variants.

From a pre-trained extractor: FedAvg with a fresh head, with the extractor frozen or not, against
Fed3R alone and Fed3R followed by training everything (FT), the head (FT_LP) or the extractor
(FT_FEAT). What the extractors have learned is measured by ridge regression on their features.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedrift.comparison import Item
from fedrift.core.problem import define
from fedrift.data.arrays import split
from fedrift.data.samples import DataSet
from fedrift.data.split import Split
from fedrift.engine.features import Extractor, extract, extractor
from fedrift.engine.result import Result
from fedrift.errors import unknown
from fedrift.presets.findings import Findings, Tell
from fedrift.presets.studies.common import (
    Curve,
    Draft,
    accuracies,
    cores,
    findings_of,
    from_objects,
    load,
    mean,
    one_pass,
    over_rounds,
    percent,
    run_all,
    seeds,
    with_defaults,
)
from fedrift.presets.studies.extractors import (
    accuracy,
    base_network,
    fresh_head,
    pooled_ridge,
    read_options,
)
from fedrift.rng import torch_seed

# A pre-trained network with a fresh head: where fine-tuning begins, and how good features are.

LOOKED_AT = 1000  # samples whose features are measured


@dataclass(frozen=True)
class Start:
    """The pre-trained network with a fresh head, and the data it is to be used on."""

    network: nn.Module
    head: str
    data_set: DataSet
    clients: int

    def frozen(self) -> nn.Module:
        """The same with everything but the head frozen."""
        network = copy.deepcopy(self.network).requires_grad_(False)
        network.get_submodule(self.head).requires_grad_(True)
        return network


def start_of(
    options: Mapping[str, Any], data: Path | None, folder: Path, seed: int, tell: Tell
) -> Start:
    one = read_options(options["extractor"])
    data_set = load(one["data"], data, one["classes"])
    network = base_network(one, data_set, data, folder, seed, tell)
    make = (lambda: network) if isinstance(network, nn.Module) else network
    problem = define(
        make,
        nn.functional.cross_entropy,
        (torch.from_numpy(data_set.x[:2]), torch.zeros(2, dtype=torch.int64)),
        init_seed=torch_seed(seed, "init"),
        population=1,
        participation=1.0,
        rounds=1,
    )
    problem.head_names()  # refuses a model without one
    head = problem.head or ""
    module = problem.module(problem.w0, {})
    network_with_head = fresh_head(module, head, data_set.classes, torch_seed(seed, "fresh head"))
    return Start(network_with_head, head, data_set, int(one["clients"]))


def squared_length(start: Start) -> float:
    """Mean squared length of the features, on which the steps that are stable depend."""
    source = _source(start.network, start)
    return float(extract(source, start.data_set.x[:LOOKED_AT]).square().sum(1).mean())


def _source(module: nn.Module, start: Start) -> Extractor:
    example = torch.from_numpy(start.data_set.x[:2])
    return extractor("tuned", lambda: module, example, head=start.head)


def ridge_on(module: nn.Module, start: Start, options: Mapping[str, Any]) -> float:
    """Accuracy of ridge regression on the features of a network, pooled."""
    data_set = start.data_set
    source = _source(module, start)
    train, test = (
        extract(source, x, cores(options)).double() for x in (data_set.x, data_set.x_test)
    )
    y, y_test = torch.from_numpy(data_set.y), torch.from_numpy(data_set.y_test)
    solved = pooled_ridge(train, y, data_set.classes, options["ridge"], True)
    return accuracy(*solved, (test, y_test))


AUTO = "auto"
"""A rate in place of a number: the largest at which steps of the head are sure not to grow."""


def with_rates(options: Mapping[str, Any], length: float) -> dict[str, Any]:
    """`auto` becomes 4ϑ² divided by the features' mean squared length; ϑ = 1 for a fresh head."""
    surely = {"lr": 4 * options["temperature"] ** 2 / length, "fresh_lr": 4 / length}
    return {**options, **{k: v for k, v in surely.items() if options[k] == AUTO}}


FRESH, PROBE, CLOSED = "FedAvg", "FedAvg, head only", "Fed3R"
TUNED = {
    "Fed3R+FT": ("fedavg", "all"),
    "Fed3R+FT_LP": ("fedavg", "head"),
    "Fed3R+FT_FEAT": ("fedavg", "features"),
    "Fed3R+FT, SCAFFOLD": ("scaffold", "all"),
    "Fed3R+FT, FedAvgM": ("fedavgm:beta=0.9,server_lr=0.1", "all"),
}
"""With which algorithm, and what it trains."""
ROWS = (FRESH, PROBE, CLOSED, *TUNED)
USUAL: dict[str, Any] = {
    "extractor": {
        "name": "cnn of Fashion-MNIST",
        "data": "mnist:train=10000,test=2000",
        "model": "cnn",
        "pretrained_on": "fashion-mnist:train=20000",
        "epochs": 2,
    },
    "partitions": ["dirichlet:0", "iid"],
    "per_round": 10,
    "rounds": 40,
    "epochs": 1,
    "batch_size": 64,
    "lr": 0.01,
    "fresh_lr": 0.1,
    "weight_decay": 4e-5,
    "ridge": 0.01,
    "temperature": 0.1,
    "last": 5,
    "rows": [FRESH, PROBE, CLOSED, "Fed3R+FT", "Fed3R+FT_LP", "Fed3R+FT_FEAT"],
}


def study(folder: Path, settings: Mapping[str, Any], data: Path | None, tell: Tell) -> Findings:
    """Every variant on every division, all from the same extractor."""
    options = with_defaults(settings, USUAL)
    for row in options["rows"]:
        if row not in ROWS:
            raise unknown("row of the study", row, ROWS)
    results: dict[tuple[str, str], list[Result]] = {}
    quality: dict[tuple[str, str], list[float]] = {}
    before: list[float] = []
    lengths: list[float] = []
    for seed in seeds(options):
        start = start_of(options, data, folder, seed, tell)
        lengths.append(squared_length(start))
        rated = with_rates(options, lengths[-1])
        items: dict[tuple[str, str], Item] = {}
        for scheme in options["partitions"]:
            data_set = start.data_set
            clients = split(data_set.x, data_set.y, scheme, clients=start.clients, seed=seed)
            items |= {
                (scheme, row): _item(row, scheme, start, clients, rated, folder, seed)
                for row in options["rows"]
            }
        ran = run_all(list(items.values()), options, tell)
        before.append(ridge_on(start.network, start, options))
        for (scheme, row), result in zip(items, ran, strict=True):
            results.setdefault((scheme, row), []).append(result)
            if row in (FRESH, "Fed3R+FT", "Fed3R+FT_FEAT"):
                tell(f"ridge on the features of {row}, {scheme}")
                share = ridge_on(result.module(), start, options)
                quality.setdefault((scheme, row), []).append(share)
    return _findings(folder, options, results, quality, before, mean(lengths))


def _item(
    row: str,
    scheme: str,
    start: Start,
    clients: Split,
    options: Mapping[str, Any],
    folder: Path,
    seed: int,
) -> Item:
    closed = one_pass(len(clients), options)
    algorithm, rate, network = "fedavg", options["fresh_lr"], start.network
    if row == PROBE:
        network = start.frozen()
    elif row == CLOSED:
        algorithm = f"fed3r:ridge={options['ridge']}"
    elif row in TUNED:
        inner, trained = TUNED[row]
        algorithm = (
            f"fed3rft({inner}):ridge={options['ridge']},train={trained},"
            f"temperature={options['temperature']}"
        )
        rate = options["lr"]
    local = {} if row == CLOSED else {key: options[key] for key in ("epochs", "batch_size")}
    if row != CLOSED:
        local |= {"lr": rate, "weight_decay": options["weight_decay"]}
    return from_objects(
        f"{row}, {scheme}",
        algorithm,
        folder,
        seed,
        model=network,
        head=start.head,
        clients=clients,
        test=(start.data_set.x_test, start.data_set.y_test),
        rounds=closed + options["rounds"],
        per_round=min(options["per_round"], len(clients)),
        **local,
    )


def _findings(
    folder: Path,
    options: Mapping[str, Any],
    results: Mapping[tuple[str, str], Sequence[Result]],
    quality: Mapping[tuple[str, str], Sequence[float]],
    before: Sequence[float],
    length: float,
) -> Findings:
    closed = one_pass(int(read_options(options["extractor"])["clients"]), options)
    rows: list[list[Any]] = []
    shown: dict[str, dict[str, Curve]] = {}
    for (scheme, row), many in results.items():
        last = [mean(one.accuracy[-options["last"] :]) for one in many]
        gained = quality.get((scheme, row))
        rows.append(
            [
                f"{row}, {scheme}",
                percent([one.accuracy[closed - 1] for one in many]),
                percent(last),
                percent([max(one.accuracy) for one in many]),
                percent(gained) if gained else None,
                mean([one.ledger.total.bytes_up for one in many]) / 1e6,
            ]
        )
        shown.setdefault(scheme, {})[row] = over_rounds(many[0])
    rows.append(["pre-trained, untouched", None, None, None, percent(before), None])
    columns = (
        "method",
        f"after round {closed} (%)",
        f"mean of the last {options['last']} rounds (%)",
        "best (%)",
        "ridge on its features (%)",
        "MB up in all",
    )
    one, rated = read_options(options["extractor"]), with_rates(options, length)
    return findings_of(
        [Draft("Fed3R and fine-tuning", columns, rows)],
        options,
        figures=[accuracies(folder, "fed3r-finetune", shown)],
        notes=[
            f"{one['name']}: {one['model']}, used on {one['data']}"
            + (f", pre-trained on {one['pretrained_on']}" if one["pretrained_on"] else "")
            + f"; {one['clients']} clients, {options['per_round']} a round. "
            "Fed3R has seen everybody "
            f"after round {closed}; {options['rounds']} rounds follow.",
            f"Fine-tuning: FedAvg unless said otherwise, rate {_rate(rated, options, 'lr')}, "
            f"temperature {options['temperature']}; FedAvg with a fresh head: rate "
            f"{_rate(rated, options, 'fresh_lr')}. FT trains everything, FT_LP the head, FT_FEAT "
            "everything but the head.",
            f"The features have a mean squared length of {length:.3g}. Steps of the head along the "
            "gradient of the cross-entropy of logits/ϑ are sure not to grow up to a rate of 4ϑ² "
            f"divided by it, {4 * options['temperature'] ** 2 / length:.2g}.",
        ],
        facts=shown,
    )


def _rate(rated: Mapping[str, Any], options: Mapping[str, Any], key: str) -> str:
    """A rate in a note; one that was derived is the mean over seeds."""
    derived = " (from the features' length)" if options[key] == AUTO else ""
    return f"{rated[key]:.2g}{derived}"
