"""The option `compress`: which fields of messages are packed on the wire, and how.

`up=topk:0.01,down=float16` packs every vector of the replies and of what goes down; `up.dc=qsgd:8`
says it of one field. What is no vector of parameters always travels as it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedrift.errors import InputError, meant, unknown
from fedrift.grammar import number

Side = Literal["up", "down"]
FORMS = {
    "topk": "topk:SHARE",
    "qsgd": "qsgd:BITS",
    "sign": "sign",
    "float16": "float16",
    "bfloat16": "bfloat16",
}
BIASED = ("topk", "sign")
EXAMPLE = "up=topk:0.01,down=float16"
NONE = "none"
FEEDBACK = ("feedback", "no-feedback")


@dataclass(frozen=True)
class Packing:
    """How one field is packed: the share of entries that topk keeps, or the bits of qsgd."""

    kind: str
    value: float = 0.0
    has_feedback: bool = False
    """What was not sent is kept and added to what is sent next."""

    def __str__(self) -> str:
        text = f"{self.kind}:{self.value:g}" if self.value else self.kind
        return f"{text},no-feedback" if self.kind in BIASED and not self.has_feedback else text


@dataclass(frozen=True)
class Compression:
    """What is packed, by `up`, `down`, or a field of theirs such as `up.dc`."""

    rules: Mapping[str, Packing] = field(default_factory=dict[str, Packing])

    def of(self, side: Side, name: str) -> Packing | None:
        """How a field is packed; what is said of the field counts before what is said of all."""
        return self.rules.get(f"{side}.{name}", self.rules.get(side))

    def __str__(self) -> str:
        return ",".join(f"{where}={how}" for where, how in sorted(self.rules.items()))


def parse_compression(text: str | None) -> Compression | None:
    """`up=topk:0.01`, `up=sign,no-feedback,down=float16`, `up.delta=topk:0.1,up.dc=qsgd:8`; `none`
    is as usual."""
    if text is None or text.strip() == NONE:
        return None
    rules: dict[str, Packing] = {}
    where = ""
    for piece in text.split(","):
        key, equals, how = (part.strip() for part in piece.partition("="))
        if not equals and key in FEEDBACK and where:
            rules[where] = _with_feedback(rules[where], where, key == "feedback")
            continue
        if not equals or key.partition(".")[0] not in ("up", "down"):
            hint = meant(key.partition(".")[0], ("up", "down", *FEEDBACK))
            raise InputError(
                f"compress '{text}': '{piece.strip()}' is not of the form {EXAMPLE}{hint}"
            )
        if key in rules:
            raise InputError(f"compress '{text}' says '{key}' twice; keep one")
        where, rules[key] = key, _packing(how, key)
    return Compression(rules)


def _packing(text: str, where: str) -> Packing:
    kind, colon, value = (part.strip() for part in text.partition(":"))
    if kind not in FORMS:
        raise unknown(f"compress: {where}", kind, FORMS)
    if (":" in FORMS[kind]) != bool(colon):
        raise InputError(f"compress: {where}={text}: write {FORMS[kind]}")
    if where.startswith("down") and kind in BIASED:
        raise InputError(
            f"compress: {where}={kind} would send a model with most of it missing; "
            "use float16, bfloat16 or qsgd:8"
        )
    if kind == "topk":
        share = number(value, f"compress: {where}=topk", low=0.0, low_open=True, high=1.0)
        return Packing(kind, share, has_feedback=True)
    if kind == "qsgd":
        bits = number(value, f"compress: {where}=qsgd", kind=int, low=2, high=16)
        return Packing(kind, bits)
    return Packing(kind, has_feedback=kind in BIASED)


def _with_feedback(how: Packing, where: str, wanted: bool) -> Packing:
    if how.kind not in BIASED:
        raise InputError(
            f"compress: {where}={how} is right on average or nearly exact; feedback is for "
            f"{' and '.join(BIASED)}"
        )
    return Packing(how.kind, how.value, wanted)
