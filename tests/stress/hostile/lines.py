"""Command lines drawn from the program's own commands and options, with values good and bad.

Commands and their options take turns, so that a few hundred lines meet each of them. What a line
may not do: `trial.flaws`; and a refusal (exit code 2) leaves nothing behind, and a finished run is
what `verify` finds when it does all of it again.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import click

from fedrift.algorithms import NAMES
from fedrift.cli import tree
from tests.stress.hostile.trial import (
    ENDS,
    Ended,
    Place,
    Started,
    command,
    differing,
    flaws,
    real,
    seen,
    started,
    written,
)
from tests.support.compositions import COMPOSED

REAL = 25  # one line of so many begins with nothing imported
SMALL = "--data digits --clients 3 --model logistic --rounds 2 --workers 0".split()
DEEP = "swa(" * 60 + "fedavg" + ")" * 60
AMOUNTS = {"rounds", "steps", "epochs", "clients", "seeds", "images", "top", "probes", "curved"}
"""With a large number in one of these a command may work for hours: it is interrupted."""
ENDLESS = {"watch", "preset run", "flower demo", "conform"}
SOON = 2.0  # seconds until Ctrl-C for what may work for hours
FOLDERS = ("done", "cut", "both")
"""Run folders that lie in the folder of work: finished, stopped, and a comparison of two."""

NUMBERS = "0 1 2 3 -1 0.1 0.5 1e-3 1e30 -0 nan inf -inf 1e309 10**9 99999999999999999999 0x10 ٣ 1_0"
WORDS = (
    *(
        "",
        " ",
        "=",
        ":",
        ",",
        "|",
        "(",
        ")",
        "--",
        "-",
        "none",
        "null",
        "true",
        "auto",
        "é",
        "日本",
    ),
    *("a" * 5000, "../x", "/", "/dev/zero", "pipe", "missing", ".", "beside", "evil:x", "\udc80"),
    *("\x1b[31mred", "x\ny", "$(id)", "%s", "{0}", "[red]x", "1,2,,3", "fedavg)", DEEP),
)
HOSTILE = (*NUMBERS.split(), *WORDS)

DATA = (
    "digits",
    "synthetic:1,1",
    "synthetic:0,0,clients=5",
    "python-docs",
    "mnist",
    "npz:missing.npz",
    "csv:pipe",
    "text:pipe",
    "images:.",
    "huggingface:x",
    "features:digits",
)
PARTITIONS = (
    *("iid", "dirichlet:0.3", "dirichlet-client:0.5", "hsu:1", "classes:2", "shards:2", "natural"),
    *("lognormal:1", "powerlaw:1.5", "manifest:missing", "dirichlet:0.1,min_size=5"),
)
ALGORITHMS = (*NAMES, *COMPOSED, "fedprox:mu=0.3", "scaffold:option=I,server_lr=0.5")
GOOD: dict[str, Sequence[str]] = {
    "algorithm": ALGORITHMS,
    "algorithms": ALGORITHMS,
    "name": ALGORITHMS,
    "names": ("fedavg", "scaffold", "fedprox:mu=0.1"),
    "data": DATA,
    "data_dir": ("missing", ".", "pipe"),
    "data_folder": ("missing", ".", "pipe"),
    "partition": PARTITIONS,
    "scheme": PARTITIONS,
    "alpha": ("0.1", "1", "100"),
    "shift": ("rotation:45", "noise:0.5", "contrast:0.5"),
    "client_test": ("0.2", "own", "0.99"),
    "model": ("logistic", "mlp:hidden=8", "mlp:hidden=4,depth=3", "cnn", "lenet", "gpt", "lstm"),
    "head": ("linear", "0", "out"),
    "loss": ("cross_entropy", "mse", "l1", "bce", "evil:x"),
    "augment": ("crop:1", "flip", "cutout:2", "mixup", "mixup:alpha=1", "flip,crop:1"),
    "clients": ("1", "2", "3", "5", "0"),
    "per_round": ("1", "2", "4"),
    "fraction": ("0.5", "1", "0.01"),
    "sampling": ("fixed", "bernoulli", "cyclic"),
    "participants": ("0,1|2", "0|1", "0,0", "7", "|"),
    "weights": ("samples", "uniform"),
    "epochs": ("1", "2", "1,2,1", "uniform:1,2", "0"),
    "steps": ("1", "3", "1,2,1", "uniform:1,3", "5"),
    "batch_size": ("full", "8", "1000", "0", "1"),
    "lr": ("0.1", "1e-3", "1e10", "0"),
    "momentum": ("0.9", "0"),
    "weight_decay": ("0.01",),
    "clip": ("0.5", "1e-9"),
    "schedule": ("exp:0.9", "step:2,factor=0.5", "cosine", "cosine:per=step", "exp:0.9,per=step"),
    "optimizer": ("sgd", "adam", "adamw:betas=0.9|0.95", "adagrad", "rmsprop:momentum=0.5"),
    "faults": ("dropout:0.3", "stragglers:0.5,late=partial", "corrupt:0.4,kind=nan", "corrupt:1"),
    "aggregate": ("median", "trimmed:0.1", "krum:1", "krum:0", "multikrum:0"),
    "privacy": ("gaussian:1,clip=0.5,delta=1e-5", "gaussian:1"),
    "compress": ("topk:0.1", "sign", "qsgd:4", "half"),
    "rounds": ("1", "2", "3"),
    "dtype": ("float32", "float64"),
    "device": ("cpu", "cuda", "mps", "cuda:7"),
    "stack": ("auto", "off", "on"),
    "workers": ("0", "0", "0", "0", "auto", "1"),
    "backend": ("auto", "in-process", "ray", "ray:127.0.0.1:9"),
    "seed": ("0", "7", "2"),
    "eval_every": ("1", "2", "100"),
    "eval_clients": ("every=1", "every=1,sample=2"),
    "out": ("new", "new/deep/er", "done", "both", "beside", "pipe"),
    "spec": ("small.toml", "done/spec.toml", "pipe", "missing.toml", "both/compare.toml"),
    "track": ("tensorboard", "mlflow", "wandb"),
    "analyse": ("every=1,what=drift,classes", "every=1", "what=classes"),
    "seeds": ("1", "2", "0,7"),
    "tune": ("lr=0.01,0.1", "mu=0.1,1", "lr="),
    "tune_budget": ("4", "100"),
    "runs": FOLDERS,
    "run": FOLDERS,
    "router": ("ridge", "prototype"),
    "mix": ("top-1", "soft"),
    "samples": ("1", "1,2"),
    "noises": ("0,0.1", "0"),
    "crowds": ("1,2", "1"),
    "adapter": ("lora:rank=2,alpha=4",),
    "devices": ("lognormal:1",),
    "late": ("drop:10", "partial:1", "over:1"),
    "folder": FOLDERS,
    "target": ("0.5", "0.9"),
    "baseline": ("fedavg", "scaffold"),
    "last": ("1", "10"),
    "format": ("md", "md,latex,csv"),
    "figures": ("png", "svg,png", "pdf"),
    "title": ("A <b>title</b>", "x"),
    "what": ("drift", "classes", "drift,classes", "cka", "sharpness", "predictions"),
    "images": ("50", "20"),
    "curved": ("1",),
    "top": ("2",),
    "probes": ("1",),
    "rho": ("0.05",),
    "rho_a": ("0.5",),
    "how": ("mean", "task:0.3", "ties:0.2", "dare:0.9,scale=1", "fisher:samples=20", "aligned"),
    "port": ("0", "65535", "1"),
    "at_round": ("1", "2", "0", "9"),
    "set": ("lr=0.01", "momentum=0.5", "rounds=3", "data=mnist", "privacy=gaussian:1,clip=1"),
    "terrain": ("bowls", "wells"),
    "kind": ("algorithms", "data", "partitions", "models", "losses", "shifts", "schedules"),
    "save": ("m.json", "new/m.json", "done", "pipe"),
    "picture": ("p.png", "p.svg", "p.xyz", "done"),
    "size": ("laptop", "evening", "full"),
    "part": ("x", "main"),
    "deadline": ("1", "10"),
    "shape": ("1,8,8", "3,32,32"),
    "classes": ("10", "2"),
    "nodes": ("2", "1"),
    "host": ("localhost", "203.0.113.1"),
}
OTHER: dict[str, dict[str, Sequence[str]]] = {
    "analyse": {"data": ("train", "test"), "clients": ("2", "1"), "steps": ("5",)},
    "partition": {"data": ("digits", "synthetic:1,1", "mnist", "csv:pipe")},
    "preset show": {"name": ("fedopt-servers", "mnist-scaffold", "fedgf-table", "permutation")},
    "preset run": {"name": ("fednova-synthetic", "mnist-scaffold"), "out": ("new", "done", "pipe")},
    "flower init": {"folder": ("app", "done", "pipe"), "spec": ("small.toml", "pipe")},
    "flower papers": {"folder": ("papers", "done", "pipe")},
    "flower demo": {"out": ("done", "pipe"), "rounds": ("1",)},
    "explain": {"rounds": ("2", "3"), "out": ("x.html", "x.png", "x.svg", "done", "pipe")},
    "report": {"out": ("page.html", "new/page.html", "done", "pipe")},
    "merge": {"out": ("merged", "done", "pipe")},
    "conform": {},
}
"""Where the same name means something else."""
NEEDED: dict[str, Sequence[str]] = {
    "run": SMALL,
    "compare": SMALL,
    "analyse": "--what classes --images 50".split(),
    "watch": ["--no-open"],
    "fork": "--at-round 1 --out forked".split(),
    "explain": "--rounds 2".split(),
    "partition": "--clients 3".split(),
    "flower demo": "--rounds 1 --nodes 2 --no-secure".split(),
}
"""So that it is quick; an option that is drawn takes the place of one that stands here."""
RENAMED = {"as_json": "json", "change": "set", "formats": "format", "local_optimizer": "optimizer"}
"""Parameters whose name in the code is another than that of their flag."""
OPTIONAL = {"run": 0.8, "partition": 0.7, "watch": 0.7}
"""How often an argument is given that need not be."""


@dataclass(frozen=True)
class Option:
    """An option or an argument of a command."""

    name: str
    flag: str
    """Empty for an argument."""
    is_flag: bool
    is_many: bool
    examples: tuple[str, ...] = ()
    """Values that its help tells."""


@dataclass(frozen=True)
class Line:
    """A command line; `options` are (option, value), and stand after the command."""

    path: tuple[str, ...]
    options: tuple[tuple[Option, str | None], ...]

    @property
    def command(self) -> str:
        return " ".join(self.path)

    @property
    def words(self) -> list[str]:
        said = {option.flag for option, _ in self.options if option.flag}
        needed = list(NEEDED.get(self.command, ()))
        found: list[str] = []
        while needed:
            flag, *values = needed.pop(0), *needed[:1]
            has_value = bool(values) and not values[0].startswith("--")
            value = [needed.pop(0)] if has_value else []
            found += [] if flag in said else [flag, *value]
        for option, value in self.options:
            found += [option.flag] * bool(option.flag) + ([] if value is None else [value])
        return [*self.path, *found]

    @property
    def may_last(self) -> bool:
        if self.command in ENDLESS:
            return True
        given = {o.name: v for o, v in self.options if v is not None}
        return any(v not in GOOD.get(n, ()) for n, v in given.items() if n in AMOUNTS) or (
            any("=" in v and v not in GOOD.get(n, ()) for n, v in given.items())
            or given.get("workers", "0") != "0"
        )


@cache
def commands() -> dict[tuple[str, ...], tuple[Option, ...]]:
    """Every command with its options, as the program itself tells them."""
    found: dict[tuple[str, ...], tuple[Option, ...]] = {}

    def walk(node: click.Command, path: tuple[str, ...]) -> None:
        if isinstance(node, click.Group):
            for name, child in node.commands.items():
                walk(child, (*path, name))
            return
        found[path] = tuple(_option(p) for p in node.params if p.name not in (None, "help"))

    walk(tree(), ())
    return found


def _option(parameter: click.Parameter) -> Option:
    is_option = isinstance(parameter, click.Option)
    long = [text for text in parameter.opts if text.startswith("--")] or list(parameter.opts)
    return Option(
        name={
            "as_json": "json",
            "change": "set",
            "formats": "format",
            "local_optimizer": "optimizer",
        }.get(str(parameter.name), str(parameter.name)),
        flag=long[0] if is_option else "",
        is_flag=isinstance(parameter, click.Option) and parameter.is_flag,
        is_many=parameter.nargs == -1 or parameter.multiple,
        examples=tuple(
            re.findall(r"\w+:[\w=,.|]*\w|\w+=[\w,.]*\w", getattr(parameter, "help", "") or "")
        ),
    )


def draw(seed: int, number: int) -> Line:
    """Line `number` of a seed."""
    r = random.Random(f"lines {seed} {number}")
    turns = [*commands(), *(("run",),) * 12, *(("compare",),) * 4]  # most can be said of these
    path = turns[number % len(turns)]
    known, drawn = commands()[path], list[tuple[Option, str | None]]()
    arguments = [option for option in known if not option.flag]
    named = [option for option in known if option.flag]
    for option in arguments:
        if r.random() < OPTIONAL.get(" ".join(path), 0.97):
            count = r.choice((1, 1, 2)) if option.is_many else 1
            drawn += [(option, _value(r, path, option)) for _ in range(count)]
    if named:
        turn = named[(number // len(turns) + r.randint(0, 3)) % len(named)]
        more = r.sample(named, min(len(named), r.choice((0, 1, 1, 2, 3))))
        for option in dict.fromkeys((turn, *more)):
            drawn.append((option, None if option.is_flag else _value(r, path, option)))
    if path in (("run",), ("compare",)) and r.random() < 0.5:
        out = next(option for option in named if option.name == "out")
        if all(option != out for option, _ in drawn):
            drawn.append((out, "new"))
    return Line(path, tuple(drawn))


def _value(r: random.Random, path: tuple[str, ...], option: Option) -> str:
    known = OTHER.get(" ".join(path), {}).get(option.name) or GOOD.get(option.name)
    known = known or option.examples or ("x",)
    good, chance = r.choice(list(known)), r.random()
    if chance < 0.65:
        return good
    return r.choice(HOSTILE) if chance < 0.85 else _bent(r, good)


def _bent(r: random.Random, text: str) -> str:
    """A good value with something of its grammar taken out, doubled, put in or exchanged."""
    for _ in range(r.randint(1, 3)):
        at = r.randrange(len(text) + 1)
        piece = r.choice(
            ("", ":", ",", "=", "|", "(", ")", "-", "9", "x", " ", text[at:], text[:3])
        )
        text = text[:at] + piece + text[at + r.randint(0, 2) :]
    return text


# What a line is judged by.


def fill(place: Place, originals: Path) -> None:
    """What lines speak of: run folders, a spec, a pipe; `beside` leads out."""
    for name in FOLDERS:
        shutil.copytree(originals / name, place.work / name)
    (place.work / "evil.py").write_text("x = 1\n")  # who names code in a command means it
    (place.work / "small.toml").write_text('rounds = 1\nmodel = "logistic"\nworkers = 0\n')
    os.mkfifo(place.work / "pipe")
    (place.work / "beside").symlink_to(place.beside)


def executed(line: Line, place: Place, is_real: bool = False) -> Ended:
    start = real(place, line.words) if is_real else started(place, command(line.words))
    return interrupted(start) if line.may_last else start.ended()


def interrupted(start: Started) -> Ended:
    """What may take hours must end when it is told to."""
    until = time.monotonic() + SOON
    while time.monotonic() < until and not start.poll():
        time.sleep(0.02)
    if not start.poll():
        start.strike(signal.SIGINT, start.family())
    return start.ended(ENDS)


def judged(line: Line, originals: Path, root: Path, is_real: bool = False) -> list[str]:
    """What is wrong with what a line did."""
    place = Place(root)
    try:
        fill(place, originals)
        before = seen(place.work)
        ended = executed(line, place, is_real)
        found = flaws(ended) + place.trespass()
        changed = differing(before, seen(place.work))
        if ended.code == 2 and changed:
            found.append(f"refused, but '{changed[0]}' was written")
        if line.path == ("run",) and ended.code == 0:
            found += _not_reproduced(place, line, ended)
        return found
    finally:
        place.remove()


def _not_reproduced(place: Place, line: Line, ended: Ended) -> list[str]:
    """A finished run must be found right by one that does it again."""
    given = dict((option.name, value) for option, value in line.options)
    out = given.get("out")
    if out is None or not (place.work / out / "summary.json").is_file():
        return []
    fingerprint = json.loads((place.work / out / "summary.json").read_text())["fingerprint"]
    if "json" in given and fingerprint not in ended.out:
        return ["wrong result: another fingerprint is printed than kept"]
    again = started(place, command(["verify", "--quiet", "--trust-code", "--", out])).ended()
    found = flaws(again)
    if again.code != 0 and not found:
        found.append(f"wrong result: {again.errors.strip()[:200]}")
    return [f"verify: {one}" for one in found]


def shrunk(line: Line, flaw: str, originals: Path, scratch: Path) -> Line:
    """The shortest line found that still shows a flaw of this kind."""
    kind, smallest, tries = flaw.partition(":")[0], line, 0
    candidates = iter(range(40))
    progress = True
    while progress:
        progress = False
        for i in range(len(smallest.options)):
            options = (*smallest.options[:i], *smallest.options[i + 1 :])
            candidate = replace(smallest, options=options)
            if next(candidates, None) is None:
                return smallest
            tries += 1
            if any(
                one.partition(":")[0] == kind
                for one in judged(candidate, originals, scratch / f"smaller-{tries}")
            ):
                smallest, progress = candidate, True
                break
    return smallest


def case(seed: int, number: int, originals: Path, scratch: Path) -> dict[str, Any]:
    """One line, judged; with what reproduces a flaw."""
    line = draw(seed, number)
    found = judged(line, originals, scratch / f"line-{number}", number % REAL == 0)
    if any(one.startswith("hang") for one in found):  # on a busy machine: once more
        found = judged(line, originals, scratch / f"line-{number}-again", number % REAL == 0)
    how = line
    if found and not found[0].startswith("hang"):
        how = shrunk(line, found[0], originals, scratch)
    counts = {"as real processes": int(number % REAL == 0)}
    return {"flaws": found, "shown": written(how.words), "counts": counts}
