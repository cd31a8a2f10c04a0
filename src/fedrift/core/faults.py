"""Simulated faults for studies: clients that drop out, come late or send nonsense.

Who fails when depends on (seed, round, client) alone: the same for every algorithm, on every
machine, and after resuming.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedrift.errors import InputError, no_option, unknown
from fedrift.grammar import Named, number, parse
from fedrift.rng import generator

Late = Literal["drop", "partial"]
KINDS = ("sign", "noise", "scale", "nan")
GRAMMAR = {
    "dropout": "dropout:P",
    "stragglers": "stragglers:P[,slow=4,deadline=1,late=drop|partial]",
    "corrupt": "corrupt:P[,kind=sign|noise|scale|nan,factor=1]",
}


@dataclass(frozen=True)
class Stragglers:
    """In a round a client is slowed with probability `share`, by a factor uniform in 1…slow.

    Who would take longer than `deadline` times the usual time is late: dropped, or it sends what
    it has done by then.
    """

    share: float
    slow: float = 4.0
    deadline: float = 1.0
    late: Late = "drop"


@dataclass(frozen=True)
class Corrupt:
    """Each client is, for the whole run, corrupted with probability `share`.

    sign: it sends −factor times its reply; noise: Gaussian noise of factor times its length;
    scale: factor times its reply; nan: not numbers.
    """

    share: float
    kind: str = "sign"
    factor: float = 1.0


@dataclass(frozen=True)
class RoundFaults:
    """What goes wrong at the clients of one exchange."""

    dropped: frozenset[int] = frozenset()
    part: Mapping[int, float] = field(default_factory=dict[int, float])
    """Client → share of its local steps that it can do."""
    corrupted: frozenset[int] = frozenset()
    how: Corrupt | None = None


@dataclass(frozen=True)
class Faults:
    """All faults of a run."""

    dropout: float = 0.0
    stragglers: Stragglers | None = None
    corrupt: Corrupt | None = None

    def at(self, seed: int, round: int, clients: Sequence[int]) -> RoundFaults:
        """What happens to these clients in a round."""
        dropped = {
            c for c in clients if generator(seed, "fault dropout", round, c).random() < self.dropout
        }
        part: dict[int, float] = {}
        slow = self.stragglers or Stragglers(0.0)
        for client in clients:
            done = _done(slow, seed, round, client)
            if done < 1.0 and slow.late == "drop":
                dropped.add(client)
            elif done < 1.0:
                part[client] = done
        wrong = frozenset(c for c in clients if self._is_corrupted(seed, c))
        return RoundFaults(frozenset(dropped), part, wrong, self.corrupt)

    def _is_corrupted(self, seed: int, client: int) -> bool:
        if self.corrupt is None:
            return False
        return bool(generator(seed, "fault corrupt", client=client).random() < self.corrupt.share)


def _done(how: Stragglers, seed: int, round: int, client: int) -> float:
    """The share of its work that a client has done at the deadline."""
    random = generator(seed, "fault straggler", round, client)
    slowness = random.uniform(1.0, how.slow) if random.random() < how.share else 1.0
    return min(1.0, how.deadline / slowness)


def parse_faults(texts: Sequence[str] | str | None) -> Faults | None:
    """`["dropout:0.1", "stragglers:0.3,late=partial"]`; None if there are none."""
    if isinstance(texts, str):
        texts = [texts]
    is_list = isinstance(texts, (list, tuple))
    if texts is not None and not (is_list and all(isinstance(t, str) for t in texts)):
        raise InputError(f"faults={texts!r:.60} must be texts such as 'dropout:0.1'")
    faults = Faults()
    seen: set[str] = set()
    for text in texts or ():
        named = parse(text, "faults")
        if named.name in seen:
            raise InputError(f"faults: '{named.name}' is given twice; keep one")
        seen.add(named.name)
        faults = replace(faults, **{_check(named): _one(named)})
    return faults if seen else None


def _check(named: Named) -> str:
    if named.name not in GRAMMAR:
        raise unknown("fault", named.name, GRAMMAR)
    known = {
        "dropout": (),
        "stragglers": ("slow", "deadline", "late"),
        "corrupt": ("kind", "factor"),
    }[named.name]
    for key in named.options:
        if key not in known:
            raise no_option(f"faults '{named}'", key, known, GRAMMAR[named.name])
    if named.inner is not None or named.value is None:
        raise InputError(f"faults '{named}': write {GRAMMAR[named.name]}")
    return named.name


def _one(named: Named) -> Any:
    field = f"faults: {named.name}"
    share = number(named.value or "", field, low=0.0, high=1.0)
    options = named.options

    def value(name: str, usual: float, low: float) -> float:
        return number(options.get(name, str(usual)), f"{field}: {name}", low=low, high=1e6)

    if named.name == "dropout":
        return share
    if named.name == "stragglers":
        late = options.get("late", "drop")
        if late not in ("drop", "partial"):
            raise unknown(f"{field}: late", late, ("drop", "partial"))
        return Stragglers(share, value("slow", 4.0, 1.0), value("deadline", 1.0, 0.0), late)
    kind = options.get("kind", "sign")
    if kind not in KINDS:
        raise unknown("kind of corruption", kind, KINDS)
    return Corrupt(share, kind, value("factor", 1.0, 0.0))
