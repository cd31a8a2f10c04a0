"""Tables of a preset's file, read with their types; an unknown key is told with what was meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from fedrift.errors import InputError, unknown

T = TypeVar("T")
NOUNS = {str: "a text", float: "a number", int: "a whole number", list: "a list", dict: "a table"}


class Reader:
    """One table; every key must be asked for once, and what is left over is refused."""

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise InputError(f"{where} must be a table, not {value!r}")
        self.where = where
        self._left = dict(cast("dict[str, object]", value))
        self._known: list[str] = []

    def text(self, key: str, usual: str | None = None) -> str:
        return " ".join(self._take(key, str, usual).split())

    def number(self, key: str, usual: float | None = None) -> float:
        return float(self._take(key, float, usual))

    def flag(self, key: str) -> bool:
        found = self.raw(key)
        if not isinstance(found, bool | None):
            raise InputError(f"{self.where}: {key} must be true or false, not {found!r}")
        return bool(found)

    def texts(self, key: str) -> tuple[str, ...]:
        found = self._take(key, list, [])
        for one in found:
            if not isinstance(one, str):
                raise InputError(f"{self.where}: {key} must be a list of texts, not {one!r}")
        return tuple(" ".join(one.split()) for one in cast("list[str]", found))

    def tables(self, key: str) -> list[object]:
        return cast("list[object]", self._take(key, list, []))

    def table(self, key: str) -> dict[str, Any] | None:
        """None if there is none."""
        self._known.append(key)
        return cast("dict[str, Any]", self._take(key, dict, {})) if key in self._left else None

    def raw(self, key: str) -> object:
        """The value as it is, whatever its type; None if there is none."""
        self._known.append(key)
        return self._left.pop(key, None)

    def end(self) -> None:
        """Refuses what nobody has asked for."""
        if self._left:
            raise unknown(f"key of {self.where}", next(iter(self._left)), self._known)

    def _take(self, key: str, kind: type[T] | Callable[..., T], usual: T | None) -> T:
        self._known.append(key)
        if key not in self._left:
            if usual is None:
                raise InputError(f"{self.where} lacks the key '{key}'")
            return usual
        value = self._left.pop(key)
        fits = (int, float) if kind is float else kind
        if not isinstance(value, cast("type", fits)) or isinstance(value, bool):
            noun = cast("Mapping[object, str]", NOUNS)[kind]
            raise InputError(f"{self.where}: {key} must be {noun}, not {value!r}")
        return cast("T", value)
