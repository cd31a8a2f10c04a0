"""The literature's experiments by name: each is a TOML file beside this one."""

from __future__ import annotations

from pathlib import Path

from fedrift.errors import unknown
from fedrift.presets.preset import Preset, read

FOLDER = Path(__file__).parent


def names() -> list[str]:
    """All presets, in alphabetical order."""
    return sorted(file.stem for file in FOLDER.glob("*.toml"))


def find(name: str) -> Preset:
    """The preset of this name; refuses others in one sentence."""
    if name not in names():
        raise unknown("preset", name, names())
    return read(FOLDER / f"{name}.toml")
