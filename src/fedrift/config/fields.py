"""The fields of an experiment: what each accepts, from TOML or Python values and from text."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeGuard, cast

from fedrift import grammar
from fedrift.config.backends import BACKENDS, MOST_WORKERS, public_names
from fedrift.core.compression import EXAMPLE, NONE, parse_compression
from fedrift.errors import InputError, unknown

Read = Callable[[object, str], object]
Parse = Callable[[str, str], object]

MOST = 10_000_000  # clients or rounds: beyond any simulation, small enough to count
LARGEST_SEED = 2**63 - 1


@dataclass(frozen=True)
class Field:
    """`read` checks a typed value and makes it canonical; `parse` turns text into a typed value."""

    read: Read
    parse: Parse
    shown: str = "NAME"
    """What stands for the value in help."""
    is_number: bool = False
    """Several may be written with commas between them."""
    is_list: bool = False
    """One name alone may stand for the list of it, on the command line and in Python."""


def refuse(value: object, field: str, expected: str) -> InputError:
    """`lr must be a number above 0, not -1`."""
    shown = str(value).lower() if isinstance(value, bool) else repr(value)
    shown = shown if len(shown) <= 60 else f"{shown[:57]}…"
    return InputError(f"{field} must be {expected}, not {shown}")


def whole(low: int, high: int = MOST) -> Field:
    expected = f"a whole number of at least {low}"

    def read(value: object, field: str) -> int:
        if not is_int(value) or value < low:
            raise refuse(value, field, expected)
        if value > high:
            raise refuse(value, field, f"a whole number of at most {high}")
        return value

    return Field(read, lambda text, field: to_number(text, field, int, expected), "N", True)


def real(
    low: float = 0.0, *, above: bool = False, below: float = math.inf, high: float = math.inf
) -> Field:
    expected = f"a number {'above' if above else 'of at least'} {low:g}"
    expected += f" and below {below:g}" if below < math.inf else ""
    expected += f" and at most {high:g}" if high < math.inf else ""

    def read(value: object, field: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise refuse(value, field, expected)
        # Written so that nan fails every comparison.
        fits = (value > low if above else value >= low) and value < below and value <= high
        if not fits:
            raise refuse(value, field, expected)
        return float(value)

    parse: Parse = lambda text, field: to_number(text, field, float, expected)  # noqa: E731
    return Field(read, parse, "NUMBER", True)


def text(shown: str = "NAME") -> Field:
    def read(value: object, field: str) -> str:
        if not isinstance(value, str) or not value.strip():
            raise refuse(value, field, "a text")
        if "\0" in value:
            raise refuse(value, field, "a text without zero bytes")
        return value

    return Field(read, as_is, shown)


def named() -> Field:
    """Anything of the naming grammar; who owns the name checks it further."""

    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, "a name such as name:value,key=value")
        grammar.parse(value, field)
        return value

    return Field(read, as_is)


def choice(*names: str) -> Field:
    def read(value: object, field: str) -> str:
        if isinstance(value, str) and value not in names:
            raise unknown(field, value, names)
        if not isinstance(value, str):
            raise refuse(value, field, f"one of {', '.join(names)}")
        return value

    return Field(read, as_is, "|".join(names))


def backend() -> Field:
    """The name of a backend, with the address of a cluster where it takes one."""

    def read(value: object, field: str) -> str:
        names = public_names()
        if not isinstance(value, str):
            raise refuse(value, field, f"one of {', '.join(names)}")
        name, colon, address = value.partition(":")
        takes_it = name in names and BACKENDS[name].takes_address
        if value not in names and not (takes_it and colon and address and value.strip() == value):
            raise unknown(field, value, names)
        return value

    return Field(read, as_is, "|".join(public_names()))


def workers() -> Field:
    def read(value: object, field: str) -> int | str:
        if value == "auto":
            return "auto"
        if is_int(value) and 0 <= value <= MOST_WORKERS:
            return value
        most = f"'auto' or a whole number from 0 (in-process) to {MOST_WORKERS}"
        raise refuse(value, field, most)

    return Field(read, int_or_text, "auto|N")


def device() -> Field:
    def read(value: object, field: str) -> str:
        if isinstance(value, str) and re.fullmatch(r"cpu|mps|cuda(:\d{1,3})?", value):
            return value
        raise refuse(value, field, "cpu, cuda, cuda:NUMBER or mps")

    return Field(read, as_is)


def names() -> Field:
    """Several names, in order."""
    expected = "a list of names, for example ['crop:4', 'flip']"
    one = named()

    def read(value: object, field: str) -> tuple[str, ...]:
        return tuple(str(one.read(item, field)) for item in items(value, field, expected))

    return Field(read, lambda text, _: [text], is_list=True)


def is_int(value: object) -> TypeGuard[int]:
    """A whole number; True and False are none."""
    return isinstance(value, int) and not isinstance(value, bool)


def items(value: object, field: str, expected: str) -> Sequence[object]:
    """The elements of a list, or a refusal."""
    if not isinstance(value, list | tuple):
        raise refuse(value, field, expected)
    return cast("Sequence[object]", value)


def integers(value: object, field: str, expected: str) -> tuple[int, ...]:
    """A list of whole numbers of at least 0, or a refusal."""
    numbers: list[int] = []
    for number in items(value, field, expected):
        if not (is_int(number) and 0 <= number <= MOST):
            raise refuse(value, field, expected)
        numbers.append(number)
    return tuple(numbers)


def to_number(text: str, field: str, kind: type[int] | type[float], expected: str) -> float:
    """Text of the command line as a number; its bounds are checked by `read`."""
    try:
        return kind(text)
    except (ValueError, OverflowError):
        raise refuse(text, field, expected) from None


def int_or_text(text: str, _: str) -> object:
    """A number where a word may stand instead."""
    return int(text) if re.fullmatch(r"[-+]?\d{1,18}", text) else text


def as_is(text: str, _: str) -> object:
    return text


def shown(value: object) -> str:
    """A value in a sentence, as it is typed and not too long."""
    text = str(value)
    if isinstance(value, tuple):  # as it is typed: 0,3|1,2
        text = text[1:-1].removesuffix(",").replace("), (", "|").replace(" ", "").strip("(,)")
    return text if len(text) <= 40 else f"{text[:37]}…"


# How much work, on which batches, at which rate, by whom: these fields of an experiment.


def amount() -> Field:
    """Local work: a number, one per client, or `uniform:LOW,HIGH` drawn per client and round."""
    expected = "a whole number of at least 1, a list with one per client, or 'uniform:2,5'"

    def read(value: object, field: str) -> int | str | tuple[int, ...]:
        if is_int(value) and value > MOST:
            raise refuse(value, field, f"a whole number of at most {MOST}")
        if is_int(value) and value >= 1:
            return value
        if isinstance(value, str):
            uniform(value, field)
            return value
        numbers = integers(value, field, expected)
        if max(numbers, default=0) < 1:
            raise refuse(value, field, expected)
        return numbers

    def parse(text: str, field: str) -> object:
        if ":" in text:
            return text
        numbers = [to_number(piece, field, int, expected) for piece in text.split(",")]
        return numbers[0] if len(numbers) == 1 else numbers

    return Field(read, parse, "N")


def check_length(work: object, field: str, clients: int) -> None:
    """Local work that is listed has an entry for every client."""
    if isinstance(work, tuple) and len(cast("tuple[int, ...]", work)) != clients:
        number = len(cast("tuple[int, ...]", work))
        raise InputError(
            f"{field} lists {number} entries for {clients} clients; give one per client"
        )


def uniform(text: str, field: str) -> tuple[int, int]:
    """The bounds of `uniform:2,5`."""
    parsed = grammar.parse(text, field)
    if parsed.name != "uniform":
        raise unknown(f"draw in {field}", parsed.name, ["uniform"])
    ends = re.fullmatch(r"(\d{1,9}) *, *(\d{1,9})", parsed.value or "")
    low, high = (int(ends[1]), int(ends[2])) if ends and not parsed.options else (1, 0)
    if not (low <= high <= MOST and high >= 1):
        raise refuse(text, field, "uniform:LOW,HIGH with LOW not above HIGH")
    return low, high


def batch() -> Field:
    """A batch size; `none` and `full` mean the whole client."""

    def read(value: object, field: str) -> int | str:
        if value == "full" or value == "none":
            return "full"
        if not (is_int(value) and 1 <= value <= MOST):
            raise refuse(value, field, "a whole number of at least 1, or 'full' (the whole client)")
        return value

    return Field(read, int_or_text, "N", True)


@dataclass(frozen=True)
class Form:
    """The numbers of one schedule; the first may be written as the value, None has no default."""

    example: str
    defaults: dict[str, float | None]


SCHEDULES = {
    "constant": Form("constant", {}),
    "exp": Form("exp:0.9", {"factor": None}),
    "step": Form("step:10,factor=0.5", {"every": None, "factor": 0.1}),
    "cosine": Form("cosine:0.01", {"floor": 0.0}),
}
WHOLE = {"every"}


def schedule_of(text: str, field: str = "schedule") -> tuple[str, dict[str, float]]:
    """The name and the numbers of a rate schedule: `exp:0.9` → ("exp", {"factor": 0.9})."""
    parsed = grammar.parse(text, field)
    if parsed.name not in SCHEDULES:
        raise unknown(field, parsed.name, SCHEDULES)
    form = SCHEDULES[parsed.name]
    given = dict(parsed.options)
    if given.pop("per", "round") not in ("round", "step"):
        raise InputError(f"{field} '{text}': per must be round or step")
    if parsed.value is not None:
        given = {next(iter(form.defaults), "value"): parsed.value, **given}
    numbers: dict[str, float] = {}
    for key, default in form.defaults.items():
        if key in given:
            kind, low = (int, 1) if key in WHOLE else (float, 0)
            field_of_key = f"{field} '{text}': {key}"
            numbers[key] = grammar.number(given.pop(key), field_of_key, kind=kind, low=low)
        elif default is not None:
            numbers[key] = default
        else:
            raise InputError(f"{field} '{text}' needs {key}; write for example {form.example}")
    if given:
        key = next(iter(given))
        raise InputError(f"{field} '{text}' has no {key}; write for example {form.example}")
    return parsed.name, numbers


def is_per_step(text: str) -> bool:
    """The schedule runs over the local steps of each visit instead of over rounds."""
    return grammar.parse(text, "schedule").options.get("per") == "step"


def schedule() -> Field:
    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, "a schedule such as 'exp:0.9'")
        schedule_of(value, field)
        return value

    return Field(read, as_is)


OPTIMIZERS = {
    "sgd": "momentum nesterov weight_decay",
    "adam": "betas eps weight_decay",
    "adamw": "betas eps weight_decay",
    "adagrad": "eps initial_accumulator_value weight_decay",
    "rmsprop": "alpha eps momentum centered weight_decay",
}
"""torch's names of the local optimizers, and of their options."""


def optimizer_of(text: str, field: str = "optimizer") -> tuple[str, dict[str, Any]]:
    """The name, and what is said of its options: `adam:eps=1e-6` → ("adam", {"eps": 1e-6})."""
    parsed = grammar.parse(text, field)
    if parsed.name not in OPTIMIZERS:
        raise unknown(field, parsed.name, OPTIMIZERS)
    known = OPTIMIZERS[parsed.name].split()
    if parsed.value is not None or parsed.inner is not None:
        raise InputError(f"{field} '{text}': options are written key=value: {', '.join(known)}")
    options: dict[str, Any] = {}
    for key, value in parsed.options.items():
        if key not in known:
            own = " (the run's own setting)" if key == "lr" else ""
            raise unknown(f"option of {field} '{parsed.name}'{own}", key, known)
        options[key] = _option(key, value, f"{field} '{text}': {key}")
    return parsed.name, options


def _option(key: str, text: str, field: str) -> object:
    if key in ("nesterov", "centered"):
        if text not in ("true", "false"):
            raise InputError(f"{field} must be true or false, not '{text}'")
        return text == "true"
    numbers = tuple(grammar.number(one, field, low=0) for one in text.split("|"))
    if len(numbers) != (2 if key == "betas" else 1):
        expected = "two numbers such as 0.9|0.999" if key == "betas" else "one number"
        raise InputError(f"{field} must be {expected}, not '{text}'")
    if key in ("betas", "momentum", "alpha") and max(numbers) >= 1:
        raise InputError(f"{field} must be below 1, not '{text}'")
    return numbers if key == "betas" else numbers[0]


def optimizer() -> Field:
    """A local optimizer by torch's name, with its options."""

    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, "a name such as 'adam' or 'adamw:betas=0.9|0.95'")
        optimizer_of(value, field)
        return value

    return Field(read, as_is)


SAMPLINGS = ("fixed", "bernoulli", "cyclic", "size", "available", "power")


class Sampled(NamedTuple):
    """A way of drawing clients, as a text says it."""

    kind: str
    """One of `SAMPLINGS`, or "function"."""
    candidates: int = 0
    code: tuple[str, str] | None = None
    """Module and name of a function."""


def sampling_of(text: str, field: str = "sampling") -> Sampled:
    """Reads a way of drawing clients: a name, `power:D`, or `module:function`."""
    named = grammar.parse(text, field)
    name, value = named.name, named.value
    if name == "power":
        number = value if value is not None and value.isascii() and value.isdigit() else "0"
        if named.options or named.inner or len(number) > 12 or int(number) < 1:
            raise InputError(
                f"{field} '{text}': write power:D, D being how many candidates are drawn, such as "
                "power:20"
            )
        return Sampled(name, int(number))
    if name in SAMPLINGS:
        if str(named) != name:
            raise InputError(f"{field} '{text}': {name} takes no options; write {name}")
        return Sampled(name)
    if named.code is None or named.options or named.inner or value is None:
        raise InputError(f"{unknown(field, name, SAMPLINGS)}; or your own as module:function")
    return Sampled("function", code=(name, value))


def sampling() -> Field:
    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, f"one of {', '.join(SAMPLINGS)}, or module:function")
        sampling_of(value, field)
        return value

    return Field(read, as_is, "NAME")


def cohorts() -> Field:
    """Who takes part, one list of clients per round; as text `0,3|1,2`."""
    expected = "one list of client numbers per round, for example [[0, 3], [1, 2]]"

    def read(value: object, field: str) -> tuple[tuple[int, ...], ...]:
        rounds = tuple(integers(one, field, expected) for one in items(value, field, expected))
        for at, chosen in enumerate(rounds):
            if len(set(chosen)) < len(chosen):
                raise InputError(f"{field}[{at}] names a client twice: {list(chosen)}; keep one")
        if not rounds:
            raise refuse(value, field, expected)
        return rounds

    def parse(text: str, field: str) -> object:
        return [
            [
                to_number(one, field, int, "client numbers such as 0,3|1,2")
                for one in group.split(",")
            ]
            for group in text.split("|")
        ]

    return Field(read, parse, "LISTS")


def compression() -> Field:
    """How vectors are packed where they travel."""

    def read(value: object, field: str) -> str:
        if not isinstance(value, str):
            raise refuse(value, field, f"a text such as '{EXAMPLE}'")
        return str(parse_compression(value) or NONE)

    return Field(read, as_is, "up=HOW[,down=HOW]")


# Test data of the clients' own, and when they are looked at.

OWN = "own"


def client_test() -> Field:
    """The share of its samples that a client tests on, or `own`: what the data bring for it."""
    expected = f"a share above 0 and below 1, such as 0.2, or '{OWN}'"

    def read(value: object, field: str) -> float | str:
        if value == OWN:
            return OWN
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1:
            raise refuse(value, field, expected)
        return float(value)

    def parse(text: str, field: str) -> object:
        return text if text == OWN else to_number(text, field, float, expected)

    return Field(read, parse, f"SHARE|{OWN}")


@dataclass(frozen=True)
class ClientEvaluation:
    """When clients evaluate on test data of their own, and how many of them (None: all)."""

    every: int = 1
    sample: int | None = None

    def is_due(self, round: int) -> bool:
        """`round` counts from 1."""
        return round % self.every == 0

    def __str__(self) -> str:
        return f"every={self.every}" + (f",sample={self.sample}" if self.sample else "")


def client_evaluation_of(text: str, field: str = "eval_clients") -> ClientEvaluation:
    """`every=10,sample=200`; a number alone is `every`."""
    keys = ("every", "sample")
    given: dict[str, int] = {}
    for piece in f"every={text}".split(",") if text.strip().isdigit() else text.split(","):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals:
            raise InputError(f"{field} '{text}' is not of the form every=10,sample=200")
        if key not in keys:
            raise unknown(f"key of {field}", key, keys)
        if key in given:
            raise InputError(f"{field} '{text}' gives '{key}' twice; keep one")
        given[key] = int(grammar.number(value, f"{key} of {field}", kind=int, low=1))
    return ClientEvaluation(**given)


def client_evaluation() -> Field:
    def read(value: object, field: str) -> str:
        if is_int(value) and value >= 1:
            return str(ClientEvaluation(value))
        if not isinstance(value, str):
            raise refuse(value, field, "a text such as 'every=10,sample=200', or a number")
        return str(client_evaluation_of(value, field))

    return Field(read, as_is, "every=N[,sample=N]")
