"""From a spec to its data, divided among clients: numpy only, so bad data never wait for torch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fedrift.config.client_evaluation import OWN
from fedrift.config.models import VALUE_LOSSES as VALUES
from fedrift.config.models import choose_model, fits
from fedrift.config.spec import Spec
from fedrift.data import datasets
from fedrift.data.assignment import Partition
from fedrift.data.checks import Targets
from fedrift.data.partition import partition
from fedrift.data.samples import DataSet
from fedrift.data.shift import shift
from fedrift.errors import InputError
from fedrift.grammar import parse


@dataclass(frozen=True, eq=False)
class Prepared:
    """The data of a run; `x` is the training half with the clients' shift in it.

    `model` is the name that was said, or the usual one for these data.
    """

    data: DataSet
    partition: Partition
    x: np.ndarray
    model: str


def load(spec: Spec) -> DataSet:
    """With a loss of numbers targets are numbers; one of the user's own takes what there is."""
    place = None if spec.data_dir is None else Path(spec.data_dir)
    targets: Targets = "labels"
    if spec.loss is not None and spec.loss != "cross_entropy":
        targets = "values" if spec.loss in VALUES else "any"
    if is_computed(spec):
        from fedrift.engine import features  # a model and torch, which other data do without

        return features.load(spec.data, place, targets)
    return datasets.load(spec.data, place, targets)


def is_computed(spec: Spec) -> bool:
    """Its data are what a model sees, which takes minutes for the first time."""
    return parse(spec.data, "data").name == datasets.FEATURES


def prepare(spec: Spec, data: DataSet | None = None) -> Prepared:
    """Loads (unless that was done before) and divides; refuses what only the data could tell."""
    data = data or load(spec)
    if data.generated is not None:
        return _generated(spec, data, len(data.generated.sizes))
    made = partition(
        spec.partition,
        data.y,
        clients=spec.wanted_clients,
        seed=spec.seed,
        users=data.users,
        alpha=spec.alpha,
    )
    spec.check_clients(made.clients)
    if spec.client_test == OWN:
        own_tests(Prepared(data, made, data.x, ""))  # refuses data without them
    if spec.clients is not None and spec.clients != made.clients:
        raise InputError(
            f"clients is {spec.clients}, but partition '{made.name}' makes one client per user, "
            f"{made.clients} of them; leave clients out"
        )
    shape = data.x.shape[1:]
    model = spec.model or usual_model(data)
    choose_model(model, shape, data.is_text)
    x = data.x
    if spec.shift is not None:
        x = x if x.dtype.kind == "f" else x.astype(np.float32)
        x = shift(spec.shift, x, made.parts, spec.seed)
    return Prepared(data, made, x, model)


def usual_model(data: DataSet) -> str:
    """The model for these data if none is named."""
    return "gpt" if data.is_text else "cnn" if fits("cnn", data.x.shape[1:]) else "mlp"


def own_tests(ready: Prepared) -> list[np.ndarray]:
    """Which samples of the test half are whose, where the data say so."""
    data, clients = ready.data, ready.partition.clients
    if data.users_test is None or ready.partition.name != "natural":
        raise InputError(
            "client_test 'own' needs data that say whose each test sample is (npz with the array "
            "users_test) and partition natural; or give a share such as client_test 0.2"
        )
    order = np.argsort(data.users_test, kind="stable")
    ends = np.cumsum(np.bincount(data.users_test, minlength=clients))
    return np.split(order, ends[:-1])


def own_inputs(spec: Spec, ready: Prepared) -> np.ndarray:
    """Inputs of the test half as the clients see theirs: shifted as their training data are."""
    x = ready.data.x_test
    if spec.shift is None:
        return x
    x = x if x.dtype.kind == "f" else x.astype(np.float32)
    return shift(spec.shift, x, own_tests(ready), spec.seed, "shift test")


def _generated(spec: Spec, data: DataSet, clients: int) -> Prepared:
    """Clients that are made on demand are divided already."""
    if spec.client_test == OWN:
        raise InputError("client_test 'own': made clients bring no test data; give a share")
    for key, usual in (("partition", "natural"), ("shift", None), ("alpha", None)):
        if getattr(spec, key) != usual:
            raise InputError(
                f"{key} '{getattr(spec, key)}': {clients:,} clients are made one by one as they "
                f"are visited; use {f'partition {usual}' if usual else f'no {key}'}"
            )
    spec.check_clients(clients)
    model = spec.model or "mlp"
    choose_model(model, data.x.shape[1:])
    return Prepared(data, Partition("natural", (), spec.seed), data.x, model)
