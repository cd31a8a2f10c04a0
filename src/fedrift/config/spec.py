"""One experiment, as typed on the command line or kept in a TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedrift.config import catalogue, fields, models
from fedrift.config.privacy import parse_aggregate, parse_privacy
from fedrift.core.faults import parse_faults
from fedrift.errors import InputError, unknown
from fedrift.grammar import Named, parse

# TOML files, read with care.

LARGEST_FILE = 1 << 20  # bytes; a spec is a page of text


def read_toml(path: Path) -> dict[str, object]:
    """The values of a TOML file that nobody vouches for."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"spec '{path}' cannot be read: {error.strerror}") from None
    if len(raw) > LARGEST_FILE:
        raise InputError(f"spec '{path}' is larger than {LARGEST_FILE} bytes; it is no spec")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"spec '{path}' is not UTF-8 text; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"spec '{path}' is not valid TOML: {error}") from None


USUAL_CLIENTS = 10

FIELDS: dict[str, fields.Field] = {
    "algorithm": fields.named(),
    "data": fields.named(),
    "data_dir": fields.text(),
    "partition": fields.named(),
    "alpha": fields.real(),
    "shift": fields.named(),
    "clients": fields.whole(1),
    "model": fields.named(),
    "head": fields.text(),
    "loss": fields.named(),
    "rounds": fields.whole(1),
    "per_round": fields.whole(1),
    "fraction": fields.real(above=True, high=1.0),
    "sampling": fields.choice("fixed", "bernoulli", "cyclic"),
    "participants": fields.cohorts(),
    "epochs": fields.amount(),
    "steps": fields.amount(),
    "batch_size": fields.batch(),
    "lr": fields.real(above=True),
    "momentum": fields.real(below=1.0),
    "weight_decay": fields.real(),
    "clip": fields.real(above=True),
    "schedule": fields.schedule(),
    "weights": fields.choice("samples", "uniform"),
    "augment": fields.names(),
    "faults": fields.names(),
    "aggregate": fields.named(),
    "privacy": fields.named(),
    "dtype": fields.choice("float32", "float64"),
    "device": fields.device(),
    "stack": fields.choice("auto", "off", "on"),
    "workers": fields.workers(),
    "backend": fields.backend("auto", "in-process", "processes", "ray"),
    "seed": fields.whole(0, fields.LARGEST_SEED),
    "eval_every": fields.whole(1),
    "out": fields.text(),
}


@dataclass(frozen=True)
class Spec:
    """What to run. None means not said: the algorithm's, the partition's or the package's default.

    `batch_size` is a number or "full", the whole client.
    """

    algorithm: str = "fedavg"
    data: str = "digits"
    data_dir: str | None = None
    partition: str = "dirichlet:0.5"
    alpha: float | None = None
    shift: str | None = None
    clients: int | None = None
    model: str | None = None
    head: str | None = None
    loss: str | None = None
    rounds: int = 20
    per_round: int | None = None
    fraction: float | None = None
    sampling: str = "fixed"
    participants: tuple[tuple[int, ...], ...] | None = None
    epochs: int | str | tuple[int, ...] | None = None
    steps: int | str | tuple[int, ...] | None = None
    batch_size: int | str | None = None
    lr: float | None = None
    momentum: float | None = None
    weight_decay: float | None = None
    clip: float | None = None
    schedule: str | None = None
    weights: str | None = None
    augment: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    aggregate: str | None = None
    privacy: str | None = None
    dtype: str = "float32"
    device: str = "cpu"
    stack: str = "auto"
    workers: int | str = "auto"
    backend: str = "auto"
    seed: int = 0
    eval_every: int = 1
    out: str | None = None

    @classmethod
    def of(cls, values: Mapping[str, object]) -> Spec:
        """From typed values such as TOML's; unknown keys, wrong types and bounds are refused."""
        given: dict[str, Any] = {}
        for key, value in values.items():
            if key not in FIELDS:
                raise unknown("key", key, FIELDS)
            given[key] = FIELDS[key].read(value, key)
        if "participants" in given:
            given.setdefault("rounds", len(given["participants"]))
        return cls(**given)

    @classmethod
    def from_toml(cls, path: Path) -> Spec:
        return cls.of(read_toml(path))

    def to_toml(self) -> str:
        """Everything that is said, defaults included, so that the file stands for itself."""
        import tomlkit

        document = tomlkit.document()
        for key, value in self.said().items():
            document.add(key, list(value) if isinstance(value, tuple) else value)
        return tomlkit.dumps(document)

    def said(self) -> dict[str, Any]:
        """The fields that have a value, in order."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: value for key, value in values.items() if value is not None and value != ()}

    @property
    def wanted_clients(self) -> int | None:
        """How many clients to ask the partition for; None where the partition brings its own."""
        if self.clients is not None or _brings_clients(parse(self.partition, "partition")):
            return self.clients
        return USUAL_CLIENTS

    @property
    def algorithm_named(self) -> Named:
        """The algorithm, with `weights` among its options when said for the run."""
        named = parse(self.algorithm, "algorithm")
        return named if self.weights is None else catalogue.with_weights(named, self.weights)

    def validate(self) -> None:
        """Refuses, in one sentence and without importing torch, what can be known beforehand."""
        for key, value in self.said().items():
            FIELDS[key].read(value, key)
        self._check_pairs()
        self._check_participation()
        catalogue.check(self.algorithm_named)
        _check_names(self)

    def _check_pairs(self) -> None:
        for one, other in EXCLUSIVE:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise InputError(
                    f"{one} ({fields.shown(getattr(self, one))}) and {other} "
                    f"({fields.shown(getattr(self, other))}) are both given; keep one"
                )

    def _check_participation(self) -> None:
        clients = self.wanted_clients
        if self.participants is not None:
            self._check_schedule(self.participants, clients)
        if clients is None:  # known only once the data are divided
            return
        if self.per_round is not None and self.per_round > clients:
            raise InputError(
                f"per_round is {self.per_round} but there are only {clients} clients; "
                f"use at most {clients}"
            )
        for key in ("epochs", "steps"):
            work = getattr(self, key)
            if isinstance(work, tuple) and len(work) != clients:
                raise InputError(
                    f"{key} lists {len(work)} entries for {clients} clients; give one per client"
                )

    def _check_schedule(self, rounds: tuple[tuple[int, ...], ...], clients: int | None) -> None:
        if self.sampling != "fixed":
            raise InputError(
                f"sampling '{self.sampling}' has no meaning with participants; remove one"
            )
        if len(rounds) < self.rounds:
            raise InputError(
                f"participants lists {len(rounds)} rounds but rounds is {self.rounds}; "
                "give one list per round"
            )
        for at, chosen in enumerate(rounds):
            if clients is not None and chosen and max(chosen) >= clients:
                raise InputError(
                    f"participants[{at}] names client {max(chosen)} but there are {clients} "
                    f"clients, 0 to {clients - 1}"
                )


EXCLUSIVE = (("per_round", "fraction"), ("epochs", "steps"), ("participants", "per_round"))


def _brings_clients(partition: Named) -> bool:
    """Natural users, a saved manifest and named classes per client fix the number of clients."""
    return partition.name in ("natural", "manifest") or "|" in (partition.value or "")


def _check_names(spec: Spec) -> None:
    """Data, partition, shift, model and augmentation by their own tables: numpy, but no torch."""
    import numpy as np

    from fedrift.config.models import choose_model
    from fedrift.data.augment import parse_augment
    from fedrift.data.datasets import NAMES as DATA
    from fedrift.data.partition import NAMES as PARTITIONS
    from fedrift.data.shift import shift

    data, partition = parse(spec.data, "data"), parse(spec.partition, "partition")
    is_own = data.value is not None and data.value.isidentifier()
    if data.name not in DATA and not is_own:
        raise unknown("data", data.name, DATA)
    if partition.name not in PARTITIONS:
        raise unknown("partition", partition.name, PARTITIONS)
    if spec.shift is not None:
        shift(spec.shift, np.empty((0, 1, 1, 1)), (), spec.seed)  # of nothing: only checks the text
    if spec.model is not None:
        choose_model(spec.model)
    if spec.loss is not None:
        models.check_loss(spec.loss)
    parse_augment(spec.augment)
    parse_faults(spec.faults)
    parse_aggregate(spec.aggregate)
    parse_privacy(spec.privacy)
