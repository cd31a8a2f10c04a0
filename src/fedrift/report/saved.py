"""Runs and comparisons read back from their folders: `fedrift.load`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedrift.config.own_code import IN_PYTHON, foreign_code
from fedrift.config.spec import Spec
from fedrift.errors import InputError, unknown
from fedrift.report import write
from fedrift.report.selection import COMPARISON, compared, runs_in
from fedrift.storage import run_folder, run_record
from fedrift.storage.jsonl import Record
from fedrift.storage.run_record import RunRecord, as_frame

if TYPE_CHECKING:
    from torch import Tensor, nn

    from fedrift.core.flat import Vec
    from fedrift.engine.ledger import Ledger
    from fedrift.engine.result import ClientModel, Result


@dataclass(frozen=True, repr=False)
class SavedRun:
    """A run read from its folder, finished or not. Lists have one entry per evaluated round."""

    record: RunRecord
    """The files of the folder as they are."""

    def __repr__(self) -> str:
        """One line: what was run and how far it came."""
        words = [str(self.config.algorithm), self.status, f"{len(self.rounds)} evaluated"]
        words += [f"accuracy {self.accuracy[-1]:.4f}"] if self.accuracy else []
        words += [f"loss {self.loss[-1]:.4g}"] if self.loss else []
        return f"<SavedRun: {', '.join(words)}, in {self.folder}>"

    @property
    def folder(self) -> Path:
        return self.record.folder

    @property
    def config(self) -> Spec:
        """The options it was made with."""
        return self.record.spec

    @property
    def info(self) -> Mapping[str, Any]:
        """Its summary: final figures, costs, how it ended; empty while it is unfinished."""
        return self.record.summary

    @property
    def status(self) -> str:
        """`done`, `stopped`, `diverged` or `unfinished`."""
        return self.record.status

    @property
    def diverged_at(self) -> int | None:
        return self.info.get("diverged_at")

    @property
    def metrics(self) -> list[Record]:
        """Everything that was measured: a dict per evaluated round."""
        return self.record.rounds

    @property
    def rounds(self) -> list[int]:
        """Numbers of the evaluated rounds, from 1."""
        return [row["round"] for row in self.metrics]

    @property
    def accuracy(self) -> list[float]:
        """Of the server's test set, or the mean over the clients' (see `Result.accuracy`)."""
        return [row["accuracy"] for row in self.metrics if "accuracy" in row]

    @property
    def loss(self) -> list[float]:
        """Mean loss, of the same data as `accuracy`."""
        return [row["loss"] for row in self.metrics if "loss" in row]

    @property
    def clients(self) -> Mapping[str, Any]:
        """Who holds how many samples of which class."""
        return self.record.clients

    @property
    def seconds(self) -> float:
        return float(self.info.get("seconds", 0.0))

    @property
    def fingerprint(self) -> str:
        """Equal for two runs that agree in every bit of their weights and metrics; empty while
        the run is unfinished."""
        return str(self.info.get("fingerprint", ""))

    @property
    def ledger(self) -> Ledger:
        """Bytes and gradient evaluations, exchange by exchange."""
        from fedrift.engine.ledger import Ledger

        return Ledger.of(self.record.ledger)

    @property
    def weights(self) -> Vec:
        """The last finite weights, flat; for a run on data and a model that have names."""
        return self.result().weights

    def frame(self) -> Any:
        """One row per evaluated round: a pandas frame if installed, else a list of dicts."""
        return as_frame(self.metrics)

    def client_frame(self) -> Any:
        """One row per client and round in which it evaluated: its accuracy and loss."""
        return self.record.client_frame()

    def domain_frame(self) -> Any:
        """One row per domain of the shift and evaluated round (see `Result.domain_frame`)."""
        return self.record.domain_frame()

    @property
    def training(self) -> list[Record]:
        """What training reported at each client: a dict of columns per round."""
        return self.record.training

    def training_frame(self) -> Any:
        """One row per client and round in which it trained: loss and accuracy of its minibatches,
        of all, of the first (`_before`) and of the last (`_after`)."""
        return self.record.training_frame()

    def plot(self, path: str | Path, metric: str | None = None) -> Path:
        """The curve of the run as a picture; the file's ending decides the format.

        metric: a column of `metrics`, such as `"loss"` or a metric of your own; the accuracy
            unless given, or the loss where there is none.
        """
        from fedrift.figures.style import curves

        return curves({self.config.algorithm: [self]}, Path(path), metric)

    def tensors(self) -> dict[str, Tensor]:
        """Every parameter and buffer that the run has decided, by name."""
        import torch

        self._check_finished()
        return {name: torch.from_numpy(value) for name, value in self.record.weights().items()}

    def module(
        self,
        model: Callable[[], nn.Module] | nn.Module | None = None,
        *,
        trust_code: bool = False,
    ) -> nn.Module:
        """A module with the final weights.

        A run on named data and a named model makes it again. One that was made in Python does not
        hold its model: give it, as it was given to `run`. A folder that names code of somebody's
        own needs `trust_code=True`.
        """
        return self.result(trust_code=trust_code).module() if model is None else self._into(model)

    def client(self, client: int, *, trust_code: bool = False) -> ClientModel:
        """A client's own model, as its last evaluation saw it, and its figures; for a run on data
        and a model that have names, whose algorithm has such models."""
        if self.config.data == IN_PYTHON:
            raise InputError(
                f"'{self.folder}' was made in Python, and its data and model are not in it; the "
                f"same call of fedrift.run with out='{self.folder}' returns its result, which has "
                f"client({client!r})"
            )
        return self.result(trust_code=trust_code).client(client)

    def result(self, *, trust_code: bool = False) -> Result:
        """The `Result` that the run returned, its data and model made again from their names."""
        self._check_finished()
        if self.config.data == IN_PYTHON:
            raise InputError(
                f"'{self.folder}' was made in Python, and its data and model are not in it; use "
                "tensors(), or give the model: module(MyNet)"
            )
        named = foreign_code(self.config)
        if named and not trust_code:
            raise InputError(
                f"'{self.folder}' would use '{named[0]}'; if you trust it, say trust_code=True"
            )
        from fedrift.engine.execute import reread
        from fedrift.engine.prepare import prepare
        from fedrift.engine.task import task_from_spec

        task = task_from_spec(self.config, prepare(self.config))
        return reread(task, run_folder.RunFolder(self.folder))

    def for_report(self) -> list[Path]:
        """What a report of it is made from."""
        return [self.folder]

    def _check_finished(self) -> None:
        if not (self.folder / run_folder.MODEL).is_file():
            by_call = f"the same call of fedrift.run with out='{self.folder}'"
            by_command = f"fedrift resume {shlex.quote(str(self.folder))}"
            way = by_call if self.config.data == IN_PYTHON else by_command
            raise InputError(
                f"'{self.folder}' holds no weights yet: the run is {self.status}; go on by {way}"
            )

    def _into(self, model: Callable[[], nn.Module] | nn.Module) -> nn.Module:
        """The saved tensors put into a model that is given; it must be the run's."""
        import copy

        import torch
        from torch import nn

        saved = self.tensors()
        made = copy.deepcopy(model) if isinstance(model, nn.Module) else model()
        made = made.to(dtype=getattr(torch, self.config.dtype))
        there = {**dict(made.named_parameters()), **dict(made.named_buffers())}
        trained = [name for name, value in made.named_parameters() if value.requires_grad]
        other = next((n for n in (*saved, *trained) if n not in saved or n not in there), None)
        other = other or next((n for n, v in saved.items() if v.shape != there[n].shape), None)
        if other is not None:
            raise InputError(
                f"'{self.folder}' holds the weights of another model than {type(made).__name__}: "
                f"'{other}' differs"
            )
        with torch.no_grad():
            for name, value in saved.items():
                there[name].copy_(value)
        return made


@dataclass(frozen=True)
class ComparedRun:
    """A run of a comparison: what its algorithm is called there, and the options that vary."""

    label: str
    axes: Mapping[str, Any]
    run: SavedRun


@dataclass(frozen=True, repr=False)
class SavedComparison:
    """The runs of a comparison read from its folder."""

    folder: Path  # where it was read
    runs: tuple[ComparedRun, ...]  # of every algorithm, setting and seed
    problems: tuple[str, ...] = ()
    """What is missing or could not be read, a sentence each."""

    def __repr__(self) -> str:
        """A line for each algorithm: how many runs it has."""
        lines = [f"<SavedComparison of {len(self.runs)} runs in {self.folder}>"]
        labels = [one.label for one in self.runs]
        lines += [f"  {label}: {labels.count(label)}" for label in dict.fromkeys(labels)]
        return "\n".join([*lines, *(f"  note: {problem}" for problem in self.problems)])

    @property
    def results(self) -> list[SavedRun]:
        """All of them, in the order of the comparison."""
        return [one.run for one in self.runs]

    def of(self, label: str) -> list[SavedRun]:
        """The runs of one algorithm, named as it was compared."""
        known = {one.label for one in self.runs}
        if label not in known:
            raise unknown("algorithm of the comparison", label, known)
        return [one.run for one in self.runs if one.label == label]

    def frame(self) -> Any:
        """One row per run and evaluated round (pandas if installed, else a list of dicts)."""
        return as_frame(
            {"algorithm": one.label, **one.axes, "seed": one.run.config.seed, **row}
            for one in self.runs
            for row in one.run.metrics
        )

    def report(self, path: str | Path, **options: Any) -> Path:
        """A self-contained page about the comparison; options as of `fedrift report`."""
        write([self.folder], path, **options)
        return Path(path)

    def for_report(self) -> list[Path]:
        """What a report of it is made from."""
        return [self.folder]


def load(folder: str | Path) -> SavedRun | SavedComparison:
    """Read a run folder, finished or not, or the folder of a comparison.

    Args:
        folder: What `out` was for `run` or `compare`, or for the command line.

    Returns:
        A `SavedRun` with the curve, the options and the weights of a run, much as a `Result`; or
        a `SavedComparison` with many of them, much as a `Comparison`.
    """
    path = Path(folder)
    try:
        if not path.exists():
            raise InputError(f"'{path}' does not exist; name a run folder or a comparison folder")
        if (path / run_folder.SPEC).is_file() or path.is_file():
            return SavedRun(run_record.load(path))
        return _described(path) if (path / COMPARISON).is_file() else _gathered(path)
    except OSError as error:
        raise InputError(f"'{path}' cannot be read: {error.strerror}") from None


def _described(path: Path) -> SavedComparison:
    """A comparison whose `compare.toml` says what its runs are."""
    listed = compared(path)
    runs: list[ComparedRun] = []
    for folder, cell in listed.runs:
        run = SavedRun(run_record.load(folder))
        label = run.config.algorithm if cell is None else cell.entrant.name
        runs.append(ComparedRun(label, {} if cell is None else cell.axes, run))
    return SavedComparison(path, tuple(runs), listed.problems)


def _gathered(path: Path) -> SavedComparison:
    """A folder of runs, such as `fedrift.compare` makes; the folders' names tell apart what the
    names of the algorithms do not."""
    runs = [SavedRun(run_record.load(folder)) for folder in runs_in(path)]
    if not runs:
        raise InputError(
            f"'{path}' holds no run folder: neither {run_folder.SPEC} nor {COMPARISON}"
        )
    known = [(run.config.algorithm, run.config.seed) for run in runs]
    is_plain = len(set(known)) == len(known)

    def label(run: SavedRun) -> str:
        short = run.folder.name.removesuffix(f"-s{run.config.seed}")
        return run.config.algorithm if is_plain else short

    return SavedComparison(path, tuple(ComparedRun(label(run), {}, run) for run in runs))
