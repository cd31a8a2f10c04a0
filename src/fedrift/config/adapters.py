"""Adapters by name: the few parameters that are trained on a frozen base; no torch needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, cast

from fedrift.errors import InputError, meant, no_option, unknown
from fedrift.grammar import number, parse

How = Literal["separate", "freeze-A", "exact"]
HOWS = ("separate", "freeze-A", "exact")
BASES = ("never", "once")
LARGEST_RANK = 20_000


@dataclass(frozen=True)
class Kind:
    """How it is written, in one line what is trained, and its options."""

    grammar: str
    about: str
    options: tuple[str, ...]


KINDS: dict[str, Kind] = {
    "lora": Kind(
        "lora[:rank=8,alpha=16,on=*,how=separate|freeze-A|exact,also=head,base=never|once]",
        "two thin matrices beside each linear or convolutional layer (Hu et al. 2022)",
        ("rank", "alpha", "on", "how", "also", "base"),
    ),
    "bitfit": Kind(
        "bitfit[:on=*,also=head,base=never|once]",
        "biases only (Ben Zaken et al. 2022)",
        ("on", "also", "base"),
    ),
    "head": Kind("head[:base=never|once]", "the last layer only, its input frozen", ("base",)),
}


@dataclass(frozen=True)
class Adapter:
    """What is trained of a model; the rest is frozen."""

    kind: str
    rank: int = 8
    alpha: float = 16.0
    on: str = "*"
    """Layers (or biases) by name with * and ?, several joined by +."""
    how: How = "separate"
    """What the mean of two factors is: of each by itself, of one with the other frozen, or of
    their product."""
    also: str = ""
    """Parameters that are trained as they are."""
    base: str = "never"
    """Whether the frozen base is counted as sent to each client once."""

    @property
    def scale(self) -> float:
        """What the product of the factors is multiplied by."""
        return self.alpha / self.rank


def parse_adapter(text: str, field: str = "adapter") -> Adapter:
    """Reads an adapter and refuses what names none."""
    named = parse(text, field)
    if named.name not in KINDS:
        raise unknown(field, named.name, KINDS)
    kind = KINDS[named.name]
    if named.value is not None or named.inner is not None:
        raise InputError(f"{field} '{text}': write {kind.grammar}")
    given: dict[str, object] = {}
    for key, value in named.options.items():
        if key not in kind.options:
            raise no_option(f"{field} '{text}'", key, kind.options, kind.grammar)
        given[key] = _read(key, value, f"option {key} of {named.name}")
    return Adapter(named.name, **given)  # type: ignore[arg-type]


def _read(key: str, text: str, field: str) -> object:
    if key == "rank":
        return number(text, field, kind=int, low=1, high=LARGEST_RANK)
    if key == "alpha":
        return number(text, field, low=0, low_open=True)
    known: Mapping[str, tuple[str, ...]] = {"how": HOWS, "base": BASES}
    if key in known and text not in known[key]:
        choices = known[key]
        listed = f"{', '.join(choices[:-1])} or {choices[-1]}"
        raise InputError(f"{field} must be {listed}, not '{text}'{meant(text, choices)}")
    return cast("object", text)
