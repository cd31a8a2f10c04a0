"""The reader's own code by `package.module:name`, also from the current folder."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fedrift.errors import InputError


def load(module: str, attribute: str, what: str, hint: str = "") -> Any:
    """What `module:attribute` names; `what` opens every error."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.append(here)  # at the end, so that it hides nothing; workers need it there too
    text = f"{what} '{module}:{attribute}'"
    try:
        found = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the reader's code may fail in any way
        reason = f"{type(error).__name__}: {error}"
        raise InputError(f"{text} cannot be imported: {reason}{hint}") from error
    if not hasattr(found, attribute):
        raise InputError(f"{text}: module '{module}' has no '{attribute}'")
    return getattr(found, attribute)
