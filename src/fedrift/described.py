"""What the spec of a run can say of a call in Python, so that reports and folders know it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedrift.errors import InputError
from fedrift.experiment import FIELDS, Spec
from fedrift.keeping import IN_PYTHON
from fedrift.local import Local
from fedrift.optim import SGD


def described(values: Mapping[str, Any]) -> Spec:
    """A spec with every value that one can hold; functions, arrays and schedules of participants,
    which may be long, are left to the call."""
    said: dict[str, Any] = {}
    for key, value in values.items():
        if value is None or value == () or key == "participants":
            continue
        try:
            said[key] = FIELDS[key].read(_plain(value, key), key)
        except InputError:
            continue
    return Spec.of(said | IN_PYTHON)


def _plain(value: Any, key: str) -> Any:
    if key == "augment" and isinstance(value, str):
        return [value]
    if key == "dtype":
        return str(value).removeprefix("torch.")
    return list(value) if isinstance(value, tuple) else value


def given_work(local: Mapping[str, Any]) -> dict[str, Any]:
    """The local work that the call names; no batch size means all of the client's samples."""
    whole = {"batch_size": "full"} if local.get("batch_size", 0) is None else {}
    return {**local, **whole}


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
        "lr": local.lr,
        "clip": local.clip,
        **decays,
    }
