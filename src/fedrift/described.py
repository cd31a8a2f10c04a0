"""What the spec of a run can say of a call in Python, so that reports and folders know it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from fedrift.dividing import SHIFTED
from fedrift.errors import InputError
from fedrift.experiment import FIELDS, Spec
from fedrift.keeping import IN_PYTHON
from fedrift.local import Draw, Local
from fedrift.optim import SGD, Exponential, Staircase

MOST_PARTICIPANTS = 20_000  # numbers; a longer schedule is left to the call


def described(values: Mapping[str, Any], division: str) -> Spec:
    """A spec with every value that one can hold; functions and arrays are left to the call.

    `division` is the note of the clients' split; empty for clients that were given one by one.
    """
    scheme, _, shift = division.partition(SHIFTED)
    divided = {"partition": scheme or IN_PYTHON["data"], "shift": shift or None}
    said: dict[str, Any] = {}
    for key, value in {**values, **divided}.items():
        if value is None or value == ():
            continue
        try:
            said[key] = FIELDS[key].read(_plain(value, key), key)
        except InputError:
            continue
    return Spec.of(said | IN_PYTHON)


def where(spec: Spec, workers: object, backend: object) -> Spec:
    """The spec with the place where the run is computed, if a spec can name it."""
    given = {"workers": workers, "backend": backend}
    try:
        return replace(spec, **{k: FIELDS[k].read(v, k) for k, v in given.items()})  # type: ignore[arg-type]
    except InputError:  # "wire", or a mistake that the run names
        return spec


def _plain(value: Any, key: str) -> Any:
    if key in ("augment", "faults") and isinstance(value, str):
        return [value]
    if key == "dtype":
        return str(value).removeprefix("torch.")
    if key == "participants" and sum(map(len, value)) > MOST_PARTICIPANTS:
        raise InputError(f"participants holds more than {MOST_PARTICIPANTS} numbers")
    if isinstance(value, Draw):
        return f"uniform:{value.low},{value.high}"
    return list(value) if isinstance(value, tuple) else value


def given_work(local: Mapping[str, Any]) -> dict[str, Any]:
    """The local work that the call names; no batch size means all of the client's samples."""
    whole = {"batch_size": "full"} if local.get("batch_size", 0) is None else {}
    return {key: value for key, value in {**local, **whole}.items() if value is not None}


def work(local: Local | None) -> dict[str, Any]:
    """The local work of an algorithm that was given as an object."""
    if local is None:
        return {}
    optimizer = local.optimizer
    decays = (
        {k: getattr(optimizer, k) or None for k in ("momentum", "weight_decay")}
        if isinstance(optimizer, SGD)
        else {}
    )
    return {
        "epochs": local.epochs if local.steps is None else None,
        "steps": local.steps,
        "batch_size": "full" if local.batch_size is None else local.batch_size,
        **_rate(local.lr),
        "clip": local.clip,
        **decays,
    }


def _rate(lr: Any) -> dict[str, Any]:
    """The rate and its schedule, where a text can say it."""
    if isinstance(lr, Exponential):
        return {"lr": lr.lr, "schedule": f"exp:{lr.factor!r}"}
    if isinstance(lr, Staircase):
        return {"lr": lr.lr, "schedule": f"step:{lr.every},factor={lr.factor!r}"}
    return {"lr": lr} if isinstance(lr, (int, float)) else {}
