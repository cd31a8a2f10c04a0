"""Runs in the tools people already watch: one file and one line of the table for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrift.errors import InputError, unknown
from fedrift.grammar import parse

if TYPE_CHECKING:
    from fedrift.engine.trackers.tracker import Tracker


@dataclass(frozen=True)
class Kind:
    """A tracker of the module of its name: its class, and what must be importable for it."""

    cls: str
    needs: tuple[str, ...]


# The extra of the package has the same name.
TRACKERS = {
    "tensorboard": Kind("TensorBoard", ("tensorboard",)),
    "mlflow": Kind("MLflow", ("mlflow", "sqlalchemy", "alembic")),
    "wandb": Kind("WandB", ("wandb",)),
}


@dataclass(frozen=True)
class Track:
    """A tracker that was asked for: its name, and where it writes."""

    name: str
    place: str | None = None

    def follow(self, run: str, settings: Mapping[str, Any], folder: Path | None) -> Tracker:
        """The callback that follows one run."""
        from fedrift.engine.trackers.tracker import Tracked

        module = import_module(f"{__name__}.{self.name}")
        made: Tracker = getattr(module, TRACKERS[self.name].cls)(
            Tracked(run, settings, folder, self.place)
        )
        return made


def tracks(wanted: str | Sequence[str] | None) -> tuple[Track, ...]:
    """`tensorboard`, `mlflow:FOLDER`; refuses what is unknown or not installed."""
    texts = [wanted] if isinstance(wanted, str) else list(wanted or ())
    chosen: list[Track] = []
    for text in texts:
        if not isinstance(text, str):
            raise InputError(f"track {text!r} must be a name such as 'tensorboard'")
        named = parse(text, "track")
        if named.name not in TRACKERS:
            raise unknown("track", named.name, TRACKERS)
        if named.options or named.inner is not None:
            raise InputError(f"track '{text}' has no options; write {named.name}:FOLDER")
        needs = TRACKERS[named.name].needs
        missing = next((m for m in needs if find_spec(m) is None), None)
        if missing is not None:
            raise InputError(
                f"track '{named.name}' needs the package {missing}; install it with: "
                f"pip install 'fedrift[{named.name}]'"
            )
        chosen.append(Track(named.name, named.value))
    return tuple(chosen)
