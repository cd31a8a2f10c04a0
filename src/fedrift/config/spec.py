"""One experiment, as typed on the command line or kept in a TOML file."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from fedrift.config import (
    algorithms,
    client_evaluation,
    fields,
    local_work,
    models,
    participation,
)
from fedrift.config.adapters import parse_adapter
from fedrift.config.privacy import parse_aggregate, parse_privacy
from fedrift.core.devices import parse_devices, parse_late
from fedrift.core.faults import parse_faults
from fedrift.core.plain_files import read_plain
from fedrift.errors import InputError, unknown
from fedrift.grammar import Named, parse

# TOML files, read with care.

LARGEST_FILE = 1 << 20  # bytes; a spec is a page of text


def read_toml(path: Path) -> dict[str, object]:
    """The values of a TOML file that nobody vouches for."""
    try:
        raw = read_plain(path, LARGEST_FILE)
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        raise InputError(
            f"spec '{path}' cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from None
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"spec '{path}' is not UTF-8 text; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"spec '{path}' is not valid TOML: {error}") from None


# One declaration for each setting of a run: everything else is read from it.

TASK, WHO, LOCAL = "Data and model", "Who takes part", "Local work"
TIME, FAULTS = "Devices and time", "Faults and protection"
HOW, OUTPUT = "How it runs", "Output"
GROUPS = (TASK, WHO, LOCAL, TIME, FAULTS, HOW, OUTPUT)
"""The panels of the command line's help, in order."""

USUAL_CLIENTS = 10


@dataclass(frozen=True)
class Setting:
    """What a setting accepts, and how it is presented and combined."""

    field: fields.Field
    group: str
    help: str
    varies: bool
    """It can be an axis of a comparison, and be set for one algorithm of it."""
    not_with: str
    """A setting that says the same in another way."""
    also: str
    """Another name of its flag."""


def setting(
    default: object,
    field: fields.Field,
    group: str,
    help: str,
    *,
    varies: bool = True,
    not_with: str = "",
    also: str = "",
) -> Any:
    """A field of `Spec` with its declaration."""
    about = Setting(field, group, help, varies, not_with, also)
    return dataclasses.field(default=default, metadata={"setting": about})


@dataclass(frozen=True)
class Spec:
    """What to run. None means not said: the algorithm's, the partition's or the package's default.

    `batch_size` is a number or "full", the whole client.
    """

    algorithm: str = setting(
        "fedavg", fields.named(), TASK, "A name with its options.", varies=False
    )
    data: str = setting(
        "digits", fields.named(), TASK, "Data set: digits unless said; see: fedrift list data."
    )
    data_dir: str | None = setting(
        None,
        fields.text("FOLDER"),
        TASK,
        "Where data files are looked for first; else in FEDRIFT_DATA.",
        varies=False,
    )
    partition: str = setting(
        "dirichlet:0.5",
        fields.named(),
        TASK,
        "How data are divided: dirichlet:0.5 unless said; see: fedrift list partitions.",
    )
    alpha: float | None = setting(
        None, fields.real(), TASK, "Takes the place of the alpha in a Dirichlet partition."
    )
    shift: str | None = setting(
        None,
        fields.named(),
        TASK,
        "Inputs differ by client: rotation:45, noise:0.5, or rotation:45,domains=6,unseen=5.",
    )
    client_test: float | str | None = setting(
        None,
        client_evaluation.client_test(),
        TASK,
        "Share of its samples that each client tests on; own: what the data bring for each user.",
    )
    clients: int | None = setting(None, fields.whole(1), WHO, "Number of clients (10).")
    model: str | None = setting(
        None,
        fields.named(),
        TASK,
        "cnn if the images are large enough, else mlp; see: fedrift list models.",
    )
    head: str | None = setting(None, fields.text(), TASK, "The last layer of your own model.")
    adapter: str | None = setting(
        None,
        fields.named(),
        TASK,
        "Train few parameters on a frozen base: lora:rank=8,alpha=16, bitfit or head.",
    )
    loss: str | None = setting(
        None,
        fields.named(),
        TASK,
        "cross_entropy, mse, l1, bce or module:function (cross_entropy).",
    )
    rounds: int = setting(20, fields.whole(1), HOW, "Number of rounds (20).")
    per_round: int | None = setting(
        None, fields.whole(1), WHO, "Clients in each round (all).", not_with="fraction"
    )
    fraction: float | None = setting(
        None, fields.real(above=True, high=1.0), WHO, "The same as a share of all clients."
    )
    sampling: str = setting(
        "fixed",
        participation.sampling(),
        WHO,
        "fixed, bernoulli, cyclic, size, available, power:D or module:function (fixed).",
    )
    participants: tuple[tuple[int, ...], ...] | None = setting(
        None,
        participation.cohorts(),
        WHO,
        "Exactly who, round by round: 0,3|1,2|0,4.",
        not_with="per_round",
    )
    epochs: int | str | tuple[int, ...] | None = setting(
        None,
        local_work.amount(),
        LOCAL,
        "Passes over a client's data (1): a number, one per client 1,3,2, or uniform:2,5.",
        not_with="steps",
    )
    steps: int | str | tuple[int, ...] | None = setting(
        None,
        local_work.amount(),
        LOCAL,
        "Minibatch steps instead of epochs, said in the same ways.",
    )
    batch_size: int | str | None = setting(
        None,
        local_work.batch(),
        LOCAL,
        "Samples in a minibatch (64), or full: all that the client has.",
    )
    lr: float | None = setting(None, fields.real(above=True), LOCAL, "Learning rate (0.1).")
    momentum: float | None = setting(
        None, fields.real(below=1.0), LOCAL, "Momentum of the local steps (0)."
    )
    weight_decay: float | None = setting(None, fields.real(), LOCAL, "L2 weight decay (0).")
    clip: float | None = setting(
        None, fields.real(above=True), LOCAL, "Largest norm of a step (none)."
    )
    schedule: str | None = setting(
        None,
        local_work.schedule(),
        LOCAL,
        "Rate over rounds: exp:0.9, step:10,factor=0.5, cosine; with per=step over local steps.",
    )
    optimizer: str | None = setting(
        None,
        local_work.optimizer(),
        LOCAL,
        "sgd, adam, adamw:betas=0.9|0.95, adagrad or rmsprop (sgd), new at every visit.",
        also="--local-optimizer",
    )
    weights: str | None = setting(
        None,
        fields.choice("samples", "uniform"),
        WHO,
        "How replies are averaged (as the algorithm says).",
    )
    augment: tuple[str, ...] = setting(
        (), fields.names(), TASK, "Such as crop:4 or flip; can be given several times."
    )
    devices: str | None = setting(
        None,
        fields.text("DEVICES"),
        TIME,
        "A simulated clock: uniform, lognormal:1, stragglers:0.5, FILE.csv, trace:FILE.csv (none).",
    )
    late: str | None = setting(
        None,
        fields.named(),
        TIME,
        "About slow clients: wait, drop:SECONDS, partial:SECONDS or over:CLIENTS (wait).",
    )
    faults: tuple[str, ...] = setting(
        (),
        fields.names(),
        FAULTS,
        "dropout:0.1, stragglers:0.3,late=partial or corrupt:0.2; can be repeated.",
    )
    aggregate: str | None = setting(
        None,
        fields.named(),
        FAULTS,
        "In place of the mean: median, trimmed:0.1, krum:2 or multikrum:2.",
    )
    privacy: str | None = setting(
        None,
        fields.named(),
        FAULTS,
        "Clip and noise what clients send: gaussian:NOISE,clip=LENGTH,delta=1e-5.",
    )
    compress: str | None = setting(
        None,
        fields.compression(),
        HOW,
        "Pack what travels: up=topk:0.01, up=qsgd:8,down=float16, or sign; see the guide to it.",
    )
    dtype: str = setting(
        "float32", fields.choice("float32", "float64"), HOW, "Precision (float32)."
    )
    device: str = setting(
        "cpu", fields.device(), HOW, "cpu, cuda, cuda:1 or mps (cpu).", varies=False
    )
    stack: Literal["auto", "off", "on"] = setting(
        "auto",
        fields.choice("auto", "off", "on"),
        HOW,
        "Train small models many clients at once (auto).",
        varies=False,
    )
    workers: int | str = setting(
        "auto",
        fields.workers(),
        HOW,
        "Worker processes (auto: one per core); 0: none, in this process.",
        varies=False,
    )
    backend: str = setting(
        "auto",
        fields.backend(),
        HOW,
        "Where clients run (auto); ray:ADDRESS is a cluster.",
        varies=False,
    )
    seed: int = setting(
        0,
        fields.whole(0, fields.LARGEST_SEED),
        HOW,
        "Fixes every random choice (0).",
        varies=False,
    )
    eval_every: int = setting(
        1, fields.whole(1), HOW, "Evaluate every N-th round, and the last (1)."
    )
    eval_clients: str | None = setting(
        None,
        client_evaluation.client_evaluation(),
        HOW,
        "Evaluate at clients, on test data of their own: every=10, or every=10,sample=200.",
    )
    out: str | None = setting(
        None,
        fields.text("FOLDER"),
        OUTPUT,
        "New folder for curve, ledger and weights; else nothing is written.",
        varies=False,
    )

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
        for key, value in self.to_dict().items():
            document.add(key, list(value) if isinstance(value, tuple) else value)
        return tomlkit.dumps(document)

    def to_dict(self) -> dict[str, Any]:
        """The fields that have a value, in order."""
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {key: value for key, value in values.items() if value is not None and value != ()}

    def local_work(self) -> dict[str, Any]:
        """What is said of the local steps."""
        return {key: value for key, value in self.to_dict().items() if key in LOCAL_WORK}

    @property
    def wanted_clients(self) -> int | None:
        """How many clients to ask the partition for; None where the partition brings its own."""
        if self.clients is not None or _brings_clients(parse(self.partition, "partition")):
            return self.clients
        return USUAL_CLIENTS

    @property
    def algorithm_named(self) -> Named:
        """The algorithm, with `weights` among its options when said for the run."""
        named, weights = parse(self.algorithm, "algorithm"), self.mean_weights
        return named if weights is None else algorithms.with_weights(named, weights)

    @property
    def mean_weights(self) -> str | None:
        """How replies are averaged, if it is said: who is drawn by size is averaged uniformly."""
        if participation.sampling_of(self.sampling).kind not in ("size", "power"):
            return self.weights
        if self.weights == "samples":
            raise InputError(
                f"sampling '{self.sampling}' draws clients by their samples, and weights "
                "'samples' would count these twice; leave weights out"
            )
        return "uniform"

    def validate(self) -> None:
        """Refuses, in one sentence and without importing torch, what can be known beforehand."""
        for key, value in self.to_dict().items():
            FIELDS[key].read(value, key)
        self.check_clients(self.wanted_clients)
        algorithms.check(self.algorithm_named)
        _check_names(self)

    def check_clients(self, clients: int | None) -> None:
        """Refuses what does not go together; None: how many clients there are is not known yet."""
        for one, other in EXCLUSIVE:
            if getattr(self, one) is not None and getattr(self, other) is not None:
                raise InputError(
                    f"{one} ({fields.shown(getattr(self, one))}) and {other} "
                    f"({fields.shown(getattr(self, other))}) are both given; keep one"
                )
        self._check_optimizer()
        if self.shift is not None:
            from fedrift.data.shift import domains_of

            domains_of(self.shift, clients)
        if self.participants is not None:
            self._check_schedule(self.participants, clients)
        if clients is None:
            return
        if self.per_round is not None and self.per_round > clients:
            raise InputError(
                f"per_round is {self.per_round} but there are only {clients} clients; "
                f"use at most {clients}"
            )
        for key in ("epochs", "steps"):
            local_work.check_length(getattr(self, key), key, clients)

    def _check_optimizer(self) -> None:
        """The run's momentum and weight_decay are options of its optimizer that were not said."""
        name, options = local_work.optimizer_of(self.optimizer or "sgd")
        for key in ("momentum", "weight_decay"):
            value = getattr(self, key)
            if value is not None and key in options:
                raise InputError(
                    f"{key} ({value:g}) and optimizer '{self.optimizer}' say the same; keep one"
                )
            if value and key not in local_work.OPTIMIZERS[name].split():
                raise InputError(
                    f"{key} ({value:g}): optimizer '{name}' has none; drop it, or use sgd, rmsprop"
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


SETTINGS: dict[str, Setting] = {f.name: f.metadata["setting"] for f in dataclasses.fields(Spec)}
FIELDS = {name: one.field for name, one in SETTINGS.items()}
LOCAL_WORK = tuple(name for name, one in SETTINGS.items() if one.group == LOCAL)
AXES = tuple(name for name, one in SETTINGS.items() if one.varies)
EXCLUSIVE = tuple((name, one.not_with) for name, one in SETTINGS.items() if one.not_with)


def replaced_by(keys: Collection[str]) -> set[str]:
    """What gives way where these are said anew: rivals, and the rounds of a schedule of clients."""
    both = (*EXCLUSIVE, *((b, a) for a, b in EXCLUSIVE))
    rounds = {"rounds"} if "participants" in keys else set[str]()
    return {other for one, other in both if one in keys} | rounds


def _brings_clients(partition: Named) -> bool:
    """Natural users, a saved manifest and named classes per client fix the number of clients."""
    return partition.name in ("natural", "manifest") or "|" in (partition.value or "")


def _check_names(spec: Spec) -> None:
    """Data, partition, model and augmentation by their own tables: numpy, but no torch."""
    from fedrift.config.models import choose_model, extractor_text
    from fedrift.data.augment import parse_augment
    from fedrift.data.datasets import FEATURES, check
    from fedrift.data.datasets import NAMES as DATA
    from fedrift.data.partition import NAMES as PARTITIONS

    data, partition = parse(spec.data, "data"), parse(spec.partition, "partition")
    is_own = data.value is not None and data.value.isidentifier()
    if data.name not in DATA and not is_own:
        raise unknown("data", data.name, DATA)
    if data.name == FEATURES:
        check(spec.data)
        extractor_text(data)
    if partition.name not in PARTITIONS:
        raise unknown("partition", partition.name, PARTITIONS)
    if spec.model is not None:
        choose_model(spec.model)
    if spec.loss is not None:
        models.check_loss(spec.loss)
    if spec.adapter is not None:
        parse_adapter(spec.adapter)
    parse_augment(spec.augment)
    parse_devices(spec.devices)
    parse_late(spec.late)
    parse_faults(spec.faults)
    parse_aggregate(spec.aggregate)
    parse_privacy(spec.privacy)
