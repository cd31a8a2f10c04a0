"""The reader's own code by `package.module:name`, also from the current folder."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fedrift.config import catalogue, models
from fedrift.config.backends import address_of
from fedrift.config.models import choose
from fedrift.config.spec import Spec
from fedrift.data.datasets import NAMES as DATA
from fedrift.errors import InputError
from fedrift.grammar import parse


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


# Which code of somebody's own a spec would import, and which machines it would give work to.

IN_PYTHON = "python"  # stands for data and model that were given as objects


def foreign(spec: Spec) -> list[str]:
    """`module:name` of the algorithm, the data, the model and the loss, where they are foreign.

    So is a cluster by its address: whoever owns it sends pickled replies.
    """
    found = catalogue.own_code(parse(spec.algorithm, "algorithm"))
    data = parse(spec.data, "data")
    found += [spec.data] if data.name not in DATA and spec.data != IN_PYTHON else []
    if spec.model is not None and spec.model != IN_PYTHON:
        model = choose(spec.model)
        found += [] if model.attribute is None else [model.text]
    found += [spec.loss] if spec.loss is not None and spec.loss not in models.LOSSES else []
    return found + ([spec.backend] if address_of(spec.backend) else [])
