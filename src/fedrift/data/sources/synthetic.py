"""synthetic(α, β) of Li et al. 2020 (FedProx): devices that differ in model (α) and inputs (β).

As in the authors' program, α and β are standard deviations, b shares the mean of W, and a tenth
of every device's samples is for testing. Unlike there, each device has its own random stream, so
one device can be made without the others.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

from fedrift.data.samples import Generated, Samples
from fedrift.errors import InputError
from fedrift.grammar import Named, number
from fedrift.rng import generator

FEATURES = 60
CLASSES = 10
DEVICES = 30
MOST_DEVICES = 1_000_000
RESIDENT = 10_000  # devices; of more, each is made when it is visited
TESTED = 1_000  # devices whose test samples stand for all, where there are more than RESIDENT
TRAIN_SHARE = 0.9
Pair = tuple[np.ndarray, np.ndarray]
# Σ_jj = j^-1.2, the covariance of the inputs; here its root.
SPREAD = np.arange(1, FEATURES + 1) ** -0.6


def synthetic_client(
    alpha: float, beta: float, seed: int, client: int, *, iid: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """All samples of one device; with `iid`, every device has the same model and input mean 0."""
    random = generator(seed, "synthetic", client=client)
    count = _count(random)
    model = generator(seed, "synthetic-shared") if iid else random
    u = 0.0 if iid else random.normal(0, alpha)
    mean = np.zeros(FEATURES) if iid else random.normal(random.normal(0, beta), 1, FEATURES)
    w = model.normal(u, 1, (FEATURES, CLASSES))
    b = model.normal(u, 1, CLASSES)
    x = mean + SPREAD * random.standard_normal((count, FEATURES))
    return x.astype(np.float32), np.argmax(x @ w + b, axis=1)


def load(named: Named, _: Path | None) -> Samples:
    """All devices, one after the other; users are the devices."""
    alpha, beta = _levels(named.value)
    field = "data set 'synthetic': "
    options = named.options
    devices = number(
        options.get("clients", str(DEVICES)),
        field + "clients",
        kind=int,
        low=1,
        high=MOST_DEVICES,
    )
    seed = number(options.get("seed", "0"), field + "seed", kind=int, low=0)
    iid = _truth(options.get("iid", "false"), field + "iid")
    if iid and (alpha or beta):
        raise InputError(f"{field}iid=true means equal devices; write synthetic:0,0,iid=true")
    if devices > RESIDENT:
        return _population(partial(synthetic_client, alpha, beta, seed, iid=iid), seed, devices)
    per_device = [synthetic_client(alpha, beta, seed, client, iid=iid) for client in range(devices)]
    cuts = [int(TRAIN_SHARE * len(y)) for _, y in per_device]
    return Samples(
        x=np.concatenate([x[:cut] for (x, _), cut in zip(per_device, cuts, strict=True)]),
        y=np.concatenate([y[:cut] for (_, y), cut in zip(per_device, cuts, strict=True)]),
        class_names=tuple(map(str, range(CLASSES))),
        x_test=np.concatenate([x[cut:] for (x, _), cut in zip(per_device, cuts, strict=True)]),
        y_test=np.concatenate([y[cut:] for (_, y), cut in zip(per_device, cuts, strict=True)]),
        users=np.repeat(np.arange(devices), cuts),
    )


def _population(device: Callable[[int], Pair], seed: int, devices: int) -> Samples:
    """Too many devices to hold: sizes now, samples on demand, tests from some of them."""
    counts = np.array([_count(generator(seed, "synthetic", client=c)) for c in range(devices)])
    sizes = (TRAIN_SHARE * counts).astype(np.int64)
    every = max(1, devices // TESTED)
    tested = [(device(c), int(sizes[c])) for c in range(0, devices, every)]
    x, y = training(device, 0)
    return Samples(
        x=x,
        y=y,
        class_names=tuple(map(str, range(CLASSES))),
        x_test=np.concatenate([x[cut:] for (x, _), cut in tested]),
        y_test=np.concatenate([y[cut:] for (_, y), cut in tested]),
        generated=Generated(partial(training, device), sizes),
    )


def training(device: Callable[[int], Pair], client: int) -> Pair:
    """The training samples of one device."""
    x, y = device(client)
    cut = int(TRAIN_SHARE * len(y))
    return x[:cut], y[:cut].astype(np.int64)


def _count(random: np.random.Generator) -> int:
    return int(random.lognormal(4, 2)) + 50


def _levels(value: str | None) -> tuple[float, float]:
    pieces = (value or "").split(",")
    if len(pieces) != 2:
        raise InputError(f"data set 'synthetic:{value or ''}' wants two numbers: synthetic:1,1")
    alpha, beta = (
        number(piece, f"data set 'synthetic': {name}", low=0, high=1e6)
        for piece, name in zip(pieces, ("A", "B"), strict=True)
    )
    return alpha, beta


def _truth(text: str, field: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise InputError(f"{field} must be true or false, not '{text}'")
    return text.lower() == "true"
