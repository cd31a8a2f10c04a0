"""What a run returns: its curve, its weights, its cost, its identity."""

from __future__ import annotations

import hashlib
import math
import struct
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from torch import Tensor, nn

from fedrift.config.spec import Spec
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.flat import Vec
from fedrift.core.problem import Problem
from fedrift.core.training_report import COLUMNS
from fedrift.engine.ledger import Ledger
from fedrift.errors import InputError
from fedrift.storage.run_record import RunRecord, as_frame, client_rows, domain_rows

Status = Literal["done", "stopped", "diverged"]


UNSIGNED = ("seconds", *COLUMNS)
"""Columns that a fingerprint leaves out: timings, and what follows from the training itself, which
versions differ in."""


def fingerprint(weights: Vec, rows: Sequence[Mapping[str, Any]]) -> str:
    """Short hash of the final weights and of every logged number but timings and what training
    reports."""
    digest = hashlib.sha256(weights.detach().cpu().contiguous().numpy().tobytes())
    for row in rows:
        for name in sorted(row):
            if name not in UNSIGNED:
                digest.update(name.encode() + _bytes(row[name]))
    return digest.hexdigest()[:16]


def figures(
    rows: Sequence[Mapping[str, Any]], ledger: Ledger, clients: Mapping[str, Any]
) -> dict[str, Any]:
    """What of a summary follows from the evaluated rounds, the exchanges and what is known of the
    clients."""
    accuracy = [row["accuracy"] for row in rows if "accuracy" in row]
    loss = [row["loss"] for row in rows if "loss" in row]
    total = ledger.total
    return {
        "final_accuracy": accuracy[-1] if accuracy else None,
        "best_accuracy": max(accuracy, default=None),
        "final_loss": loss[-1] if loss else None,
        "evaluated_rounds": [row["round"] for row in rows],
        "accuracy": accuracy,
        "loss": loss,
        "bytes_up": total.bytes_up,
        "bytes_down": total.bytes_down,
        "gradient_evaluations": total.gradients,
        "nonfinite_replies": sum(len(e.nonfinite) for e in ledger.entries),
        **({"time": rows[-1]["time"]} if rows and "time" in rows[-1] else {}),
        **_at_clients(rows),
        **_in_domains(rows, clients),
    }


def _at_clients(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The last figures of the clients, and when they were asked; nothing if they were not."""
    asked = [row for row in rows if "clients_evaluated" in row]
    if not asked:
        return {}
    kept = ("client", "global_")
    last = {key: value for key, value in asked[-1].items() if key.startswith(kept)}
    return {"at_clients": {"rounds": [row["round"] for row in asked], **last}}


def _in_domains(rows: Sequence[Mapping[str, Any]], clients: Mapping[str, Any]) -> dict[str, Any]:
    """The last accuracy in each domain of the shift; nothing where there are none."""
    known, last = clients.get("domains"), rows[-1] if rows else {}
    if not known or "domain_accuracy" not in last:
        return {}
    found = zip(known["names"], last["domain_accuracy"], strict=True)
    named = [{"name": name, "accuracy": value} for name, value in found]
    for domain, one in enumerate(named):
        one["seen"] = domain not in known["unseen"]
    return {"domains": named}


def _bytes(value: Any) -> bytes:
    if isinstance(value, (list, tuple)):
        return b"".join(_bytes(v) for v in value)
    if isinstance(value, Mapping):
        return b"".join(str(k).encode() + _bytes(v) for k, v in sorted(value.items()))
    if not isinstance(value, (int, float)):
        return str(value).encode()
    return struct.pack("<d", value if value == value else math.nan)  # a file knows only one NaN


@dataclass(frozen=True)
class ClientModel:
    """One client at the end of a run: the model it is evaluated with, and its figures."""

    client: int
    weights: Vec
    """Flat, as `Result.weights`."""
    buffers: Mapping[str, Tensor]
    """Buffers and frozen parameters of its model, by name."""
    problem: Problem
    rounds: Sequence[Mapping[str, Any]]
    """What it found on test data of its own: a dict per round in which it was asked."""

    def __repr__(self) -> str:
        known = [row["accuracy"] for row in self.rounds if "accuracy" in row]
        told = f", accuracy {known[-1]:.4f}" if known else ""
        return f"<ClientModel: client {self.client}{told}>"

    def module(self) -> nn.Module:
        """A module of the run's kind with the client's own weights."""
        return self.problem.module(self.weights, self.buffers)

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer by name."""
        return {**self.problem.layout.named(self.weights), **self.buffers}

    def frame(self) -> Any:
        """One row per round in which it evaluated: a pandas frame if installed, else dicts."""
        return as_frame(self.rounds)


@dataclass(frozen=True)
class Result:
    """A finished run. Lists have one entry per evaluated round."""

    status: Status
    """`done`, `stopped` or `diverged`."""
    diverged_at: int | None
    """The round in which numbers stopped being finite."""
    rounds: list[int]
    """Numbers of the evaluated rounds, from 1."""
    metrics: list[dict[str, Any]]
    """Everything that was measured: a dict per evaluated round."""
    weights: Vec
    """The last finite weights, flat."""
    ledger: Ledger
    """Bytes and gradient evaluations, exchange by exchange; `ledger.total` adds them up."""
    seconds: float  # wall time of all rounds
    problem: Problem
    """Model, loss and population, as algorithms see them."""
    buffers: Mapping[str, Tensor]
    """Buffers and frozen parameters that the run has moved, by name."""
    info: Mapping[str, Any]
    """What was run: algorithm, data, seed and the like."""
    notes: tuple[str, ...] = ()
    """What the run remarked on: choices that were made, data that were not used."""
    folder: Path | None = None
    """Where it was written; None if nowhere."""
    clients: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Who holds how many samples of which class."""
    config: Spec | None = None
    """The options it was made with, as far as a spec can hold them."""
    profile: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    """Seconds by kind of work, one row per round; empty unless profile=True."""
    client_rounds: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What clients found on test data of their own: a dict of columns per round."""
    personal: Callable[[int], EvaluatedModel] | None = field(
        default=None, repr=False, compare=False
    )
    """Makes the model of a client's own; None where they are elsewhere."""
    training: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    """What training reported at each client: a dict of columns per round."""

    def __repr__(self) -> str:
        """One line: what was run and how it ended."""
        words = [str(self.info.get("algorithm", "run")), self.status, self._length()]
        words += [f"accuracy {self.accuracy[-1]:.4f}"] if self.accuracy else []
        own = self.client_accuracy
        is_said = bool(own) and own[-1] == self.accuracy[-1]
        words += ["at clients" if is_said else f"at clients {own[-1]:.4f}"] if own else []
        if self.loss or not self.metrics:
            words += [f"loss {self.loss[-1]:.4g}"] if self.loss else ["not evaluated: no test data"]
        words += [] if self.folder is None else [f"in {self.folder}"]
        return f"<Result: {', '.join(words)}>"

    def _length(self) -> str:
        """`30 rounds`, or `4 of 30 rounds` if it ended before the last."""
        number = int(self.info.get("rounds", len(self.rounds)))
        made = max((entry.round for entry in self.ledger.entries), default=number)
        of = f"{made} of " if made < number and self.status != "done" else ""
        return f"{of}{number} round{'' if number == 1 else 's'}"

    @property
    def accuracy(self) -> list[float]:
        """Of the server's test set; where clients have models of their own, or the server has no
        test data, the mean over the clients' test data. Empty where there are no classes."""
        return [m["accuracy"] for m in self.metrics if "accuracy" in m]

    @property
    def loss(self) -> list[float]:
        """Mean loss, of the same data as `accuracy`."""
        return [m["loss"] for m in self.metrics if "loss" in m]

    @property
    def client_accuracy(self) -> list[float]:
        """Mean over the clients of the accuracy on test data of their own, of personal models
        where there are any; an entry for each round in which they were asked."""
        return [m["client_accuracy"] for m in self.metrics if "client_accuracy" in m]

    @property
    def fingerprint(self) -> str:
        """Equal for two runs that agree in every bit of their weights and metrics."""
        return fingerprint(self.weights, self.metrics)

    @property
    def said(self) -> Spec | None:
        """Deprecated: `config`."""
        return self._renamed("said", "config")

    @property
    def about(self) -> Mapping[str, Any]:
        """Deprecated: `info`."""
        return self._renamed("about", "info")

    @property
    def rest(self) -> Mapping[str, Tensor]:
        """Deprecated: `buffers`."""
        return self._renamed("rest", "buffers")

    def _renamed(self, old: str, new: str) -> Any:
        warnings.warn(f"Result.{old} is now Result.{new}", DeprecationWarning, stacklevel=3)
        return getattr(self, new)

    def frame(self) -> Any:
        """One row per evaluated round: a pandas frame if installed, else a list of dicts."""
        return as_frame(self.metrics)

    def client_frame(self) -> Any:
        """One row per client and round in which it evaluated: its accuracy and loss."""
        return as_frame(client_rows(self.client_rounds))

    def domain_frame(self) -> Any:
        """One row per domain of the shift and evaluated round: its `name`, whether clients have
        `seen` it, `accuracy` and `loss` of the server's test set in it, and `client_accuracy`, the
        mean over its clients where they evaluated. Empty unless the shift says `domains=…`."""
        return as_frame(domain_rows(self.clients, self.metrics, self.client_rounds))

    def client(self, client: int) -> ClientModel:
        """A client's own model, as its last evaluation saw it, and its figures.

        Refused for an algorithm whose clients have none. In a federation they stay at the sites.
        """
        if self.personal is None:
            raise InputError("the clients' models are not in this result: they stay at the sites")
        model = self.personal(client)
        moved = dict(zip(self.problem.moving, model.buffers, strict=True)) | dict(model.frozen)
        rows = [row for row in client_rows(self.client_rounds) if row["client"] == client]
        return ClientModel(client, model.w, moved, self.problem, rows)

    def training_frame(self) -> Any:
        """One row per client and round in which it trained: loss and accuracy of its minibatches,
        of all, of the first (`_before`) and of the last (`_after`)."""
        return as_frame(client_rows(self.training))

    def module(self) -> nn.Module:
        """A module of the run's kind with the final weights."""
        return self.problem.module(self.weights, self.buffers)

    def export(self, folder: str | Path, what: str = "adapter") -> Path:
        """Write the adapter alone, LoRA's as the library PEFT reads it, or the `"merged"` model.

        The files are `adapter_model.safetensors` and `adapter_config.json`, or `model.safetensors`.
        """
        from fedrift.adapters import export

        adapter = None if self.config is None else self.config.adapter
        made = export.exported(what, self.problem, self.weights, self.buffers, adapter)
        return export.write(Path(folder), made)

    def spec(self) -> Spec:
        """What is known of how the run was made."""
        from fedrift.engine import recorder

        if self.config is not None:
            return replace(self.config, out=None)
        known = {k: v for k, v in self.info.items() if v is not None}
        return Spec.of({"rounds": len(self.rounds) or 1} | recorder.GIVEN_AS_OBJECTS | known)

    def record(self) -> RunRecord:
        """The run as it would be read from its folder."""
        from fedrift.engine import recorder

        return RunRecord(
            folder=self.folder or Path("memory"),
            spec=self.spec(),
            rounds=self.metrics,
            ledger=self.ledger.rows(),
            environment=recorder.environment("", self.notes),
            summary=self.summary(),
            torn=(),
            clients=dict(self.clients),
            client_rounds=self.client_rounds,
            training=self.training,
        )

    def for_report(self) -> list[RunRecord]:
        """What a report of it is made from."""
        return [self.record()]

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer that the run has decided, by name."""
        return {**self.problem.layout.named(self.weights), **self.buffers}

    def summary(self) -> dict[str, Any]:
        """One object with everything that fits on a line each."""
        return {
            **self.info,
            "status": self.status,
            "diverged_at": self.diverged_at,
            **figures(self.metrics, self.ledger, self.clients),
            "seconds": self.seconds,
            "fingerprint": self.fingerprint,
            "instructions": self._instructions(),
            "folder": None if self.folder is None else str(self.folder),
        }

    def _instructions(self) -> str:
        """The arithmetic that the fingerprint belongs to."""
        from fedrift.engine import recorder
        from fedrift.storage.run_record import read_environment

        known = {} if self.folder is None else read_environment(self.folder)
        return recorder.instructions_of(known) or recorder.instructions()

    def plot(self, path: str | Path, metric: str | None = None) -> Path:
        """The curve of the run as a picture; the file's ending decides the format.

        metric: a column of `metrics`, such as `"loss"` or a metric of your own; the accuracy
            unless given, or the loss where there is none.
        """
        from fedrift.figures.style import curves

        if not self.metrics:
            raise InputError("plot: nothing was evaluated, so there is no curve; give test=(x, y)")
        name = str(self.info.get("algorithm", "run"))
        return curves({name: [self]}, Path(path), metric)

    def save(self, folder: str | Path) -> Path:
        """Write the run as a run folder."""
        from fedrift.engine import recorder
        from fedrift.storage.run_folder import RunFolder

        with RunFolder.create(folder, self.spec()) as made:
            made.write_environment(recorder.environment("", self.notes))
            made.write_clients(self.clients)
            for row in self.metrics:
                made.append_round(row)
            for row in self.client_rounds:
                made.append_clients(row)
            for row in self.training:
                made.append_training(row)
            for row in self.ledger.rows():
                made.append_ledger(row)
            summary = {**self.summary(), "folder": str(folder)}
            recorder.RunRecorder(made).finish(self.tensors(), summary)
        return Path(folder)
