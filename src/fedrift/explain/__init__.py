"""One round of any algorithm, step by step, on two clients in two dimensions.

    from fedrift.explain import explain
    explain("scaffold", "scaffold.html")

The ending of the file decides: a page to step through (`.html`), or a picture (`.png`, `.svg`,
`.pdf`).
"""

from __future__ import annotations

import io
import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fedrift.config import algorithms
from fedrift.errors import InputError, unknown
from fedrift.explain import captions
from fedrift.explain.captions import Texts
from fedrift.explain.frames import verdict
from fedrift.explain.story import Story, Task, make_story
from fedrift.explain.terrain import TERRAINS
from fedrift.grammar import Named, parse
from fedrift.report.methods import Working

ROUNDS = 10
DPI, REPORT_DPI = 160, 100
PAGES, PICTURES = (".html", ".htm"), (".png", ".svg", ".pdf")
NO_STEPS = (
    "fed3r does not train: it solves for a classifier in closed form, so there are no steps to "
    "show; try fed3rft(fedavg), whose second stage trains"
)
NO_PARTS = (
    "{name} leaves a part of the model at the clients, and a point in the plane has no parts; try "
    "ditto(fedavg), pfedme or apfl, whose clients have whole models of their own"
)
UNDRAWN = {"fed3r": NO_STEPS} | dict.fromkeys(
    ("keep", "localonly", "fedper", "fedrep", "fedbn"), NO_PARTS
)
"""Algorithms of which there is no picture, and why."""


@dataclass(frozen=True)
class Explained:
    """The file, and in one sentence where the algorithm ends."""

    path: Path
    title: str
    words: str


def explain(
    algorithm: str,
    path: str | Path | None = None,
    *,
    steps: int | tuple[int, ...] | None = None,
    rounds: int = ROUNDS,
    lr: float | None = None,
    terrain: str | None = None,
    turns: bool | None = None,
) -> Explained:
    """Runs the algorithm on two clients in the plane and writes a page or a picture of it.

    `steps` are local steps, one number or one for each client; `terrain` is `bowls` or `wells`;
    with `turns` the clients take part one after the other. What is not given is chosen so that
    the algorithm's effect can be seen.
    """
    file = _checked(Path(f"explain-{_stem(algorithm)}.html") if path is None else Path(path))
    given, task, texts = choose_settings(algorithm, steps, rounds, lr, terrain, turns)
    story = make_story(task)
    write_file(story, texts, notes(given, task), command(given, task, file), file)
    return Explained(file, texts.title, verdict(story, texts))


def workings(algorithms: Sequence[str]) -> list[Working]:
    """For a report: those of these algorithms that are the package's own and take local steps."""
    explained: list[Working] = []
    for algorithm in algorithms:
        if not _is_known(parse(algorithm, "algorithm")):  # a folder's code is not run for a picture
            continue
        try:
            _, task, texts = choose_settings(algorithm, None, ROUNDS, None, None, None)
            story = make_story(task)
        except InputError:
            continue
        sentences = (texts.idea, verdict(story, texts))
        explained.append(Working(texts.title, sentences, _drawn(story, texts, "png", REPORT_DPI)))
    return explained


def _is_known(given: Named | None) -> bool:
    return given is None or (given.name in algorithms.names() and _is_known(given.inner))


def choose_settings(
    algorithm: str,
    steps: int | tuple[int, ...] | None,
    rounds: int,
    lr: float | None,
    terrain: str | None,
    turns: bool | None,
) -> tuple[Named, Task, Texts]:
    """What was asked for, what is run, and what is said about it."""
    given = parse(algorithm, "algorithm")
    _refuse(given)
    used = captions.visible(given)
    algorithms.check(used)
    text, texts = str(captions.trained(used)), captions.texts_of(used)
    name = terrain or texts.terrain or "bowls"
    if name not in TERRAINS:
        raise unknown("terrain", name, TERRAINS)
    place = TERRAINS[name]
    many = texts.steps or (place.steps,) if steps is None else steps
    many = (many,) if isinstance(many, int) else many
    if len(many) > 2 or any(k < 1 for k in many):
        raise InputError(f"steps={many} must be one whole number of at least 1, or two: 3,9")
    if rounds < 1:
        raise InputError(f"rounds={rounds} must be at least 1")
    if lr is not None and not 0 < lr < math.inf:
        raise InputError(f"lr={lr} must be a number above 0")
    rate = lr if lr is not None else (texts.lr if terrain is None and texts.lr else place.lr)
    by_turns = bool(texts.turns) if turns is None else turns
    return given, Task(text, place, many, rate, rounds, by_turns), texts


def _refuse(given: Named) -> None:
    """A sentence for what cannot be drawn."""
    inner: Named | None = given
    while inner is not None:
        if inner.name in UNDRAWN:
            raise InputError(UNDRAWN[inner.name].format(name=inner.name))
        inner = inner.inner


def _stem(algorithm: str) -> str:
    return "".join(c if c.isalnum() else "-" for c in algorithm).strip("-")[:60]


def _checked(file: Path) -> Path:
    if file.suffix.lower() not in (*PAGES, *PICTURES):
        known = ", ".join((PAGES[0], *PICTURES))
        raise InputError(f"the file '{file}' must end in one of {known}")
    if file.is_dir():
        raise InputError(f"the file '{file}' is a folder; name a file")
    return file


def write_file(story: Story, texts: Texts, about: list[str], again: str, file: Path) -> None:
    """The page, or the picture."""
    from fedrift.core.plain_files import write_file

    ending = file.suffix.lower()
    if ending in PICTURES:
        write_file(file, _drawn(story, texts, ending[1:], DPI))
        return
    from fedrift.explain.page import document

    write_file(file, document(story, texts, about, again))


def _drawn(story: Story, texts: Texts, ending: str, dpi: int) -> bytes:
    from fedrift.explain.picture import draw

    content = io.BytesIO()
    draw(story, texts).savefig(content, format=ending, dpi=dpi)
    return content.getvalue()


def notes(given: Named, task: Task) -> list[str]:
    """With which settings it was run."""
    steps = " and ".join(map(str, task.steps))
    who = "the clients take turns" if task.turns else "both clients take part in every round"
    lines = [
        task.terrain.about,
        f"{task.rounds} rounds of {steps} local steps with rate {task.lr:g}; {who}; gradients "
        "are exact.",
    ]
    if given.name in captions.read_texts():
        changed = captions.changed_options(given, captions.visible(given))
        if changed:
            lines.append(f"Chosen so that the effect can be seen: {', '.join(changed)}.")
    return lines


def command(given: Named, task: Task, file: Path) -> str:
    """What makes this file again."""
    steps = ",".join(map(str, task.steps))
    parts = ["fedrift", "explain", str(given), "--steps", steps, "--rounds", str(task.rounds)]
    parts += ["--lr", f"{task.lr:g}", "--terrain", task.terrain.name]
    parts += ["--turns"] if task.turns else ["--together"]
    return shlex.join([*parts, "-o", file.name])
