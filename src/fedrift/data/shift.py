"""Feature shift: each client sees its samples rotated, noisier or with another contrast.

A domain stands at a place t between 0 and 1. With strength v: rotation by the angle (2t-1)·v
degrees, noise of deviation t·v, contrast times 1+(2t-1)·v. Every client is a domain of its own,
client i of N at t = i/(N-1), a single one at t = 1/2; or there are D domains, domain d at
t = d/(D-1), which clients hold in turn, but for those that nobody trains on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedrift import grammar
from fedrift.data.assignment import Floats, Ints
from fedrift.errors import InputError, unknown
from fedrift.rng import generator

Array = npt.NDArray[np.floating]
BLOCK = 1024  # samples changed at a time: the copies on the way stay small


@dataclass(frozen=True)
class Shift:
    """One kind of shift: `change(samples, strength, t, rng)`; strengths from 0 to `high`."""

    change: Callable[[Array, float, float, np.random.Generator], Array]
    about: str
    grammar: str
    high: float
    name: Callable[[float, float], str]
    """What the domain at t is called, with a strength."""
    images_only: bool = True


def rotate(x: Array, strength: float, t: float, rng: np.random.Generator) -> Array:
    """Turned counter-clockwise about the centre, bilinear; outside, the nearest pixel goes on."""
    turn = np.deg2rad((2 * t - 1) * strength)
    if turn == 0:
        return x
    flat = x.reshape(*x.shape[:2], -1)
    turned = np.zeros_like(flat)
    for pixel, weight in _sources(x.shape[2], x.shape[3], turn):
        turned += np.take(flat, pixel, axis=2) * weight.astype(x.dtype)
    return turned.reshape(x.shape)


def _sources(height: int, width: int, turn: float) -> list[tuple[npt.NDArray[np.intp], Floats]]:
    """The four pixels next to where each pixel comes from, with their weights."""
    row, column = np.mgrid[:height, :width].reshape(2, -1)
    down, right = row - (height - 1) / 2, column - (width - 1) / 2
    row = down * np.cos(turn) + right * np.sin(turn) + (height - 1) / 2
    column = right * np.cos(turn) - down * np.sin(turn) + (width - 1) / 2
    row, column = np.clip(row, 0, height - 1), np.clip(column, 0, width - 1)
    top, left = np.floor(row).astype(np.intp), np.floor(column).astype(np.intp)
    low, far = np.minimum(top + 1, height - 1), np.minimum(left + 1, width - 1)
    y, x = row - top, column - left
    return [
        (top * width + left, (1 - y) * (1 - x)),
        (top * width + far, (1 - y) * x),
        (low * width + left, y * (1 - x)),
        (low * width + far, y * x),
    ]


def add_noise(x: Array, strength: float, t: float, rng: np.random.Generator) -> Array:
    """Independent Gaussian noise on every value, in units of the normalised data."""
    return x + (strength * t * rng.standard_normal(x.shape)).astype(x.dtype)


def scale_contrast(x: Array, strength: float, t: float, rng: np.random.Generator) -> Array:
    """The distance of each pixel from the mean of its image is multiplied."""
    mean = x.mean(axis=(1, 2, 3), keepdims=True)
    return mean + (x - mean) * x.dtype.type(1 + (2 * t - 1) * strength)


NAMES: dict[str, Shift] = {
    "rotation": Shift(
        rotate,
        "turned by -V to +V degrees",
        "rotation:V",
        180,
        lambda v, t: f"{_signed((2 * t - 1) * v)}°",
    ),
    "noise": Shift(
        add_noise,
        "Gaussian noise of deviation 0 to V",
        "noise:V",
        1e6,
        lambda v, t: f"noise {t * v:.3g}",
        images_only=False,
    ),
    "contrast": Shift(
        scale_contrast,
        "contrast times 1-V to 1+V",
        "contrast:V",
        1,
        lambda v, t: f"contrast ×{1 + (2 * t - 1) * v:.3g}",
    ),
}
OPTIONS = {
    "domains=D": "after any of these: D domains, which clients hold in turn, and accuracy in each",
    "unseen=0|5": "with domains=D: domains that no client has, by their numbers from 0",
}
"""What may follow the strengths."""
CLIENTS = "clients"
"""The number of domains where every client is one."""
MOST = 100  # domains in which a test set is evaluated


def _signed(value: float) -> str:
    text = f"{value:+.3g}"
    return "0" if float(text) == 0 else text.replace("-", "\N{MINUS SIGN}")


class Step(NamedTuple):
    """One of the changes that a shift makes in turn."""

    text: str
    kind: Shift
    strength: float


@dataclass(frozen=True)
class Domains:
    """The domains of a shift: how samples are changed in each, and who has which."""

    steps: tuple[Step, ...]
    number: int
    clients: int
    unseen: tuple[int, ...] = ()
    """Those that no client has."""
    is_tested: bool = False
    """The server's test set is evaluated in each of them."""

    @property
    def seen(self) -> tuple[int, ...]:
        return tuple(d for d in range(self.number) if d not in self.unseen)

    @property
    def tested(self) -> tuple[int, ...]:
        """All of them, those that clients have first."""
        return (*self.seen, *self.unseen)

    def of(self, client: int) -> int:
        """The domain of a client: they hold the seen ones in turn."""
        if not self.unseen:  # there may be very many
            return client % self.number
        return self.seen[client % len(self.seen)]

    @property
    def names(self) -> tuple[str, ...]:
        """What they are called, by their numbers."""
        return tuple(
            ", ".join(step.kind.name(step.strength, self._place(d)) for step in self.steps)
            for d in range(self.number)
        )

    def _place(self, domain: int) -> float:
        return domain / (self.number - 1) if self.number > 1 else 0.5

    def check(self, shape: tuple[int, ...]) -> None:
        """Refuses samples that cannot be changed so."""
        for step in self.steps:
            if step.kind.images_only and len(shape) != 4:
                raise InputError(
                    f"shift '{step.text}' is for images (samples × channels × height × width), "
                    f"but x has shape {shape}; use noise:V"
                )

    def changed(self, x: Array, domain: int, rng: np.random.Generator) -> Array:
        """Samples as they look in a domain."""
        for step in self.steps:
            x = step.kind.change(x, step.strength, self._place(domain), rng)
        return x

    def of_test(self, x: npt.ArrayLike) -> Array:
        """The same test samples in every domain, in the order of `tested`: they are the same for
        every seed, as test sets are."""
        data = np.asarray(x)
        self.check(data.shape)
        kind = data.dtype if data.dtype.kind == "f" else np.dtype(np.float32)
        moved = np.empty((self.number * len(data), *data.shape[1:]), kind)
        for at, domain in enumerate(self.tested):
            rng = generator(0, "shift domain", client=domain)
            for start in range(0, len(data), BLOCK):
                some = data[start : start + BLOCK].astype(kind)
                place = at * len(data) + start
                moved[place : place + len(some)] = self.changed(some, domain, rng)
        return moved


def domains_of(text: str, clients: int | None) -> Domains:
    """What `rotation:45+noise:0.1,domains=6,unseen=5` says of so many clients; None: not known
    yet, and so not refused."""
    whole = grammar.parse(text, "shift")
    options = dict(whole.options)
    said, unseen = options.pop("domains", None), options.pop("unseen", None)
    if options:
        raise unknown(f"option of shift '{text}'", next(iter(options)), ("domains", "unseen"))
    if unseen is not None and "," in (whole.value or ""):
        raise InputError(f"shift '{text}': unseen domains are joined by |, such as unseen=1|2")
    steps = tuple(_step(piece) for piece in str(replace(whole, options={})).split("+"))
    number = _number(said, text, clients)
    held = () if unseen is None else _unseen(unseen, text, said, number)
    if clients and clients < number - len(held):
        raise InputError(
            f"shift '{text}': {number - len(held)} domains are to be seen, but there are only "
            f"{clients} clients; use fewer domains"
        )
    return Domains(steps, number, clients or number, held, is_tested=said is not None)


def _number(said: str | None, text: str, clients: int | None) -> int:
    if said is None:
        return clients or 1
    if said == CLIENTS and (clients or 0) <= MOST:
        return clients or 1
    if said == CLIENTS:
        raise InputError(
            f"shift '{text}': the test set would be evaluated in {clients} domains, one for each "
            f"client, and {MOST} are the most; use domains=10"
        )
    field = f"domains of shift '{text}'"
    return grammar.number(said, field, kind=int, low=2, high=MOST)


def _unseen(unseen: str, text: str, said: str | None, number: int) -> tuple[int, ...]:
    if said is None or said == CLIENTS:
        raise InputError(
            f"shift '{text}': unseen names some of a number of domains; say domains=D too"
        )
    field = f"unseen of shift '{text}'"
    held = [
        grammar.number(one, field, kind=int, low=0, high=number - 1) for one in unseen.split("|")
    ]
    if len(set(held)) < len(held):
        raise InputError(f"{field} names a domain twice; keep one")
    if len(held) == number:
        raise InputError(f"{field} leaves no domain to train on; name fewer than {number}")
    return tuple(sorted(held))


def shift(
    text: str, x: npt.ArrayLike, parts: Sequence[Ints], seed: int, purpose: str = "shift"
) -> Array:
    """A copy of `x` (samples × …) in which every client's part is shifted by its own strength.

    `rotation:45`, `noise:0.5`, `contrast:0.5`, or several in turn: `rotation:45+noise:0.1`.
    `purpose` names the random numbers: test data have others than training data.
    """
    data = np.asarray(x)
    domains = domains_of(text, len(parts))
    domains.check(data.shape)
    shifted = np.array(data, data.dtype if data.dtype.kind == "f" else np.float32)
    for client, part in enumerate(parts):
        rng = generator(seed, purpose, client=client)
        for start in range(0, len(part), BLOCK):
            block = part[start : start + BLOCK]
            shifted[block] = domains.changed(shifted[block], domains.of(client), rng)
    return shifted


def _step(text: str) -> Step:
    named = grammar.parse(text, "shift")
    if named.name not in NAMES:
        raise unknown("shift", named.name, NAMES)
    kind = NAMES[named.name]
    if named.value is None or named.options or named.inner is not None:
        raise InputError(f"shift '{text}' needs one strength and nothing else: {kind.grammar}")
    strength = grammar.number(named.value, f"shift '{text}'", low=0, high=kind.high)
    return Step(text, kind, strength)
