"""What tuning tried and cost, as it stands in the file of a comparison."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from fedrift.errors import InputError

COUNTS = ("seed", "runs", "rounds", "gradients")


@dataclass(frozen=True)
class Tuned:
    """Values by option, the setting and seed they were tried in, and the cost of all runs."""

    options: Mapping[str, tuple[str, ...]]
    seed: int
    runs: int
    rounds: int
    gradients: int
    at: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The values of the grid's axes; empty if it has none."""

    def table(self) -> dict[str, Any]:
        """Plain values for TOML."""
        counts = {key: getattr(self, key) for key in COUNTS}
        at = {"at": dict(self.at)} if self.at else {}
        return {**counts, "options": {k: list(v) for k, v in self.options.items()}, **at}

    @staticmethod
    def of(value: object) -> Tuned:
        """From the table of a file that nobody vouches for."""
        if not isinstance(value, dict):
            raise InputError(f"tuning must be a table, not {value!r}")
        given = cast("dict[str, Any]", value)
        strange = next((k for k in given if k not in (*COUNTS, "options", "at")), None)
        if strange is not None:
            raise InputError(f"tuning: '{strange}' is unknown; remove it")
        for key in COUNTS:
            if type(given.get(key)) is not int or given[key] < 0:
                raise InputError(
                    f"tuning.{key} must be a whole number of at least 0, not {given.get(key)!r}"
                )
        options, at = given.get("options"), given.get("at", {})
        if not isinstance(options, dict) or not isinstance(at, dict):
            raise InputError("tuning needs a table 'options', and 'at' must be a table if given")
        listed = cast("dict[str, Any]", options)
        for key, values in listed.items():
            if not isinstance(values, list):
                raise InputError(f"tuning.options.{key} must be a list, not {values!r}")
        values = {k: tuple(map(str, v)) for k, v in listed.items()}
        return Tuned(values, *(given[key] for key in COUNTS), at=cast("dict[str, Any]", at))
