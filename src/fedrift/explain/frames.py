"""The story cut into frames: what there is to see at each moment, and what is said about it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from fedrift.explain.captions import Texts
from fedrift.explain.recording import Visit
from fedrift.explain.story import LONG, Path, Story, Turn
from fedrift.explain.terrain import Point

Kind = Literal["send", "gather", "step", "average", "server", "end"]
NEAR = 0.02  # a point this close to another is the same to the eye
TINY = 1e-9
WITHIN = 0.5  # of the middle of a named place


@dataclass(frozen=True)
class Frame:
    """One moment: which round, what happens, up to which local step, and the words."""

    turn: int
    """Place in `Story.turns`."""
    kind: Kind
    step: int
    heading: str
    words: str
    rule: Literal["step", "server", ""]
    """Which of the two rules is at work."""


def frames(story: Story, texts: Texts) -> list[Frame]:
    """Every moment of every round, then where it all ends."""
    moments: list[Frame] = []
    for place, turn in enumerate(story.turns):
        moments += _round_frames(story, texts, place, turn)
    last = len(story.turns) - 1
    moments.append(Frame(last, "end", 0, "Where it ends", verdict(story, texts), ""))
    return moments


def telling(story: Story, moments: Sequence[Frame]) -> int:
    """The moment to open with: the end of the first local work in which every correction that ever
    occurs is at work, so that there is something to see."""

    def seen(turn: Turn) -> set[str]:
        strides = (stride for visit in turn.visits for stride in visit.strides)
        return {push.piece for stride in strides for push in stride.pushes if any(push.vector)}

    most = max((len(seen(turn)) for turn in story.turns), default=0)
    place = next((i for i, turn in enumerate(story.turns) if len(seen(turn)) == most), 0)
    steps = [i for i, one in enumerate(moments) if one.turn == place and one.kind == "step"]
    later = [i for i, one in enumerate(moments) if one.turn == place and one.kind == "server"]
    return (steps or later or [0])[-1]


def pieces(story: Story, texts: Texts) -> list[str]:
    """The corrections that occur, in the order of the rule: the first has the first colour."""
    seen: dict[str, None] = {}
    for turn in story.turns:
        for visit in turn.visits:
            for stride in visit.strides:
                seen |= {push.piece: None for push in stride.pushes if any(push.vector)}
    return sorted(seen, key=lambda piece: list((*texts.terms, *seen)).index(piece))


def _round_frames(story: Story, texts: Texts, place: int, turn: Turn) -> Iterator[Frame]:
    head = f"Round {turn.number}"
    yield Frame(place, "send", 0, head, _sent(texts, turn), "")
    longest = max((len(visit.strides) for visit in turn.visits), default=0)
    gathered = any(visit.looks and visit.looks[0].at == turn.sent for visit in turn.visits)
    if gathered and (texts.gathers or not longest):
        words = texts.gathers or "Every client sends the gradient of its own loss at wᵗ."
        yield Frame(place, "gather", 0, f"{head}, gradients", words, "" if longest else "step")
    for k in range(longest):
        heading = f"{head}, local step {k + 1} of {longest}"
        yield Frame(place, "step", k + 1, heading, _stepped(texts, turn, k), "step")
    if longest:
        yield Frame(place, "average", 0, f"{head}, average", _averaged(turn), "server")
    if math.dist(turn.mean, turn.end) > TINY or not longest:
        words = texts.moves or "The server's step is not the plain mean of the clients."
        if not longest:
            words = "The server makes one step along the mean of the gradients."
        yield Frame(place, "server", 0, f"{head}, server", words, "server")


def _sent(texts: Texts, turn: Turn) -> str:
    who = _who(turn)
    more = f", {texts.sends}" if texts.sends.startswith("with ") else f" {texts.sends}"
    what = f"its model wᵗ{more if texts.sends else ''}"
    return f"The server sends {what} to {who}."


def _who(turn: Turn) -> str:
    if len(turn.visits) == 1:
        return f"client {turn.visits[0].client + 1}, whose turn it is"
    return "both clients"


def _stepped(texts: Texts, turn: Turn, k: int) -> str:
    """What the gradient does, then what each correction adds in this step."""
    strides = [visit.strides[k] for visit in turn.visits if k < len(visit.strides)]
    looks_uphill = any(s.looks and s.looks[-1].at != s.start for s in strides)
    one = len(turn.visits) == 1
    who = f"Client {turn.visits[0].client + 1} goes" if one else "Each client goes"
    if len(strides) < len(turn.visits):
        busy = next(v.client for v in turn.visits if k < len(v.strides))
        who = f"Client {busy + 1} goes on, the other has finished: it goes"
    if looks_uphill:
        sentences = [f"{who} down along the gradient found at the end of the dotted line."]
    else:
        sentences = [f"{who} down {'its' if one else 'its own'} loss."]
    if looks_uphill and strides[0].rule in texts.terms:
        sentences.append(texts.term(strides[0].rule)[1])
    pieces = [push.piece for stride in strides for push in stride.pushes if any(push.vector)]
    for piece in dict.fromkeys(pieces):
        sentences.append(texts.term(piece)[1])
    if not pieces and texts.first and k == 0:
        sentences.append(texts.first)
    return " ".join(filter(None, sentences))


def _averaged(turn: Turn) -> str:
    if len(turn.visits) == 1:
        return f"Only client {turn.visits[0].client + 1} took part: where it ended is the mean."
    return "The server takes the mean of where the two clients ended."


def gap(story: Story, path: Path | None) -> float | None:
    """How far from the common minimum a path ends."""
    if path is None or path.limit is None:
        return None
    return math.dist(path.limit, story.lowest)


def verdict(story: Story, texts: Texts) -> str:
    """Where the algorithm ends, and where FedAvg does."""
    return f"{_ends(story, texts.title, story.path)} {_beside(story)}".strip()


def _ends(story: Story, name: str, path: Path) -> str:
    far = gap(story, path)
    if far is None or path.limit is None:
        return f"With these settings {name} runs away: it became infinite."
    if not path.rests:
        return f"After {LONG} rounds {name} still goes to and fro, {_away(far)}."
    place = _place(story, path.limit)
    if place:
        return f"{name} comes to rest in the {place}."
    if far < NEAR:
        return f"{name} comes to rest in the common minimum."
    return f"{name} comes to rest {_away(far)}."


def _away(far: float) -> str:
    return f"{far:.2f} away from the common minimum"


def _place(story: Story, at: Point) -> str:
    """The named place of the terrain that a point is in."""
    places = story.task.terrain.places.items()
    return next((name for name, middle in places if math.dist(middle, at) < WITHIN), "")


def _beside(story: Story) -> str:
    if story.other is None and story.path.limit is None:
        return "A smaller rate would hold it."
    if story.other is None:
        far = gap(story, story.path)
        could = far is not None and far >= NEAR and max(story.task.steps) > 1
        return "Fewer local steps would bring it closer." if could else ""
    far, own = gap(story, story.other), gap(story, story.path)
    if far is None or own is None or story.other.limit is None:
        return ""
    if abs(far - own) < NEAR and story.other.rests == story.path.rests:
        return "So does FedAvg."
    place = _place(story, story.other.limit)
    if story.other.rests and place:
        return f"FedAvg stays in the {place}."
    return f"FedAvg {'stops' if story.other.rests else 'is then'} {far:.2f} away."


def state(turn: Turn, names: Mapping[str, Mapping[str, str]]) -> list[tuple[str, list[float]]]:
    """Vectors that server and clients keep after a round, under the names of the rule."""
    shown: list[tuple[str, list[float]]] = []
    for field, symbol in names.get("server", {}).items():
        if f"server.{field}" in turn.state:
            shown.append((symbol, turn.state[f"server.{field}"]))
    for field, symbol in names.get("client", {}).items():
        for client, index in ((1, "₁"), (2, "₂")):
            if f"client {client}.{field}" in turn.state:
                name = symbol.replace("ᵢ", index)
                shown.append((name, turn.state[f"client {client}.{field}"]))
    return shown


def climb(visit: Visit, k: int) -> Point | None:
    """Where the gradient of a local step was taken, if not where the step began."""
    if k >= len(visit.strides):
        return None
    stride = visit.strides[k]
    at = stride.looks[-1].at if stride.looks else stride.start
    return at if math.dist(at, stride.start) > TINY else None
