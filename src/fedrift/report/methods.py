"""The section that shows how the methods work: one round of each, on two clients in the plane."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedrift.report.markup import bullet_list, folded, image, paragraph, section

MOST_METHODS = 12  # methods whose pictures are in the page


@dataclass(frozen=True)
class Working:
    """One algorithm: what it does in two sentences, and a picture of it."""

    name: str
    sentences: tuple[str, ...]
    png: bytes


Explainer = Callable[[Sequence[str]], Sequence[Working]]
"""From algorithms with their options to what can be shown of them; `fedrift.explain` has one."""


def workings_section(explained: Sequence[Working]) -> str:
    """Empty if nothing was explained."""
    if not explained:
        return ""
    about = (
        "The real algorithms, on two clients with two weights each; settings are chosen so that "
        "the effect can be seen. fedrift explain NAME makes a page to step through."
    )
    parts = [
        folded(
            one.name,
            bullet_list(one.sentences),
            image(one.png, "image/png", f"One round of {one.name}"),
        )
        for one in explained[:MOST_METHODS]
    ]
    return section("workings", "How they work", paragraph(about), *parts)
