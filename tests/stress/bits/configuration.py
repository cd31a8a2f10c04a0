"""Configurations: drawn from a seed, turned into arguments of `fr.run`, and made simpler."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache, partial
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import torch
from torch.nn import functional as F

import fedrift as fr
from fedrift.algorithms import NAMES
from fedrift.engine.build import build_algorithm
from tests.stress.bits import data, models
from tests.support.compositions import COMPOSED
from tests.support.product import Spec, catalogue

Configuration = dict[str, Any]
"""JSON: `model`, `module` (a module is given, not what makes one), `data`, `algorithm`, `options`
of the run, `torch` (its switches), `ways` it is executed in besides that in this process."""

PERSONAL = "keep ditto finetune fedper fedrep fedbn localonly pfedme apfl".split()
"""Models of the clients' own."""
WRAPPERS = tuple(name for name in NAMES if catalogue.entry(name).is_wrapper)
PLAIN = tuple(name for name in NAMES if name not in WRAPPERS)
CLOSED_FORM = ("fed3r", "fed3rft")
"""They replace the classifier, so that the output must be that of a last layer."""
AVERAGED, LATE = ("swa", "wima"), ("spectral", "late")
"""Averaged weights do not fit running statistics; models whose buffers move in any case."""
HEADED = ("fedper", "fedrep", "keep")
"""What they leave at the clients is the last layer."""
WITH_HEAD = (
    "linear chain mlp tied frozen lazy conv flatconv strided lstm gru bag transformer two".split()
)
UNIFORM = ("fedavg", "fedprox", "scaffold", "fedsam", "fedadam")
"""Some that robust aggregation and privacy are possible with."""
OWN_MOMENTUM = "mime fedgamma ghbm fedhbm diloco fedcm mofedsam scaffold pfedme apfl".split()
"""They refuse another memory in the local steps."""
WHOLE_ROUNDS = ("fednova", "fedsgd", "diloco")
"""Their rates cannot change within a visit."""
UNPICKLED = ("parametrised", "spectral")
"""torch pickles no parametrised module: workers need what makes it."""
STACKED = ("linear", "chain")
SCHEMES = ("iid", "dirichlet:0.5", "dirichlet:0.1,min_size=2", "shards:2", "lognormal:1")
OPTIMIZERS = (
    "sgd:momentum=0.9,nesterov=true",
    "adam",
    "adamw:betas=0.8|0.9",
    "adagrad",
    "rmsprop:momentum=0.5",
    "rmsprop:centered=true",
)
SCHEDULES = ("exp:0.9", "step:2,factor=0.5", "cosine", "exp:0.9,per=step", "cosine:per=step")
FAULTS = (
    ("dropout:0.3",),
    ("stragglers:0.5",),
    ("stragglers:0.5,late=partial", "dropout:0.2"),
    ("corrupt:0.3",),
    ("corrupt:0.3,kind=noise", "dropout:0.2"),
    ("corrupt:0.3,kind=nan", "stragglers:0.5"),
)
AGGREGATES = ("median", "trimmed:0.2", "krum:0", "multikrum:0")
SWITCHES: dict[str, Any] = {
    "mkldnn": False,
    "flush_denormal": True,
    "default_dtype": "float64",
    "attention_fastpath": False,
    "deterministic": 1,
}
SIGNALS = ("SIGINT", "SIGTERM", "SIGKILL")


def _model(r: random.Random, kind: str, algorithm: str) -> dict[str, Any]:
    """A model of that kind; averaged weights do not fit running statistics."""
    choices = models.CHOICES.get(kind, {})
    found = {"kind": kind} | {name: r.choice(values) for name, values in choices.items()}
    if any(name in algorithm for name in AVERAGED) and "norm" in choices:
        found["norm"] = choices["norm"][0]
    return found


def _moves(model: Mapping[str, Any]) -> bool:
    """Whether training moves buffers of it."""
    is_late = model["kind"] in LATE or bool(model.get("follows"))
    return is_late or model.get("norm") in ("batch", "momentless", "instance", True)


def draw(seed: int, number: int) -> Configuration:
    """Configuration `number` of a seed; kinds of models take turns."""
    r = random.Random(f"bits {seed} {number}")
    kinds = sorted(models.KINDS)
    kind = kinds[number % len(kinds)]
    algorithm = _algorithm(r, kind)
    shape = models.takes(kind)
    clients = r.randint(3, 6)
    options = _options(r, algorithm, shape, clients, kind)
    config: Configuration = {
        "model": _model(r, kind, algorithm),
        "module": r.random() < 0.3 and kind not in UNPICKLED,
        "data": {
            "layout": r.choice(list(data.LAYOUTS)),
            "form": r.choice(("pairs", "pairs", "datasets", "split", "split")),
            "inputs": r.choice(("tuple", "dict")),
            "scheme": r.choice(SCHEMES if shape != "regression" else ("iid", "lognormal:1")),
            "clients": clients,
            "samples": r.choice((40, 60)),
            "test": r.choice((0, 20, 300, 300)),
        },
        "algorithm": algorithm,
        "options": options,
        "torch": {},
        "ways": _ways(r, options["rounds"]),
    }
    if _moves(config["model"]):  # running statistics are neither robust nor private
        for name in ("aggregate", "privacy"):
            config["options"].pop(name, None)
    _set_clock(r, config["options"], algorithm)
    if r.random() < 0.2 or kind == "watchful":
        name = r.choice(list(SWITCHES))
        config["torch"] = {name: SWITCHES[name]}
    return json.loads(json.dumps(config))


def _set_clock(r: random.Random, options: dict[str, Any], algorithm: str) -> None:
    """Devices for some; who waits for nobody takes no rule for cohorts."""
    is_asynchronous = any(name in algorithm for name in ("fedasync", "fedbuff"))
    faults = [text for text in options.get("faults", ()) if not text.startswith("stragglers")]
    if is_asynchronous:
        for name in ("aggregate", "privacy", "sampling"):
            options.pop(name, None)
    if not is_asynchronous and (r.random() < 0.7 or "privacy" in options):
        return
    options["devices"] = r.choice(("uniform", "lognormal:1", "lognormal:2,network=0"))
    options.pop("faults", None)
    if faults:
        options["faults"] = faults
    if not is_asynchronous:
        options["late"] = r.choice(("wait", "drop:0.2", "over:1" if _has_room(options) else "wait"))


def _has_room(options: Mapping[str, Any]) -> bool:
    """More clients can be asked than take part: there are three at least."""
    return options.get("per_round", 9) < 3 and options.get("sampling", "fixed") == "fixed"


@cache
def wrapped() -> tuple[str, ...]:
    """Every algorithm in every wrapper that takes it."""
    found: list[str] = []
    for text in (f"{outer}({inner})" for outer in WRAPPERS for inner in PLAIN):
        with suppress(fr.InputError):
            build_algorithm(Spec(algorithm=text), None)
            found.append(text)
    return tuple(found)


def is_personal(algorithm: str) -> bool:
    return any(name in PERSONAL for name in re.findall(r"\w+", algorithm))


@cache
def personal() -> tuple[str, ...]:
    """Those that leave clients a model of their own, some of them in or around others."""
    plain = [name for name in PERSONAL if name in PLAIN]
    around = [text for text in (*wrapped(), *COMPOSED) if is_personal(text)]
    return (*plain, *plain, *plain, *filter(_is_possible, around))


def _is_possible(algorithm: str) -> bool:
    """Of models of the clients' own one is enough, and they come of local steps."""
    outer, *inner = re.findall(r"[a-z]\w*", algorithm.partition(":")[0])
    refused = () if outer not in PERSONAL else ("fedsgd", "fed3r")
    refused = (*refused, *PERSONAL) if outer in ("ditto", "keep", "fed3rft") else refused
    return not any(name in refused for name in inner)


def _algorithm(r: random.Random, kind: str) -> str:
    others = [text for text in (*wrapped(), *COMPOSED) if not is_personal(text)]
    chosen = r.choice((PLAIN, PLAIN, others, COMPOSED, personal()))
    never = ("what=hidden",) if kind in WITH_HEAD else (*CLOSED_FORM, *HEADED)
    never = (*never, *AVERAGED) if kind in LATE else never
    return r.choice([text for text in chosen if not any(name in text for name in never)])


def _options(
    r: random.Random, algorithm: str, shape: str, clients: int, kind: str
) -> dict[str, Any]:
    rounds = r.randint(2, 4)
    lowest = 2 if kind in ("mlp", "lazy", "frozen", "conv", "regression", "two") else 1
    some: dict[str, Any] = {"rounds": rounds, "seed": r.randint(0, 3), "lr": r.choice((0.02, 0.1))}
    if algorithm != "fedsgd":
        some["batch_size"] = r.choice((lowest, 3, 8, 8, "full"))
        work: Any = r.choice((1, 2, 3, [1 + i % 3 for i in range(clients)], "uniform:1,3"))
        some[r.choice(("steps", "epochs"))] = work
    who = r.choice(("per_round", "fraction", "participants", "sampling", "all"))
    match who:
        case "per_round":
            some["per_round"] = r.randint(1, clients)
        case "fraction":
            some["fraction"] = r.choice((0.4, 0.7))
        case "participants":
            cohorts = [r.sample(range(clients), r.randint(1, clients)) for _ in range(rounds)]
            some["participants"] = cohorts
        case "sampling":
            some |= {"sampling": r.choice(("bernoulli", "cyclic")), "fraction": 0.6}
        case _:
            pass
    rare: dict[str, Callable[[], Any]] = {
        "momentum": lambda: 0.9,
        "weight_decay": lambda: 0.01,
        "clip": lambda: 0.5,
        "schedule": lambda: r.choice(SCHEDULES),
        "optimizer": lambda: r.choice(OPTIMIZERS),
        "faults": lambda: r.choice(FAULTS),
        "dtype": lambda: "float64",
        "stack": lambda: r.choice(("off", "on" if kind in STACKED else "off")),
        "eval_every": lambda: 2,
        "metrics": lambda: True,
        "client_test": lambda: r.choice((0.2, 0.5)),
        "weights": lambda: "uniform",
        "augment": lambda: _augment(r, shape),
        "aggregate": lambda: r.choice(AGGREGATES),
        "privacy": lambda: "gaussian:1.0,clip=0.5",
    }
    for name, value in rare.items():
        if r.random() < 0.2:
            some[name] = value()
    if is_personal(algorithm) and r.random() < 0.7:
        some["client_test"] = 0.3
    if "client_test" in some:
        some["eval_clients"] = r.choice(("every=1", "every=2", "every=1,sample=2"))
    return _sane(some, algorithm, shape, kind)


def _augment(r: random.Random, shape: str) -> list[str]:
    if shape == "image":
        return r.sample(("crop:1", "flip", "cutout:2", "mixup"), r.randint(1, 3))
    return ["mixup"]


def _sane(some: dict[str, Any], algorithm: str, shape: str, kind: str) -> dict[str, Any]:
    """Without what is known to be refused: a refusal costs time and shows nothing."""
    drop: set[str] = set()
    if "optimizer" in some:
        drop |= {"momentum", "weight_decay"}
    if any(name in algorithm for name in OWN_MOMENTUM):
        drop |= {"momentum", "optimizer"}
    if shape in ("tokens", "masked", "pair", "regression"):
        drop |= {"augment"}
    if some.get("stack") == "on" and (some.get("augment") or kind not in STACKED):
        drop |= {"stack"}
    if algorithm not in UNIFORM:
        drop |= {"aggregate", "privacy"}
    elif "aggregate" in some:
        some["weights"] = "uniform"
        drop |= {"privacy"}
    if "privacy" in some:
        some["weights"] = "uniform"
        drop |= {"faults", "participants"}
        if find_spec("dp_accounting") is None:
            drop |= {"privacy"}
    if "fed3r" in algorithm:
        drop |= {"faults", "weights"}
    if "localonly" in algorithm:
        drop |= {"weights"}
    if "fednova" in algorithm:
        drop |= {"clip", "optimizer"}
    if "fedsgd" in algorithm:
        drop |= {"optimizer", "momentum", "clip", "steps", "epochs"}
    if any(name in algorithm for name in WHOLE_ROUNDS) and "per=step" in some.get("schedule", ""):
        drop |= {"schedule"}
    return {name: value for name, value in some.items() if name not in drop}


def _ways(r: random.Random, rounds: int) -> list[str]:
    """At most one in ten starts workers by importing torch anew, which takes seconds."""
    start = "spawn" if r.random() < 0.1 else "forkserver"
    workers = 1 if start == "spawn" else r.randint(1, 3)
    stop = f"{r.choice(SIGNALS)},{r.randint(1, rounds - 1)},{r.choice((0, 0, 3, 15))}"
    before, after = r.choice((0, 0, 0, 0, 0, 2)), r.choice((0, 0, 1, 2))
    return [
        "shifted",
        f"workers:{workers},{start}",
        r.choice(("kept", "kept", "compared")),
        f"resumed:{stop},{before},{after}",
    ]


# As arguments of a run.


def off_by_half(output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """A metric of the whole test set."""
    return (output.float().mean(0) - 0.5).abs().sum() + target.float().mean()


def made_module(config: Configuration) -> torch.nn.Module:
    torch.manual_seed(7)
    said = {name: value for name, value in config["model"].items() if name != "kind"}
    return models.make(config["model"]["kind"], said)


def arguments(config: Configuration, layout: str | None = None) -> dict[str, Any]:
    """What `fr.run` is called with, but the algorithm; another layout holds the same values."""
    about, shape = config["data"], models.takes(config["model"]["kind"])
    said = {name: value for name, value in config["model"].items() if name != "kind"}
    laid = layout or about["layout"]
    number, clients = about["samples"], about["clients"]
    x, y = data.given(shape, number, 1, laid, about["inputs"])
    options = dict(config["options"])
    found: dict[str, Any] = {
        "model": made_module(config)
        if config["module"]
        else partial(models.make, config["model"]["kind"], said),
        "clients": _clients(x, y, about, number, clients),
    }
    if about["test"]:
        found["test"] = data.given(shape, about["test"], 2, laid, about["inputs"])
    if shape == "regression":
        found["loss"] = F.mse_loss
    if options.pop("metrics", False):
        found["metrics"] = {"off": off_by_half}
    return found | options


def _clients(x: Any, y: Any, about: Mapping[str, Any], number: int, clients: int) -> Any:
    if about["form"] == "split":
        return fr.split(x, y, about["scheme"], clients=clients, seed=3)
    ends = [number * i * i // (clients * clients) for i in range(clients)] + [number]
    pairs = [(data.rows(x, slice(a, b)), y[a:b]) for a, b in pairwise(ends)]
    return [data.data_set(*p) for p in pairs] if about["form"] == "datasets" else pairs


# Simpler ones, for a failure that is to be understood.

USUAL = {"layout": "plain", "form": "pairs", "scheme": "iid", "inputs": "tuple", "test": 20}


def simpler(config: Configuration) -> Iterator[Configuration]:
    """Each without one thing, or with less of it; the boldest first."""

    def changed(part: str, **values: Any) -> Configuration:
        return {**config, part: {**config[part], **values}}

    def without(part: str, name: str) -> Configuration:
        return {**config, part: {k: v for k, v in config[part].items() if k != name}}

    if config["model"] != {"kind": "linear"} and models.takes(config["model"]["kind"]) == "vector":
        yield {**config, "model": {"kind": "linear"}}
    if config["algorithm"] != "fedavg":
        inner = config["algorithm"].partition("(")[2].partition(")")[0]
        yield {**config, "algorithm": "fedavg"}
        if inner:
            yield {**config, "algorithm": inner}
    for name in config["options"]:
        if name not in ("rounds", "lr", "batch_size"):
            yield without("options", name)
    for name in config["torch"]:
        yield without("torch", name)
    if config["module"]:
        yield {**config, "module": False}
    for name, value in USUAL.items():
        if config["data"][name] != value:
            yield changed("data", **{name: value})
    for name in config["model"]:
        if name != "kind":
            yield without("model", name)
    if config["options"]["rounds"] > 1:
        yield changed("options", rounds=config["options"]["rounds"] - 1)
    if config["data"]["clients"] > 1:
        yield changed("data", clients=config["data"]["clients"] - 1)
    if config["data"]["samples"] > 10:
        yield changed("data", samples=config["data"]["samples"] // 2)
