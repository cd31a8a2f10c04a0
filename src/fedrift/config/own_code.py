"""The reader's own code by `package.module:name`: importing it, and which of it a spec names."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Any

from fedrift.config import algorithms, models
from fedrift.config.backends import address_of
from fedrift.config.models import choose_model, extractor_text
from fedrift.config.participation import sampling_of
from fedrift.config.spec import Spec
from fedrift.data.datasets import FEATURES, seen_data
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
        imported = importlib.import_module(module)
    except (Exception, SystemExit) as error:  # the reader's code may fail in any way
        reason = f"{type(error).__name__}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name == module.partition(".")[0]:
            reason = f"there is no {error.name}.py in '{here}', nor such a package"
        raise InputError(f"{text} cannot be imported: {reason}{hint}") from error
    if not hasattr(imported, attribute):
        raise InputError(f"{text}: module '{module}' has no '{attribute}'")
    return getattr(imported, attribute)


IN_PYTHON = "python"  # stands for data and model that were given as objects


def foreign_code(spec: Spec) -> list[str]:
    """`module:name` of the algorithm, data, model, loss and sampling, where they are foreign.

    So are data that a name is enough to fetch, and a cluster by its address: whoever owns it sends
    pickled replies.
    """
    names = algorithms.own_code(parse(spec.algorithm, "algorithm"))
    names += _of_data(spec.data) if spec.data != IN_PYTHON else []
    if spec.model is not None and spec.model != IN_PYTHON:
        model = choose_model(spec.model)
        names += [] if model.attribute is None else [model.text]
    names += [spec.loss] if spec.loss is not None and spec.loss not in models.LOSSES else []
    names += [spec.sampling] if sampling_of(spec.sampling).code is not None else []
    return names + ([spec.backend] if address_of(spec.backend) else [])


def _of_data(text: str) -> list[str]:
    data = parse(text, "data")
    if data.name == "huggingface" and not os.path.isdir(os.path.expanduser(data.value or "")):
        return [text]  # fetched from elsewhere, by a library that may run what it finds there
    if data.name != FEATURES:
        return [] if data.name in DATA else [text]
    extractor = choose_model(extractor_text(data))
    return _of_data(seen_data(data)) + ([] if extractor.attribute is None else [extractor.text])
