"""Data and model of FedDyn's example (Acar et al. 2021): linear clients that all differ.

20 clients with 200 samples of 30 features in 5 classes. As in the authors' program the mean of the
inputs, B_i ~ N(0, 1), and of the linear model, u_i ~ N(0, 1), differ by client, and features have
the variances j^-1.2. A quarter more samples of each client are for testing.
"""

from __future__ import annotations

import numpy as np
from torch import nn

from fedrift.data.samples import DataSet
from fedrift.rng import generator

CLIENTS, SAMPLES, TESTED, FEATURES, CLASSES = 20, 200, 50, 30, 5
SEED = 0


def feddyn() -> DataSet:
    """The data set, one user for each client; always the same."""
    samples = [_client(client) for client in range(CLIENTS)]
    x, y = (np.concatenate([pair[i][:SAMPLES] for pair in samples]) for i in range(2))
    x_test, y_test = (np.concatenate([pair[i][SAMPLES:] for pair in samples]) for i in range(2))
    names = tuple(map(str, range(CLASSES)))
    users = np.repeat(np.arange(CLIENTS), SAMPLES)
    return DataSet("feddyn", x, y, x_test, y_test, CLASSES, names, users)


def zeros() -> nn.Module:
    """The linear model, which begins at zero."""
    model = nn.Linear(FEATURES, CLASSES)
    for parameter in model.parameters():
        nn.init.zeros_(parameter)
    return model


def _client(client: int) -> tuple[np.ndarray, np.ndarray]:
    random = generator(SEED, "feddyn-synthetic", client=client)
    mean = random.normal(random.normal(), 1, FEATURES)
    u = random.normal()
    w, b = random.normal(u, 1, (FEATURES, CLASSES)), random.normal(u, 1, CLASSES)
    spread = np.arange(1, FEATURES + 1) ** -0.6  # the root of the variances
    x = mean + spread * random.standard_normal((SAMPLES + TESTED, FEATURES))
    return x.astype(np.float32), np.argmax(x @ w + b, axis=1)
