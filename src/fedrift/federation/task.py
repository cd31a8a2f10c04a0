"""The task as server and sites each build it from the config, and the hash that compares them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedrift import models
from fedrift.backends.visit import Visitor
from fedrift.config.client_evaluation import OWN
from fedrift.config.own_code import IN_PYTHON
from fedrift.config.participation import sampling_of
from fedrift.core.alignment import is_channels_last
from fedrift.data import arrays
from fedrift.data.shift import domains_of
from fedrift.data.split import Split
from fedrift.engine import task
from fedrift.engine.objects import DTYPES, Objects, tested_in
from fedrift.engine.plan import Task
from fedrift.errors import InputError
from fedrift.federation.config import FederationConfig
from fedrift.federation.node import Node
from fedrift.models import losses

PROTOCOL = 2  # of the envelopes; ends that differ do not talk


def _check_sampling(text: str) -> None:
    """Refuses, before anything is imported for it, what a server cannot draw by."""
    reasons = {
        "size": "how many samples a site holds is not known before it has come",
        "power": "sites report no loss before they have come, and some reports are hidden",
        "available": "needs the simulated clock, and a federation asks who is there anyway",
        "function": "a function chooses clients only in simulations",
    }
    why = reasons.get(sampling_of(text).kind)
    if why is not None:
        raise InputError(f"sampling '{text}': {why}; use fixed, bernoulli or cyclic")


def make_server_task(config: FederationConfig, test: tuple[Any, Any] | None = None) -> Task:
    """The task without any client's data: the model is tried on two random samples."""
    spec, kind = config.spec, DTYPES[config.spec.dtype]
    _check_sampling(spec.sampling)
    if not config.named:  # what the record of the run says
        spec = replace(spec, data=IN_PYTHON, partition=IN_PYTHON)
    some = torch.Generator().manual_seed(0)
    x = torch.randn(2, *config.shape, generator=some, dtype=kind)
    y = torch.tensor([0, config.classes - 1])
    nobody = [np.empty(0, np.int64)] * (config.clients - 1)
    domains = None
    if config.named and spec.shift is not None:
        domains = domains_of(spec.shift, config.clients)
    probe = Split(x, y, [np.arange(2), *nobody], "at the nodes", domains=domains)
    if spec.client_test is not None:  # how much of it there is, only the nodes know: all are asked
        everybody = np.ones(config.clients, np.int64)
        own = Split(x, y, [np.arange(2), *nobody], sizes=everybody)
        probe = probe.with_data(x, y, own)
    was = (config.mean, config.std) if config.mean else None
    make = models.factory(spec.model or "mlp", config.shape, config.classes, was)
    test_tensors = None if test is None else checked_tensors(config, *test)
    if test_tensors is not None:
        test_tensors = tested_in(test_tensors, domains)
    loss = losses.loss_by_name(spec.loss)
    return task.make_task(spec, Objects(make, probe, test_tensors, loss, black=config.black))


def checked_tensors(config: FederationConfig, x: Any, y: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples as the task takes them, refused if they are of another shape."""
    kind = DTYPES[config.spec.dtype]
    inputs = arrays.tensors(torch.as_tensor(np.asarray(x)), kind, "x")
    labels = arrays.tensors(torch.as_tensor(np.asarray(y)), kind, "y")
    if tuple(inputs.shape[1:]) != config.shape:
        raise InputError(f"x has samples of shape {tuple(inputs.shape[1:])}, not {config.shape}")
    if labels.shape != inputs.shape[:1] or labels.is_floating_point():
        raise InputError(f"y must be {len(inputs)} whole numbers, one label for each sample")
    if len(labels) and not 0 <= int(labels.min()) <= int(labels.max()) < config.classes:
        raise InputError(f"y holds labels outside 0 to {config.classes - 1}")
    return inputs, labels


def experiment_id(server_task: Task) -> str:
    """Hash of everything that server and sites must have in common."""
    p = server_task.problem
    text = (
        PROTOCOL,
        re.sub(r" at 0x[0-9a-f]+", "", repr(server_task.algorithm)),
        p.layout.names,
        p.population,
        p.rounds,
        p.is_full,
        p.participation,
        server_task.seed,
        repr(server_task.augment),
        p.part,
    )
    if server_task.spec.client_test is not None:
        text = (*text, server_task.spec.client_test)
    digest = hashlib.sha256(repr(text).encode())
    for name, value in sorted({**p.rest, "": p.w0}.items()):
        digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def make_node(
    config: FederationConfig,
    client: int,
    x: Any,
    y: Any,
    folder: Path,
    test: tuple[Any, Any] | None = None,
) -> Node:
    """The node of one client, with its data, and its states in a folder.

    What it tests on is a share of its samples, as the config says, or `test`.
    """
    if not 0 <= client < config.clients:
        raise InputError(f"partition-id={client} must be from 0 to {config.clients - 1}")
    server_task = make_server_task(config)
    inputs, labels = checked_tensors(config, x, y)
    arranged = is_channels_last(server_task.split.x)
    inputs = arrays.channels_last(inputs) if arranged else arrays.contiguous(inputs)
    parts = [np.empty(0, np.int64)] * config.clients
    parts[client] = np.arange(len(labels))
    split, share = Split(inputs, labels, parts), config.spec.client_test
    if share == OWN:
        if test is None:
            raise InputError("client_test 'own': this site gives no test data; give a share")
        tried, wanted = checked_tensors(config, *test)
        tried = arrays.channels_last(tried) if arranged else arrays.contiguous(tried)
        own = list(parts)
        own[client] = np.arange(len(wanted))
        split = split.with_data(inputs, labels, Split(tried, wanted, own))
    elif share is not None:
        split = split.held_out(float(share), config.spec.seed)
    visitor = Visitor(server_task.algorithm, server_task.problem, split, server_task.augment)
    samples = int(split.sizes[client])
    return Node(visitor, client, samples, experiment_id(server_task), folder)
