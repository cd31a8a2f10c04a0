"""What tests of several packages need from inside the package, each imported in one place.

A test takes public names from `fedrift`, what only it looks at from the module it is about, and
everything else from here: when a module moves, this file changes and the tests do not.
"""

from __future__ import annotations

from fedrift.algorithms.fedavg import FedAvg
from fedrift.algorithms.scaffold import Scaffold
from fedrift.analysis.saved import Loader
from fedrift.api import run_spec
from fedrift.backends.pool import Pool
from fedrift.config import algorithms as catalogue
from fedrift.config.grid import Entrant, Grid
from fedrift.config.spec import Spec
from fedrift.conform.bench import Bench
from fedrift.conform.problem import (
    MINIMISER,
    Point,
    Trial,
    alternating,
    classifier,
    pooled,
    uneven_quadratic,
)
from fedrift.conform.problem import golden as golden_trial
from fedrift.conform.runs import make_task, path
from fedrift.conform.runs import run as run_trial
from fedrift.conform.subject import subject_of
from fedrift.conform.watched_run import Inside
from fedrift.data import datasets
from fedrift.data.assignment import Partition
from fedrift.data.datasets import load as load_data
from fedrift.engine.callbacks import Plan
from fedrift.engine.execute import execute
from fedrift.engine.prepare import prepare
from fedrift.engine.task import task_from_spec
from fedrift.figures.style import empty_figure
from fedrift.grammar import parse
from fedrift.rng import generator
from fedrift.storage import checkpoint, run_folder, run_record
from fedrift.storage.jsonl import dump
from fedrift.storage.run_folder import RunFolder
from fedrift.storage.run_record import RunRecord
from fedrift.storage.run_record import load as load_run

__all__ = [
    "MINIMISER",
    "Bench",
    "Entrant",
    "FedAvg",
    "Grid",
    "Inside",
    "Loader",
    "Partition",
    "Plan",
    "Point",
    "Pool",
    "RunFolder",
    "RunRecord",
    "Scaffold",
    "Spec",
    "Trial",
    "alternating",
    "catalogue",
    "checkpoint",
    "classifier",
    "datasets",
    "dump",
    "empty_figure",
    "execute",
    "generator",
    "golden_trial",
    "load_data",
    "load_run",
    "make_task",
    "parse",
    "path",
    "pooled",
    "prepare",
    "run_folder",
    "run_record",
    "run_spec",
    "run_trial",
    "subject_of",
    "task_from_spec",
    "uneven_quadratic",
]
