"""TOML files, read with care."""

from __future__ import annotations

import tomllib
from pathlib import Path

from fedrift.errors import InputError

LARGEST_FILE = 1 << 20  # bytes; a spec is a page of text


def read_toml(path: Path) -> dict[str, object]:
    """The values of a TOML file that nobody vouches for."""
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST_FILE + 1)
    except OSError as error:
        raise InputError(f"spec '{path}' cannot be read: {error.strerror}") from None
    if len(raw) > LARGEST_FILE:
        raise InputError(f"spec '{path}' is larger than {LARGEST_FILE} bytes; it is no spec")
    try:
        return tomllib.loads(raw.decode("utf-8"))
    except UnicodeDecodeError:
        raise InputError(f"spec '{path}' is not UTF-8 text; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise InputError(f"spec '{path}' is not valid TOML: {error}") from None
