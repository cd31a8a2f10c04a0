"""Writes docs/algorithms/*.md and src/fedrift/algorithms/costs.json: run it as `make docs-pages`.

Names, options and citations come from the catalogue. What travels, what is kept and how many
gradients are computed is read from the ledger and the states of tiny runs, and what each field
means from the declared messages. Idea, rule and pitfalls are written by hand in
docs/algorithms/text/NAME.md.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from fedrift.backends.in_process import InProcess
from fedrift.backends.visit import Visitor
from fedrift.backends.wire import Wire
from fedrift.config import algorithms
from fedrift.config.algorithms import spell
from fedrift.core import Algorithm, Problem, define, pack
from fedrift.core.composition import resolve
from fedrift.core.exchange import signature
from fedrift.core.messages import Size, nbytes, reductions
from fedrift.core.phases import owner_of
from fedrift.core.sampling import participation
from fedrift.data.split import Split
from fedrift.engine.build import build
from fedrift.engine.callbacks import OnRound, RoundReport
from fedrift.engine.history import History, Progress
from fedrift.engine.ledger import Entry
from fedrift.engine.loop import Engine, Settings
from fedrift.storage.client_state import Store

DOCS = Path(__file__).resolve().parent
PAGES, TEXTS = DOCS / "algorithms", DOCS / "algorithms" / "text"
COSTS = algorithms.PACKAGE / "algorithms" / "costs.json"
COMMAND = "make docs-pages"
SECTIONS = ("Idea", "Update rule", "When to use it", "Pitfalls", "Reference")

CLIENTS, PER_ROUND, ROUNDS, SAMPLES, INPUTS, CLASSES = 4, 2, 6, 8, 3, 3
INNER = "fedavg"  # what wrappers are measured with

# Other settings of an algorithm worth measuring: they cost something else than its defaults.
VARIANTS = {
    "fednova": ("fednova:gamma=0.9",),
    "scaffold": ("scaffold:option=I",),
    "ghbm": ("ghbm:tau=1", "ghbm:tau=4"),
    "fed3r": ("fed3r:features=16",),
    "fed3rft": (
        "fed3rft(fedavg):train=head",
        "fed3rft(fedavg):train=features",
        "fed3rft(fedavg):temperature=auto",
    ),
    "diloco": ("diloco:inner=sgd", "diloco:server_momentum=0"),
    "swa": ("swa(scaffold)",),
    "wima": ("wima(scaffold)",),
    "sam": ("sam(scaffold)", "sam(mimemom)"),
    "asam": ("asam(scaffold)",),
    "serveradam": ("serveradam(scaffold)", "serveradam(fedsam)"),
}

INTRODUCTION = f"""\
What is sent, computed and kept is read from runs of {ROUNDS} rounds with {PER_ROUND} of {CLIENTS}
clients each. Sizes are per client that takes part and round; a vector has one number for each
trained parameter; the server keeps the model besides what is listed. Tuples such as `ring` and
`window` grow to the length that their option says."""

NOTATION = r"""## Notation

| | |
|---|---|
| $`N`$, $`S`$, $`M`$, $`C`$ | all clients, those of a round, their number, $`M/N`$ |
| $`n_i`$ | samples of a client |
| $`p_i`$ | its weight in a mean over $`S`$: $`n_i / \sum_{j \in S} n_j`$ or $`1/M`$ |
| $`w`$ | global model at the start of the round |
| $`w_i`$ | a client's model while it trains, from $`w`$ on |
| $`\Delta_i`$ | $`w_i - w`$ at the end of the visit |
| $`g_i(\cdot)`$ | gradient of a minibatch at a point |
| $`\nabla F_i(\cdot)`$ | gradient of all of the client's samples at a point |
| $`\eta`$, $`\eta_s`$ | client rate (`lr`), server rate (`server_lr`) |
| $`K_i`$ or $`J`$ | number of local steps the client makes |
| $`\lVert \cdot \rVert`$ | Euclidean norm over all trained parameters together |
| $`m`$, $`Y`$ | number of features, the 1 for the bias included; number of classes |

A local step adds weight decay and local momentum as `torch.optim.SGD` does, after the algorithm's
correction; formulas leave both out. The momentum buffer starts empty at every visit."""

# What a field means where the code has no comment beside it.
PLAIN = {
    "w": "global model",
    "Anchor.w": "model received (localghbm) or made (fedhbm) at the last visit",
    "opt": "vectors of the optimizer",
    "delta": "w_i − w",
    "average": "mean of the captured models",
    "inner": "state of the wrapped algorithm",
    "first": "state of Fed3R",
    "second": "state of the fine-tuning algorithm",
    "sent": "whether the client has sent its statistics",
    "is_tuning": "whether the second stage has begun",
}


class Net(nn.Module):
    """The smallest classifier with a body and a head."""

    head = "out"

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.hidden = nn.Linear(INPUTS, 7)
        self.out = nn.Linear(7, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.hidden(x)))


class Normed(Net):
    """The same with batch normalisation."""

    def __init__(self) -> None:
        Net.__init__(self)
        self.norm = nn.BatchNorm1d(7)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.norm(self.hidden(x))))


NETS: Mapping[str, type[Net]] = {"fedbn": Normed}
"""Algorithms that do their work only on a model of their kind."""


@dataclass(frozen=True)
class Amount:
    """A size in words: vectors of the model's length, other tensors, single numbers."""

    vectors: int = 0
    others: tuple[str, ...] = ()
    numbers: int = 0

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.vectors + other.vectors,
            self.others + other.others,
            self.numbers + other.numbers,
        )

    def __str__(self) -> str:
        words = [_plural(self.vectors, "vector")] if self.vectors else []
        words += self.others
        words += [_plural(self.numbers, "number")] if self.numbers else []
        return " + ".join(words) or "nothing"


def _plural(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"


@dataclass(frozen=True)
class Field:
    """One field of a message or state: where it stands, how large it was, what it means."""

    where: str
    name: str
    amount: Amount
    meaning: str
    reduced: str = ""
    grows: bool = False

    @property
    def size(self) -> str:
        return f"{self.amount} after {ROUNDS} rounds" if self.grows else str(self.amount)


@dataclass(frozen=True)
class Visit:
    """What one client did in one round, in all its exchanges."""

    when: str
    fields: tuple[Field, ...]
    per_step: int
    passes: int
    forwards: int

    def side(self, where: str) -> tuple[Field, ...]:
        return tuple(field for field in self.fields if field.where.endswith(where))

    def sent(self, where: str) -> str:
        """`2 vectors (w, c)`; what a second exchange sends is set apart."""
        side = self.side(where)
        exchanges = dict.fromkeys(field.where for field in side)
        names = (", ".join(f.name for f in side if f.where == where) for where in exchanges)
        return f"{total(side)} ({'; then '.join(names)})"

    @property
    def gradients(self) -> str:
        words = [f"{self.per_step} per local step"] if self.per_step else []
        if self.passes:
            data = "pass" if self.passes == 1 else "passes"
            words.append(f"{self.passes} {data} over the client's data")
        if self.forwards:
            data = "pass" if self.forwards == 1 else "passes"
            words.append(f"{self.forwards} forward {data} over the client's data")
        return " + ".join(words) if self.per_step or self.passes else f"none, only {words[0]}"


def total(fields: Iterable[Field]) -> Amount:
    """The sum of the amounts."""
    return sum((field.amount for field in fields), Amount())


@dataclass(frozen=True)
class Facts:
    """What the runs of one algorithm showed."""

    spec: str
    visits: tuple[Visit, ...]
    server: tuple[Field, ...]
    client: tuple[Field, ...]


@dataclass(frozen=True)
class Tiny:
    """A finished tiny run."""

    algorithm: Algorithm[Any, Any]
    problem: Problem
    rounds: dict[int, list[Entry]]
    once: set[int]
    """Rounds that ask only clients not counted yet."""
    server: Any
    clients: dict[str, Any]


def tiny(spec: str, epochs: int) -> Tiny:
    """A few rounds on a few samples; one epoch is one step."""
    x = torch.randn(CLIENTS * SAMPLES, INPUTS, generator=torch.Generator().manual_seed(0))
    y = torch.arange(len(x)) % CLASSES
    split = Split(x, y, np.split(np.arange(len(x)), CLIENTS))
    who = participation(CLIENTS, ROUNDS, per_round=PER_ROUND)
    describe = partial(
        define,
        loss=nn.functional.cross_entropy,
        probe=(x[:2], y[:2]),
        init_seed=0,
        population=CLIENTS,
        participation=who.share,
        rounds=ROUNDS,
    )
    made = build(spec, {"epochs": epochs, "lr": 0.01}, ROUNDS)
    problem = made.adapt(
        describe(NETS.get(spec, Net)), lambda make, head: describe(make, head=head)
    )
    made = made.prepare(problem)
    made.check(problem)
    reports: list[RoundReport] = []
    store = Store(made, problem)
    settings = Settings(ROUNDS, who, 0, ROUNDS, split.sizes)
    visitor = Visitor(made, problem, split)
    backend = InProcess(visitor, store, None, watch=Wire(visitor))
    moving = tuple(problem.rest[name] for name in problem.moving)
    start = Progress(made.server(problem), moving)
    books = History(made, store, start, lambda _: {}, callbacks=[OnRound(reports.append)])
    finished = Engine(made, problem, backend, store, settings, books).run()
    entries = finished.progress.ledger.entries
    visits = [client for entry in entries for client in entry.asked]
    regular = max(range(CLIENTS), key=visits.count)
    clients = {path: store.read(path, regular) for path in store.tables}
    store.close()
    return Tiny(
        algorithm=made,
        problem=problem,
        rounds={r.round: [e for e in entries if e.round == r.round] for r in reports},
        once={r.round for r in reports if made.sampling(r.state) == "once"},
        server=finished.progress.state,
        clients=clients,
    )


@cache
def facts(spec: str) -> Facts:
    """One and three epochs tell what a step costs from what a round costs."""
    short, long = tiny(spec, 1), tiny(spec, 3)
    seen: list[tuple[tuple[Any, ...], list[int]]] = []
    for number, entries in short.rounds.items():
        if not entries:
            continue
        fields = tuple(field for entry in entries for field in _travels(short, entry))
        work = _work(entries, long.rounds[number])
        key = (number in short.once, fields, *work)
        if seen and seen[-1][0] == key:
            seen[-1][1].append(number)
        else:
            seen.append((key, [number]))
    visits: list[Visit] = []
    for (once, *rest), numbers in seen:
        visits.append(Visit(_when(once, numbers, [key[0] for key, _ in seen], len(visits)), *rest))
    server = _kept(short, "server keeps", {"": short.server})
    return Facts(spec, tuple(visits), server, _kept(short, "client keeps", short.clients))


def _when(once: bool, numbers: list[int], all_once: list[bool], place: int) -> str:
    """In words, when a client is asked what the pattern at this place shows."""
    is_last = place == len(all_once) - 1
    if once:
        if not is_last and all_once[place + 1]:
            return "first cohort"
        return "every other client once" if place else "each client once"
    if any(all_once):
        return "afterwards" if is_last else "the first round afterwards"
    if len(all_once) == 1:
        return "every round"
    return f"from round {numbers[0]} on" if is_last else f"round {numbers[0]}"


def _work(short: list[Entry], long: list[Entry]) -> tuple[int, int, int]:
    """Gradients per step, gradient passes and forward passes over the data, of one client."""
    visits = len(short[-1].asked)
    steps, gradients, forwards = (
        (
            sum(getattr(e, name) for e in short) / visits,
            sum(getattr(e, name) for e in long) / visits,
        )
        for name in ("steps", "gradients", "forwards")
    )
    more = steps[1] - steps[0]
    per_step = (gradients[1] - gradients[0]) / more / SAMPLES if more else 0.0
    passes = gradients[0] / SAMPLES - per_step * steps[0]
    return _whole(per_step), _whole(passes), _whole(forwards[0] / SAMPLES)


def _whole(number: float) -> int:
    if number != int(number):
        raise ValueError(f"{number} gradients or passes: not a whole number")
    return int(number)


def _travels(run: Tiny, entry: Entry) -> Iterator[Field]:
    node, _ = resolve(run.algorithm, run.problem, owner_of(entry.phase))
    method = entry.phase.rpartition(".")[2]
    kinds = signature(getattr(node, method))
    sides = ("down", kinds.down, entry.down), ("up", kinds.up, entry.up)
    for where, cls, sizes in sides:
        for name, size in sizes.items():
            if name == "frozen":  # once to each client, not in every round; said in the text
                continue
            amount = _amount(size, len(entry.asked), run.problem)
            meaning = _meaning(cls, name)
            yield Field(f"`{method}` {where}", name, amount, meaning, reductions(cls).get(name, ""))


def _amount(size: Size, visits: int, p: Problem) -> Amount:
    tensors, numbers = size.tensors / visits, size.numbers / visits / 8
    vector = 4 * p.layout.size
    if tensors % vector == 0:
        return Amount(_whole(tensors / vector), (), _whole(numbers))
    return Amount(0, (_symbols(p)[_whole(tensors)],), _whole(numbers))


def _symbols(p: Problem) -> dict[int, str]:
    """Bytes → what has that size, for tensors that are no vectors of the model's length."""
    if p.model.has_batch_norm:
        names = p.matching("norm")
        norm = 4 * p.layout.select(lambda name: name in names).size
        whole = 4 * p.layout.size
        return {norm: "the BatchNorm layers", whole - norm: "all but the BatchNorm layers"}
    f, classes = p.feature_dim or 0, p.classes or 0
    head = 4 * (f + 1) * classes
    known = [(head, "the head"), (4 * p.layout.size - head, "all but the head")]
    known += [(8 * 7, "7 values")]
    for m in (f, f + 1):
        known += [
            (8 * m * (m + 1) // 2, "m(m+1)/2 values"),
            (8 * m * m, "m·m values"),
            (8 * m * classes, "m·Y values"),
        ]
    symbols: dict[int, str] = {}
    for size, text in known:
        if symbols.setdefault(size, text) != text:
            raise ValueError(f"{symbols[size]} and {text} both take {size} bytes: change Net")
    return symbols


def _kept(run: Tiny, where: str, states: Mapping[str, Any]) -> tuple[Field, ...]:
    kept: list[Field] = []
    for path, state in states.items():
        packed = {key: leaf for key, leaf in pack(state).items() if not key.endswith("opt.count")}
        for name, size in nbytes(packed).items():
            if where == "server keeps" and name == "w":
                continue
            inside = name in ("inner", "first", "second")
            amount = Amount() if inside else _amount(size, 1, run.problem)
            if is_statistics := name == "statistics":
                amount = Amount(others=("those of the BatchNorm layers",))
            full = f"{path}.{name}" if path else name
            grows = f"{name}#" in packed and not is_statistics
            kept.append(Field(where, full, amount, _meaning(type(state), name), grows=grows))
    return tuple(kept)


@cache
def _meaning(cls: type, name: str) -> str:
    """The comment beside the field, or beside one of that name in the module's other classes."""
    home = inspect.getmodule(cls)
    classes = [cls, *(c for c in vars(home).values() if inspect.isclass(c) and c is not cls)]
    for candidate in classes:
        if candidate.__module__ != cls.__module__:
            continue
        found = re.search(
            rf"^    {name}: [^#\n]*#\s*(.+)$", inspect.getsource(candidate), flags=re.MULTILINE
        )
        if found and (candidate is cls or name != "w"):
            return found[1]
    return PLAIN.get(f"{cls.__name__}.{name}", PLAIN.get(name, ""))


def spec_of(entry: algorithms.Entry) -> str:
    """The algorithm as it is measured: with its defaults."""
    return f"{entry.name}({INNER})" if entry.is_wrapper else entry.name


def _said(visits: tuple[Visit, ...], text: str) -> str:
    """One text for each kind of round, joined; alone if they agree."""
    parts = {v.when: getattr(v, text) if text == "gradients" else v.sent(text) for v in visits}
    if len(set(parts.values())) == 1 and not any("once" in when for when in parts):
        return next(iter(parts.values()))
    return "; ".join(f"{when}: {part}" for when, part in parts.items())


def _held(fields: tuple[Field, ...]) -> str:
    """`c (1 vector), opt (2 vectors)`; what a wrapper holds for its inner algorithm goes last."""
    own = [f"{f.name} ({f.size})" for f in fields if f.amount != Amount()]
    inside = [PLAIN[f.name] for f in fields if f.amount == Amount() and f.name in PLAIN]
    return ", ".join(own + inside) or "nothing"


def costs() -> dict[str, Any]:
    """What `fedrift list algorithms --verbose` shows without importing torch."""
    table: dict[str, Any] = {}
    for entry in algorithms.algorithms().values():
        found = facts(spec_of(entry))
        last = found.visits[-1]
        down, up = total(last.side("down")), total(last.side("up"))
        table[entry.name] = {
            "measured_as": found.spec,
            "down": _said(found.visits, "down"),
            "up": _said(found.visits, "up"),
            "gradients": _said(found.visits, "gradients"),
            "server": _held(found.server),
            "client": _held(found.client),
            "vectors_down": None if down.others else down.vectors,
            "vectors_up": None if up.others else up.vectors,
            "gradients_per_step": last.per_step,
        }
    return {"generated": f"by `{COMMAND}`: do not edit", "rounds": ROUNDS, "algorithms": table}


def table(head: str, rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table; bars inside cells are escaped."""
    columns = head.split(" | ")
    lines = [head, " | ".join("---" for _ in columns)]
    lines += [" | ".join(cell.replace("|", "\\|") or "–" for cell in row) for row in rows]
    return "\n".join(f"| {line} |" for line in lines)


def page(entry: algorithms.Entry) -> str:
    """One algorithm."""
    written, reference = _text(entry.name)
    found = facts(spec_of(entry))
    source = f"../../src/{entry.module.replace('.', '/')}.py"
    parts = [
        f"<!-- Generated by `{COMMAND}`: edit text/{entry.name}.md or the code instead. -->",
        f"# {entry.name}",
        entry.summary,
        f"```\nfedrift run '{entry.usage.replace('INNER', INNER)}'\n```",
        written,
        "## Options",
        _options(entry),
        "## Cost",
        _cost(found),
        _variants(entry),
        reference,
        f"In the code: [`{entry.module}`]({source}). {entry.citation}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _text(name: str) -> tuple[str, str]:
    """The hand-written part: everything before the reference, and the reference."""
    file = TEXTS / f"{name}.md"
    if not file.exists():
        raise FileNotFoundError(f"{file} is missing: every algorithm has a text by hand")
    written, mark, reference = file.read_text(encoding="utf-8").partition("## Reference\n")
    return written.strip(), (mark + reference).strip()


def _options(entry: algorithms.Entry) -> str:
    rows = (
        (f"`{o.name}`", "required" if o.required else f"`{spell(o.default)}`", str(o.kind), o.about)
        for o in entry.options
    )
    return table("option | default | type | meaning", rows)


def _cost(found: Facts) -> str:
    several = len(found.visits) > 1
    travels = [
        (
            *((visit.when,) if several else ()),
            field.where,
            f"`{field.name}`",
            str(field.amount),
            field.reduced,
            field.meaning,
        )
        for visit in found.visits
        for field in visit.fields
    ]
    kept = [
        (f.where, f"`{f.name}`", "its own" if f.amount == Amount() else f.size, f.meaning)
        for f in (*found.server, *found.client)
    ]
    symbols = str(found.visits) + str(found.server)
    of = " on a model with batch normalisation" if NETS.get(found.spec) is Normed else ""
    lines = [
        f"Read from the ledger and the states of a run of `{found.spec}`{of} with {CLIENTS} "
        f"clients, {PER_ROUND} a round, {ROUNDS} rounds; per client that takes part and round. A "
        "vector has one number for each trained parameter."
        + (" m is the number of features, the bias included; Y the classes." * ("m(m" in symbols)),
        f"- **down**: {_said(found.visits, 'down')}\n"
        f"- **up**: {_said(found.visits, 'up')}\n"
        f"- **gradient evaluations**: {_said(found.visits, 'gradients')}\n"
        f"- **server keeps, besides the model**: {_held(found.server)}\n"
        f"- **client keeps**: {_held(found.client)}",
        table(f"{'when | ' * several}message | field | size | reduced by | meaning", travels),
    ]
    if kept:
        lines.append(table("state | field | size at the end | meaning", kept))
    return "\n\n".join(lines)


def _variants(entry: algorithms.Entry) -> str:
    if entry.name not in VARIANTS:
        return ""
    rows = (
        (
            f"`{found.spec}`",
            _said(found.visits, "down"),
            _said(found.visits, "up"),
            _said(found.visits, "gradients"),
            _held(found.server),
            _held(found.client),
        )
        for found in map(facts, VARIANTS[entry.name])
    )
    head = "written as | down | up | gradient evaluations | server keeps | client keeps"
    return f"Other settings, measured in the same way:\n\n{table(head, rows)}"


FAMILIES = {
    "the baselines": "fedsgd fedavg",
    "drift: a spring, equal say, learned corrections": "fedprox fednova feddyn scaffold",
    "the server's optimizer": "fedavgm fedadagrad fedadam fedyogi serveradam",
    "flat minima": "fedsam fedasam fedgf fedspeed fedsmoo mofedsam fedgamma sam asam",
    "momentum that clients can use": (
        "fedcm ghbm localghbm fedhbm mime mimemom mimelite mimelitemom"
    ),
    "frozen features, a closed-form classifier": "fed3r fed3rft",
    "long local runs, few outer steps": "diloco",
    "models of the clients' own": "localonly finetune fedper fedrep fedbn ditto pfedme apfl keep",
    "averages of the server's models": "swa wima",
    "clients that are not waited for": "fedasync fedbuff",
}
"""Every algorithm once, by what it changes."""


def families() -> str:
    """All of them on one screen."""
    entries = algorithms.algorithms()
    placed = {name for names in FAMILIES.values() for name in names.split()}
    left = " ".join(name for name in entries if name not in placed)

    def link(name: str) -> str:
        return f"[{name}(…)]({name}.md)" if entries[name].is_wrapper else f"[{name}]({name}.md)"

    listed = {**FAMILIES, **({"others": left} if left else {})}
    rows = ((what, ", ".join(map(link, names.split()))) for what, names in listed.items())
    return table("what they change | algorithms; (…) goes around another", rows)


def index() -> str:
    """All algorithms by family, then what each costs, wrappers in a table of their own."""
    entries = algorithms.algorithms().values()
    known = costs()["algorithms"]

    def rows(wrappers: bool) -> Iterator[tuple[str, ...]]:
        for entry in entries:
            if entry.is_wrapper == wrappers:
                cost = known[entry.name]
                sent = (cost["down"], cost["up"], cost["gradients"])
                kept = (cost["server"], cost["client"])
                yield f"[{entry.name}]({entry.name}.md)", entry.summary, *sent, *kept

    head = "name | idea | down | up | gradient evaluations | server keeps | client keeps"
    parts = [
        f"<!-- Generated by `{COMMAND}`: edit docs/make_algorithms.py or the code instead. -->",
        "# Algorithms",
        "Which one to take: [choosing](../choosing.md).",
        families(),
        "## What each costs",
        INTRODUCTION,
        table(head, rows(wrappers=False)),
        "### Around another algorithm",
        f"Measured around `{INNER}`.",
        table(head, rows(wrappers=True)),
        NOTATION,
    ]
    return "\n\n".join(parts) + "\n"


def files() -> dict[Path, str]:
    """Every generated file and what belongs in it."""
    made = {PAGES / f"{name}.md": page(entry) for name, entry in algorithms.algorithms().items()}
    made[PAGES / "index.md"] = index()
    made[COSTS] = json.dumps(costs(), indent=1, ensure_ascii=False) + "\n"
    return made


if __name__ == "__main__":
    for path, content in files().items():
        if not path.exists() or path.read_text(encoding="utf-8") != content:
            path.write_text(content, encoding="utf-8")
            print(path.relative_to(DOCS.parent))
