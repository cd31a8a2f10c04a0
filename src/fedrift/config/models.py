"""The models and losses by name, their options and the images models accept; no torch needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from fedrift.errors import InputError, unknown
from fedrift.grammar import Named, number, parse

NAMES: dict[str, str] = {
    "logistic": "one linear layer: multinomial logistic regression",
    "mlp": "two hidden layers of 200 units with ReLU; depth=1 for one",
    "cnn": "conv 20 and conv 50 (5×5, pooled), FC 500",
    "cnn-mcmahan": "conv 32 and conv 64 (5×5, padded, pooled), FC 512 (McMahan et al. 2017)",
    "lenet": "conv 64 and conv 64 (5×5, pooled), FC 384 and 192 (FedDyn, FedSAM, FedGF)",
    "niid-cnn": "conv 6 and conv 16 (5×5, pooled), FC 120 and 84 (NIID-Bench)",
    "resnet20": "ResNet-20 with 2-group GroupNorm and option-A shortcuts (GHBM)",
    "resnet18": "ResNet-18 with 2-group GroupNorm (FL-Simulator)",
    "mobilenet-v2": "MobileNetV2 with BatchNorm; weights=FILE loads torchvision's (safetensors)",
    "random-conv": "frozen random 6×6 filters, pooled to 4×4, and a linear layer (Fed3R)",
    "gpt": "a small decoder of tokens: causal attention, learned positions",
    "lstm": "embedded tokens, LSTM, a linear layer",
}

TEXT_DEFAULTS: dict[str, dict[str, int]] = {
    "gpt": {"layers": 2, "width": 64, "heads": 4},
    "lstm": {"layers": 1, "width": 128, "embedding": 32},
}
"""The models of text, which take whole numbers, and their sizes."""

MOBILE_SIZE, RANDOM_FILTERS = 128, 64
EXTRACTOR, EXTRACTOR_SIZE, DIMENSIONS = "mobilenet-v2", "96", "256"
"""What `features:DATA` looks with, at how many pixels, and how many dimensions are kept."""

GRAMMAR: dict[str, str] = {
    **{name: name for name in NAMES},
    "mlp": "mlp[:hidden=200,depth=2]",
    "resnet18": "resnet18[:stem=imagenet|cifar]",
    "mobilenet-v2": f"mobilenet-v2[:weights=FILE,size={MOBILE_SIZE}]",
    "random-conv": f"random-conv[:filters={RANDOM_FILTERS}]",
    "gpt": "gpt[:layers=2,width=64,heads=4,context=128]",
    "lstm": "lstm[:layers=1,width=128,embedding=32]",
}

OPTIONS: dict[str, tuple[str, ...]] = {
    "mlp": ("hidden", "depth"),
    "resnet18": ("stem",),
    "mobilenet-v2": ("weights", "size"),
    "random-conv": ("filters",),
    "gpt": (*TEXT_DEFAULTS["gpt"], "context"),
    "lstm": tuple(TEXT_DEFAULTS["lstm"]),
}

WIDEST = 20_000  # units of a hidden layer; two of them have 400 million weights between them
BOUNDS = {
    "hidden": (1, WIDEST),
    "depth": (1, 2),
    "size": (32, 4096),
    "filters": (1, WIDEST),
    "layers": (1, 100),
    "width": (1, WIDEST),
    "heads": (1, 1000),
    "embedding": (1, WIDEST),
    "context": (1, 8192),
}
"""Options that are whole numbers: the smallest and largest that make sense."""

OWN = "package.module:Class"

STEMS = ("imagenet", "cifar")

CONV_PADDING = {"cnn": 0, "cnn-mcmahan": 2, "lenet": 0, "niid-cnn": 0}
"""Zeros on each side of an image before its 5×5 convolutions."""


@dataclass(frozen=True)
class ModelChoice:
    """A model as the user wrote it: a name of ours, or the reader's own `module:attribute`."""

    name: str
    options: dict[str, int | str] = field(default_factory=dict[str, int | str])
    attribute: str | None = None
    """What to take from the module `name`; None for a model of ours."""

    @property
    def text(self) -> str:
        """The name as the user knows it."""
        return self.name if self.attribute is None else f"{self.name}:{self.attribute}"

    @property
    def takes_tokens(self) -> bool:
        """A model of text, which takes whole numbers."""
        return self.attribute is None and self.name in TEXT_DEFAULTS


def choose_model(
    text: str, input_shape: tuple[int, ...] | None = None, is_text: bool | None = None
) -> ModelChoice:
    """Read a model's text and refuse what cannot be built; with a shape, what cannot fit.

    `is_text`: whether samples are windows of tokens, if that is known.
    """
    named = parse(text, "model")
    if named.inner is not None:
        raise InputError(f"model '{named}': a model wraps nothing; remove the parentheses")
    if named.name not in NAMES:
        return _own(named)
    if named.value is not None:
        raise InputError(
            f"model '{named}' has the value '{named.value}'; write {GRAMMAR[named.name]}"
        )
    choice = ModelChoice(named.name, _options(named))
    if is_text is not None and is_text != choice.takes_tokens:
        kind, those = ("text", "gpt, lstm") if is_text else ("no text", "mlp, cnn")
        raise InputError(f"model '{named}' does not fit: the data are {kind}; use {those}")
    if input_shape is not None:
        check_shape(choice.name, input_shape)
    return choice


def extractor_text(data: Named) -> str:
    """The model that `features:DATA` names, with the options that stand beside it."""
    named = parse(data.options.get("extractor", EXTRACTOR), "extractor")
    known = OPTIONS.get(named.name, ())
    beside = {key: data.options[key] for key in ("size", "weights") if key in data.options}
    if named.name == EXTRACTOR:
        beside = {"size": EXTRACTOR_SIZE, **beside}
    beside = {key: value for key, value in beside.items() if key in known}
    text = str(Named(named.name, named.value, {**beside, **named.options}))
    choose_model(text)
    return text


def _own(named: Named) -> ModelChoice:
    if named.value is None or not named.value.isidentifier():
        raise InputError(f"{unknown('model', named.name, NAMES)}; or your own as {OWN}")
    if named.options:
        raise InputError(
            f"model '{named}': a model of your own takes no options; give them as defaults"
        )
    return ModelChoice(named.name, attribute=named.value)


def _options(named: Named) -> dict[str, int | str]:
    known = OPTIONS.get(named.name, ())
    options: dict[str, int | str] = {}
    for key, text in named.options.items():
        if not known:
            raise InputError(f"model '{named}': {named.name} has no option '{key}'; remove it")
        if key not in known:
            raise unknown(f"option of {named.name}", key, known)
        if key in BOUNDS:
            field, (low, high) = f"option {key} of {named.name}", BOUNDS[key]
            options[key] = number(text, field, kind=int, low=low, high=high)
        elif key == "weights":
            options[key] = _file(text, named.name)
        elif text in STEMS:
            options[key] = text
        else:
            raise InputError(f"option stem of resnet18 must be imagenet or cifar, not '{text}'")
    return options


def _file(text: str, model: str) -> str:
    if not Path(text).expanduser().is_file():
        raise InputError(f"option weights of {model}: there is no file '{text}'; give its path")
    return str(Path(text).expanduser())


def side_after(side: int, padding: int) -> int:
    """Pixels left of one side after two 5×5 convolutions, each halved by pooling; 0 is too few."""
    for _ in range(2):
        side = (side + 2 * padding - 4) // 2
    return max(side, 0)


def fits(name: str, input_shape: tuple[int, ...]) -> bool:
    """True if the model accepts samples of this shape."""
    if name in TEXT_DEFAULTS:
        return len(input_shape) == 1 and min(input_shape) >= 1
    if name in ("logistic", "mlp"):
        return len(input_shape) >= 1 and min(input_shape) >= 1
    if len(input_shape) != 3 or min(input_shape) < 1:
        return False
    if name == "mobilenet-v2":
        return input_shape[0] in (1, 3)
    if name not in CONV_PADDING:
        return True
    return min(side_after(side, CONV_PADDING[name]) for side in input_shape[1:]) >= 1


def check_shape(name: str, input_shape: tuple[int, ...]) -> None:
    """Refuse a shape the model cannot take, and say which models can."""
    if fits(name, input_shape):
        return
    shape = "×".join(map(str, input_shape)) or "none"
    others = ", ".join(m for m in NAMES if fits(m, input_shape) and m not in TEXT_DEFAULTS)
    needs = "images, channels×height×width"
    if name in CONV_PADDING:
        smallest = next(n for n in range(1, 99) if side_after(n, CONV_PADDING[name]))
        needs += f", of at least {smallest}×{smallest} pixels"
    elif name in TEXT_DEFAULTS:
        needs = "windows of tokens"
    elif name in ("logistic", "mlp"):
        needs = "at least one feature"
    elif name == "mobilenet-v2":
        needs += ", of 1 or 3 channels"
    raise InputError(
        f"model '{name}' needs {needs}, but a sample's shape is {shape}"
        + (f"; models that fit: {others}" if others else "")
    )


# The losses by name.

LOSSES: dict[str, str] = {
    "cross_entropy": "of class labels (the default)",
    "mse": "mean squared error of numbers",
    "l1": "mean absolute error of numbers",
    "bce": "cross-entropy of several yes-or-no answers at once, from logits",
}
OWN_LOSS = "package.module:function"
VALUE_LOSSES = ("mse", "l1", "bce")
"""Losses whose targets are floating-point numbers, one per output."""


def check_loss(text: str) -> None:
    """Refuse what names no loss."""
    named = parse(text, "loss")
    if named.name in LOSSES and str(named) != named.name:
        raise InputError(f"loss '{text}': {named.name} takes no options; write {named.name}")
    if named.name not in LOSSES and (named.code is None or named.options or named.inner):
        raise InputError(f"{unknown('loss', named.name, LOSSES)}; or your own as {OWN_LOSS}")
