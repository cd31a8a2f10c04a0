"""Where a forked run comes from: another run's spec, and the round after which it went its own way.

A fork is defined by the two specs and the round alone, so it can be made again from nothing, and
resumed like any other run.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

from fedrift.config.spec import FIELDS, Spec, read_toml, replaced_by
from fedrift.errors import InputError, unknown
from fedrift.storage.run_folder import ORIGIN

# What a state belongs to: with another of these it would be the state of something else.
_STATE = (
    "data data_dir partition alpha shift client_test clients model head adapter loss dtype seed out"
)
FIXED = f"{_STATE} participants".split()


@dataclass(frozen=True)
class Origin:
    """The run that was forked, and after how many of its rounds."""

    spec: Spec
    at: int

    def to_toml(self) -> str:
        import tomlkit

        document, table = tomlkit.document(), tomlkit.table()
        document.add("at_round", self.at)
        for key, value in replace(self.spec, out=None).to_dict().items():
            table.add(key, list(value) if isinstance(value, tuple) else value)
        document.add("spec", table)
        return tomlkit.dumps(document)


def read_origin(folder: Path) -> Origin | None:
    """What a run folder says about where it comes from; None for a run from the start."""
    path = folder / ORIGIN
    if not path.exists():
        return None
    content = read_toml(path)
    at, spec = content.get("at_round"), content.get("spec")
    if set(content) != {"at_round", "spec"} or not isinstance(spec, dict):
        raise InputError(f"'{path}' is damaged: it should hold at_round and a table spec")
    made_spec = Spec.of(cast("Mapping[str, object]", spec))
    return Origin(made_spec, _round(at, made_spec))


def fork_spec(spec: Spec, at: int, changes: Mapping[str, str]) -> tuple[Spec, Origin]:
    """The spec of a new run that changes some settings after a round of another."""
    values: dict[str, object] = {}
    for key, text in changes.items():
        if key in FIXED:
            raise InputError(f"--set {key}: a fork keeps its {key}; start a new run instead")
        if key not in FIELDS:
            raise unknown("key", key, [k for k in FIELDS if k not in FIXED])
        values[key] = FIELDS[key].parse(text, key)
    gone = replaced_by(values) - {*FIXED}
    settings = {k: v for k, v in replace(spec, out=None).to_dict().items() if k not in gone}
    new = Spec.of({**settings, **values})
    new.validate()
    if new.rounds <= _round(at, spec):
        raise InputError(f"--at-round {at} leaves nothing to do of {new.rounds} rounds; --set more")
    return new, Origin(replace(spec, out=None), at)


def _round(at: object, spec: Spec) -> int:
    if isinstance(at, bool) or not isinstance(at, int) or not 1 <= at <= spec.rounds:
        raise InputError(f"at_round must be a whole number from 1 to {spec.rounds}, not {at!r:.40}")
    return at
