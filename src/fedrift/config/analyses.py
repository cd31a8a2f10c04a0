"""What can be examined in a run, by name, and how it is asked for: no torch needed to say no."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedrift.core.plain_files import read_plain
from fedrift.errors import InputError, unknown
from fedrift.grammar import number

WHAT = {
    "hessian": "top eigenvalues, spectral density and trace of the loss's Hessian",
    "sharpness": "how much the loss can rise nearby; local models against the global one",
    "cka": "how alike the layers of client models are",
    "drift": "lengths and angles of client updates, gradients and control variates",
    "classes": "accuracy per class over rounds, forgetting, confusion, recency, bias",
    "landscape": "loss and accuracy between models, and on planes through and around them",
    "predictions": "test images with what the global and the client models take them for",
}
"""For `fedrift analyse --what`, in the order they are shown."""

LIVE = {
    "drift": "distances and angles of the updates as they arrive",
    "classes": "accuracy per class, recency, lengths of the classifier's rows",
    "gradients": "dissimilarity of client gradients, control variates against true gradients",
    "step": "angle between the global step and the true gradient of all data: FedGF's ε",
    "weights": "keeps the global weights of the round",
    **{name: WHAT[name] for name in ("hessian", "sharpness", "cka")},
}
"""For `--analyse` while a run goes on; the first two cost next to nothing."""
CHEAP = ("drift", "classes")


def parse_names(text: str, known: dict[str, str] = WHAT, field: str = "what") -> tuple[str, ...]:
    """`drift,classes` or `drift+classes` as names, each once; refuses others in one sentence."""
    names = [name.strip().lower() for name in text.replace("+", ",").split(",")]
    for name in names:
        if name not in known:
            raise unknown(field, name, known)
    return tuple(dict.fromkeys(names))


@dataclass(frozen=True)
class LivePlan:
    """What is measured while a run goes on, and in which rounds."""

    every: int = 1
    what: tuple[str, ...] = CHEAP

    def is_due(self, round: int) -> bool:
        """`round` counts from 1."""
        return round % self.every == 0

    def __str__(self) -> str:
        return f"every={self.every},what={'+'.join(self.what)}"


def parse_live_plan(text: str) -> LivePlan:
    """`every=10,what=drift,classes`: what follows a key up to the next belongs to it."""
    values: dict[str, str] = {}
    key = ""
    for piece in text.split(","):
        name, equals, value = (part.strip() for part in piece.partition("="))
        if equals:
            if name not in ("every", "what"):
                raise unknown("key of analyse", name, ("every", "what"))
            if name in values:
                raise InputError(f"analyse '{text}' gives '{name}' twice; keep one")
            key, values[name] = name, value
        elif key == "what":
            values[key] += f",{name}"
        elif not values and "," not in text and name.isdigit():
            values["every"] = name
        else:
            raise InputError(f"analyse '{text}' is not of the form every=10,what=drift,classes")
    return LivePlan(
        every=number(values.get("every", "1"), "every of analyse", kind=int, low=1),
        what=parse_names(values["what"], LIVE, "what of analyse") if "what" in values else CHEAP,
    )


PLAN = "analysis/plan.txt"
LONGEST_PLAN = 1000  # characters


def read_live_plan(run: Path) -> LivePlan | None:
    """What a run that was interrupted was measuring; None if nothing."""
    try:
        return parse_live_plan(read_plain(run / PLAN, LONGEST_PLAN).decode("utf-8").strip())
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"'{run / PLAN}' cannot be read: {error}") from None
