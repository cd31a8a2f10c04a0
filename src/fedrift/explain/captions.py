"""What is said about an algorithm: its idea, its rule, the names of its terms, what to look for."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from fedrift.config import algorithms
from fedrift.grammar import Named

FILE = Path(__file__).with_name("captions.toml")
Names = Mapping[str, str]

# Pieces of a local step that no text names: local momentum, clipping, a reader's own correction.
USUAL = {
    "Prox": ("spring", "A spring pulls towards a point."),
    "Linear": ("correction", "A fixed vector is added to every step of the round."),
    "Blend": ("momentum", "The gradient is blended with a common direction."),
    "SVRG": ("variance reduction", "The gradient at another point is taken off, a mean is added."),
    "SGD": ("momentum or decay", "The optimizer adds its momentum or weight decay."),
    "Momentum": ("momentum", "The server's momentum is added."),
    "Adam": ("Adam", "Adam turns the gradient into a step of its own."),
    "Adagrad": ("Adagrad", "Adagrad turns the gradient into a step of its own."),
    "clip": ("clipping", "The direction is longer than allowed and is shortened."),
}
OTHER = ("correction", "The algorithm adds a correction.")
RULES = {"sam": "‖e‖ = ρ", "asam": "‖e/T‖ = ρ,  T = |w| + ηₐ"}


@dataclass(frozen=True)
class Texts:
    """The texts of one algorithm; in a rule, {g|…}, {c|…}, {d|…} and {s|…} are coloured."""

    title: str
    idea: str
    look: str
    step: str = "w ← w − η ( {g|gradient} + {c|corrections} )"
    server: str = "wᵗ⁺¹ ← what the server makes of the replies"
    sends: str = ""
    first: str = ""
    gathers: str = ""
    moves: str = ""
    extra: str = ""
    shown: str = ""
    """Options that make the effect visible."""
    terrain: str | None = None
    turns: bool | None = None
    steps: tuple[int, ...] | None = None
    lr: float | None = None
    wraps: str | None = None
    terms: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])
    state: Mapping[str, Names] = field(default_factory=dict[str, Names])

    @property
    def replaces(self) -> bool:
        """The server's own step stands in the place of the mean; others go on from it."""
        return "instead" in self.extra

    def term(self, piece: str) -> tuple[str, str]:
        """Symbol and sentence of a piece of the local step."""
        return self.terms.get(piece) or USUAL.get(piece, OTHER)


@cache
def read_texts() -> dict[str, Texts]:
    """Every text, by the algorithm's name."""
    with FILE.open("rb") as file:
        return {name: _texts(entry) for name, entry in tomllib.load(file).items()}


def _texts(entry: dict[str, Any]) -> Texts:
    terms = {piece: (symbol, words) for piece, (symbol, words) in entry.pop("terms", {}).items()}
    steps = entry.pop("steps", None)
    return Texts(**entry, terms=terms, steps=None if steps is None else tuple(steps))


def texts_of(named: Named) -> Texts:
    """The texts of an algorithm, composed with those of what it wraps."""
    own = read_texts().get(named.name) or _of_own_code(named)
    if named.inner is None:
        return own
    inner = texts_of(named.inner)
    step = _uphill(inner.step, RULES[named.name]) if named.name in RULES else inner.step
    server = own.server if named.name == "serveradam" else inner.server
    return replace(
        inner,
        title=f"{own.title} around {inner.title}",
        idea=f"{own.idea} Here it is {inner.title}.",
        look=own.look,
        step=step,
        server=server,
        moves=own.moves or inner.moves,
        extra=own.extra or inner.extra,
        terrain=own.terrain or inner.terrain,
        turns=own.turns if own.turns is not None else inner.turns,
    )


def _of_own_code(named: Named) -> Texts:
    """What can be said of the reader's own algorithm."""
    name = named.value or named.name
    idea = f"{name}: an algorithm of your own, recorded while it runs."
    return Texts(title=name, idea=idea, look="The arrows are what it did in every step.")


def _uphill(step: str, about: str) -> str:
    """The rule with its gradient taken at w + e."""
    return f"{step.replace('∇Fᵢ(w)', '∇Fᵢ(w + e)')},  {about}"


def visible(named: Named) -> Named:
    """The algorithm with the options that make it visible, where the reader gave none."""
    if algorithms.is_own(named):
        return named
    own = read_texts()[named.name]
    options = {**dict(pair.split("=") for pair in filter(None, own.shown.split(",")))}
    inner = named.inner
    if inner is None and own.wraps is not None:
        inner = Named(own.wraps)
    return Named(
        named.name,
        named.value,
        {**options, **named.options},
        None if inner is None else visible(inner),
    )


def trained(named: Named) -> Named:
    """What makes local steps: Fed3R+FT's first stage makes none, its second is what it wraps."""
    if named.inner is None:
        return named
    inner = trained(named.inner)
    return inner if named.name == "fed3rft" else replace(named, inner=inner)


def changed_options(given: Named, used: Named) -> list[str]:
    """`mu=1 (default 0.01)` for every option that was chosen for the sake of the picture."""
    if algorithms.is_own(used):
        return []
    entry = algorithms.entry(used.name)
    usual = {option.name: str(option) for option in entry.options}
    own = [
        f"{key}={value} (default {usual[key].partition('=')[2]})"
        for key, value in used.options.items()
        if key not in given.options
    ]
    if used.inner is None:
        return own
    return own + changed_options(given.inner or Named(used.inner.name), used.inner)


def plain(rule: str) -> str:
    """A rule without its colours."""
    return re.sub(r"\{\w\|([^}]*)\}", r"\1", rule)
