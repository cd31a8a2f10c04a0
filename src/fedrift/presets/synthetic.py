"""Data and models of presets that are generated: FedDyn's example, and bags of words.

FedDyn's (Acar et al. 2021): 20 clients with 200 samples of 30 features in 5 classes. As in the
authors' program the mean of the inputs, B_i ~ N(0, 1), and of the linear model, u_i ~ N(0, 1),
differ by client, and features have the variances j^-1.2. A quarter more samples of each client are
for testing.
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


# Sparse bags of words, as of FedOpt's Stack Overflow task: most words are rare, and rare ones tell.

WORDS, TOPICS, READERS, DOCUMENTS, LENGTH = 2000, 20, 200, 60, 20
OWN, TOLD = 60, 0.3
"""Words that belong to a topic, and the share of a document's words that are drawn from them."""


def bag_of_words() -> DataSet:
    """Shares of words in documents of 20 topics; 200 readers with a few topics each."""
    random = generator(SEED, "bag of words")
    common = 1 / np.arange(1, WORDS + 1)
    rare = 1 / np.arange(1, OWN + 1)
    own = [random.choice(np.arange(WORDS // 10, WORDS), OWN, replace=False) for _ in range(TOPICS)]
    tastes = random.dirichlet(np.full(TOPICS, 0.2), READERS)
    y = np.concatenate([random.choice(TOPICS, DOCUMENTS, p=taste) for taste in tastes])
    y_test = random.choice(TOPICS, len(y) // 6)

    def bags(topics: np.ndarray) -> np.ndarray:
        drawn = random.choice(WORDS, (len(topics), LENGTH), p=common / common.sum())
        mine = random.choice(OWN, (len(topics), LENGTH), p=rare / rare.sum())
        told = random.random((len(topics), LENGTH)) < TOLD
        words = np.where(told, np.stack(own)[topics[:, None], mine], drawn)
        x = np.zeros((len(topics), WORDS), np.float32)
        np.add.at(x, (np.arange(len(topics))[:, None], words), 1 / LENGTH)
        return x

    users = np.repeat(np.arange(READERS), DOCUMENTS)
    names = tuple(map(str, range(TOPICS)))
    return DataSet("bag-of-words", bags(y), y, bags(y_test), y_test, TOPICS, names, users)
