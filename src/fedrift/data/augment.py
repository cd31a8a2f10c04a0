"""Augmentation of minibatches: crop, flip, cutout (DeVries 2017), mixup (Zhang et al. 2018).

Images are already normalised, so 0 is the data set's mean: that is what cutout writes. A crop
pads with black, as if before normalising, where the data set says what black has become, else
with 0. The order is fixed, however they are named: crop, flip, cutout, then mixup of the
augmented batch. A step draws once; methods that take two gradients see the same batch twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift.errors import InputError, unknown
from fedrift.grammar import Named, number, parse

if TYPE_CHECKING:
    from torch import Tensor


NAMES: dict[str, str] = {
    "crop": "black around the image, then a random cut of its own size",
    "flip": "left and right exchanged in every second image, at random",
    "cutout": "a square around a random pixel set to zero",
    "mixup": "the batch blended with a permutation of itself, by a share ~ Beta(alpha, alpha)",
}
GRAMMAR: dict[str, str] = {
    "crop": "crop[:padding=4]",
    "flip": "flip",
    "cutout": "cutout[:length=16]",
    "mixup": "mixup[:alpha=1]",
}


@dataclass(frozen=True)
class Crop:
    """A cut of the image's own size from the image with `padding` pixels on each side."""

    padding: int = 4
    black: tuple[float, ...] = ()
    """What is padded with, one number per channel; zeros if it is not known."""

    def __call__(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return _moved(x, self.places(len(x), rng), np.zeros(len(x), dtype=bool), self.black)

    def places(self, n: int, rng: np.random.Generator) -> np.ndarray:
        """Where the cuts begin, counted from the image's own corner: rows, then columns."""
        return rng.integers(0, 2 * self.padding + 1, size=(2, n)) - self.padding


@dataclass(frozen=True)
class Flip:
    """Left and right exchanged with probability 1/2."""

    def __call__(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        return _moved(x, np.zeros((2, len(x)), dtype=np.int64), self.chosen(len(x), rng))

    def chosen(self, n: int, rng: np.random.Generator) -> np.ndarray:
        return rng.random(n) < 0.5


def _moved(
    x: Tensor, places: np.ndarray, mirrored: np.ndarray, black: tuple[float, ...] = ()
) -> Tensor:
    """Images cut out at their places, black where there is no image, then mirrored where marked.

    One image after the other, one copy each: half the time of cropping and then flipping the
    batch with index arrays, which pass several times over memory.
    """
    n, channels, height, width = x.shape
    edge = int(np.abs(places).max(initial=0))
    images = x.cpu().numpy()
    padded = np.zeros_like(images, shape=(n, channels, height + 2 * edge, width + 2 * edge))
    if black:
        padded[:] = np.array(black, dtype=images.dtype)[:, None, None]
    padded[:, :, edge : edge + height, edge : edge + width] = images
    out = x.cpu().clone()  # a clone, not a new tensor: it keeps the strides
    rows, columns = (places + edge).tolist()
    work = zip(out.numpy(), padded, rows, columns, mirrored.tolist(), strict=True)
    for cut, image, row, column, flips in work:
        part = image[:, row : row + height, column : column + width]
        cut[:] = part[:, :, ::-1] if flips else part
    return out.to(x.device)


@dataclass(frozen=True)
class Cutout:
    """Zeros in a square around a pixel chosen uniformly, clipped to the image."""

    length: int = 16

    def __call__(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        rows, columns = (rng.integers(0, side, len(x)) - self.length // 2 for side in x.shape[2:])
        out = x.cpu().clone()
        images = out.numpy()
        for image, row, column in zip(images, rows.tolist(), columns.tolist(), strict=True):
            image[:, max(0, row) : row + self.length, max(0, column) : column + self.length] = 0
        return out.to(x.device)


@dataclass(frozen=True)
class Mixed:
    """The two targets of a blended batch, and the share of the first."""

    y: Tensor
    y_perm: Tensor
    share: float


@dataclass(frozen=True)
class Mixup:
    """share·x + (1 − share)·x[π], one share and one permutation π per batch."""

    alpha: float = 1.0

    def __call__(
        self, x: Tensor, y: Tensor, rng: np.random.Generator
    ) -> tuple[Tensor, Tensor | Mixed]:
        share = float(rng.beta(self.alpha, self.alpha)) if self.alpha > 0 else 1.0
        if share == 1.0:
            return x, y  # the very same bits
        order = rng.permutation(len(x))
        return x.mul(share).add_(x[order], alpha=1.0 - share), Mixed(y, y[order], share)


@dataclass(frozen=True)
class Augment:
    """What happens to every minibatch of training, in this order; it never writes to its input."""

    crop: Crop | None = None
    flip: Flip | None = None
    cutout: Cutout | None = None
    mixup: Mixup | None = None

    def __bool__(self) -> bool:
        """False if nothing is to be done."""
        return any((self.crop, self.flip, self.cutout, self.mixup))

    def apply(
        self, x: Any, y: Any, rng: np.random.Generator, mixup_rng: np.random.Generator
    ) -> tuple[Any, Any]:
        """The augmented batch and its target: y, or Mixed for the loss that `mixed_loss` makes."""
        if self.crop is not None and self.flip is not None:
            places = self.crop.places(len(x), rng)
            x = _moved(x, places, self.flip.chosen(len(x), rng), self.crop.black)
        else:
            only = self.crop or self.flip
            x = x if only is None else only(x, rng)
        x = x if self.cutout is None else self.cutout(x, rng)
        return (x, y) if self.mixup is None else self.mixup(x, y, mixup_rng)

    __call__ = apply

    def check(self, x: Any, y: Any) -> None:
        """Refuse, before training, samples that cannot be augmented."""
        import torch

        shape = tuple(x.shape) if isinstance(x, torch.Tensor) else type(x).__name__
        for name in ("crop", "flip", "cutout"):
            if getattr(self, name) is not None and (isinstance(shape, str) or len(shape) != 4):
                raise InputError(f"augment '{name}' needs images N×C×H×W, and x is {shape}")
        tensors = isinstance(x, torch.Tensor) and isinstance(y, torch.Tensor)
        if self.mixup is not None and not (tensors and x.is_floating_point()):
            kind = x.dtype if isinstance(x, torch.Tensor) else shape
            raise InputError(
                "augment 'mixup' needs x as one tensor of floating-point numbers and y as one "
                f"tensor, and they are {kind} and {type(y).__name__}"
            )


def mixed_loss(loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """The loss for plain and for mixed targets; picklable if `loss` is."""
    return partial(_blended, loss)


def _blended(loss: Callable[[Any, Any], Tensor], output: Any, target: Any) -> Tensor:
    if not isinstance(target, Mixed):
        return loss(output, target)
    first, second = loss(output, target.y), loss(output, target.y_perm)
    return target.share * first + (1.0 - target.share) * second


def plain_loss(loss: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    """The loss that `mixed_loss` was given; any other as it is."""
    return loss.args[0] if isinstance(loss, partial) and loss.func is _blended else loss


def parse_augment(texts: str | Sequence[str] | None) -> Augment:
    """`["crop:4", "flip", "mixup:alpha=1", "cutout:length=16"]`, in any order."""
    parts: dict[str, Any] = {}
    for text in [texts] if isinstance(texts, str) else texts or ():
        named = parse(text, "augment")
        if named.name not in NAMES:
            raise unknown("augment", named.name, NAMES)
        if named.inner is not None:
            raise InputError(f"augment '{named}' wraps nothing; remove the parentheses")
        if named.name in parts:
            raise InputError(f"augment names '{named.name}' twice; keep one")
        parts[named.name] = PARSERS[named.name](named)
    return Augment(**parts)


def _flip(named: Named) -> Flip:
    if named.value is not None or named.options:
        raise InputError(f"augment '{named}': flip takes no value; write flip")
    return Flip()


def _setting(named: Named, key: str, default: float, low: int, kind: type[float]) -> float:
    """The only setting of an augmentation, written after the colon or as key=value."""
    for other in named.options:
        if other != key:
            raise unknown(f"option of {named.name}", other, (key,))
    given = [text for text in (named.value, named.options.get(key)) if text is not None]
    if len(given) > 1:
        raise InputError(f"augment '{named}' gives {key} twice; write {GRAMMAR[named.name]}")
    field = f"option {key} of augment {named.name}"
    return number(given[0], field, kind=kind, low=low) if given else default


PARSERS: dict[str, Callable[[Named], Any]] = {
    "crop": lambda named: Crop(int(_setting(named, "padding", 4, 0, int))),
    "flip": _flip,
    "cutout": lambda named: Cutout(int(_setting(named, "length", 16, 1, int))),
    "mixup": lambda named: Mixup(_setting(named, "alpha", 1.0, 0, float)),
}
