"""What studies share: their settings, their data, their runs, their figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedrift import backends
from fedrift.analysis.case import Case
from fedrift.analysis.examine import draw_file
from fedrift.analysis.saved import load as load_case
from fedrift.api import task_of
from fedrift.comparison import Item, Loader, Runner
from fedrift.config.grid import seeds_of, slug
from fedrift.config.spec import Spec
from fedrift.data.samples import DataSet
from fedrift.engine.callbacks import Passive
from fedrift.engine.features import load as load_named
from fedrift.engine.result import Result
from fedrift.errors import InputError, RunError, decimals, unknown
from fedrift.figures.style import colour_of, legend, log_heights, name_ticks, panels
from fedrift.presets.findings import BY_SEED, Cell, Findings, Table, Tell

if TYPE_CHECKING:
    from matplotlib.figure import Figure


VALUE = "value"
"""What a quantity of a study is called among those kept seed by seed: its column says which."""
COMMON: dict[str, Any] = {"seeds": [0], "workers": "auto"}


def with_defaults(settings: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a study with its usual ones for what is not said."""
    known = {**COMMON, **usual}
    for key, value in settings.items():
        if key not in known:
            raise unknown("setting of the study", key, known)
        if isinstance(known[key], list) and not isinstance(value, list):
            raise InputError(f"setting {key} of the study must be a list, not {value!r}")
    return {**known, **settings}


def seeds(settings: Mapping[str, Any]) -> tuple[int, ...]:
    return seeds_of(settings["seeds"])


def cores(settings: Mapping[str, Any]) -> int:
    """Processes or threads that may compute at a time."""
    number = settings["workers"]
    return backends.cores() if number == "auto" else max(1, int(number))


class _TellFinished(Passive):
    """Tells of a run that has ended."""

    def __init__(self, tell: Tell, item: Item) -> None:
        self._tell, self._who = tell, f"{item.label}, seed {item.seed}"

    def on_end(self, result: Result) -> None:
        accuracy = f", accuracy {100 * result.accuracy[-1]:.1f} %" if result.accuracy else ""
        self._tell(f"{self._who}: {result.status}{accuracy}")

    def on_error(self, error: BaseException) -> None:
        if isinstance(error, RunError):  # the others go on
            self._tell(f"{self._who}: {str(error).splitlines()[0]}")


def run_all(items: Sequence[Item], settings: Mapping[str, Any], tell: Tell) -> list[Result]:
    """All runs on one pool, in the order given; those that are in their folders are read."""
    number = settings["workers"]
    workers = backends.cores() if number == "auto" else int(number)
    outcomes = Runner(workers, lambda item: [_TellFinished(tell, item)]).run(items)
    for outcome in outcomes:
        if outcome.result is None:
            raise RunError(f"{outcome.item.label}: {outcome.error}")
    return [outcome.result for outcome in outcomes if outcome.result is not None]


def spec_of(
    options: Mapping[str, Any], keys: Sequence[str], data: Path | None, **more: Any
) -> Spec:
    """What these settings and `more` say, with data from the data folder."""
    where = {} if data is None else {"data_dir": str(data)}
    return Spec.of({**where, **{key: options[key] for key in keys}, **more})


def from_spec(label: str, spec: Spec, folder: Path, loader: Loader) -> Item:
    """A run on named data."""
    spec.validate()
    place = folder / "runs" / f"{slug(label)}-s{spec.seed}"
    return Item(label, {}, spec.seed, partial(loader.task, spec), place, spec.rounds, label)


def from_objects(label: str, algorithm: str, folder: Path, seed: int, **options: Any) -> Item:
    """A run on data and a model that are at hand; what is said is as for `fedrift.run`."""
    make = partial(task_of, algorithm, {**options, "seed": seed})
    return Item(
        label,
        {},
        seed,
        make,
        folder / "runs" / f"{slug(label)}-s{seed}",
        int(options["rounds"]),
        label,
    )


def case_of(result: Result, data: Path | None) -> Case:
    """A run as the analyses take it."""
    assert result.folder is not None
    return load_case(result.folder, data_dir=None if data is None else str(data))


def one_pass(clients: int, options: Mapping[str, Any]) -> int:
    """Rounds until everybody has been asked once."""
    return -(-clients // options["per_round"])


def load(text: str, data: Path | None, classes: Sequence[int] = ()) -> DataSet:
    """A data set by name, or those of its classes that are listed, numbered from 0."""
    data_set = load_named(text, data)
    if not classes:
        return data_set
    wrong = [c for c in classes if not 0 <= c < data_set.classes]
    if wrong:
        raise InputError(
            f"classes: '{text}' has classes 0 to {data_set.classes - 1}, not {wrong[0]}"
        )
    number = np.full(data_set.classes, -1)
    number[list(classes)] = np.arange(len(classes))
    train, test = (np.isin(y, classes) for y in (data_set.y, data_set.y_test))
    return replace(
        data_set,
        x=data_set.x[train],
        y=number[data_set.y[train]],
        x_test=data_set.x_test[test],
        y_test=number[data_set.y_test[test]],
        classes=len(classes),
        class_names=tuple(data_set.class_names[c] for c in classes),
        users=None,
    )


def mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


@dataclass(frozen=True)
class OverSeeds:
    """One quantity for every seed; its cell: the number of one, or of all where they agree, mean ±
    deviation of several."""

    values: tuple[float, ...]
    digits: int = 2

    def cell(self, digits: int) -> Cell:
        """With so many digits behind the point."""
        if len(set(self.values)) == 1:
            return self.values[0]
        spread = np.std(self.values, ddof=1)
        return f"{mean(self.values):.{digits}f} ± {spread:.{digits}f}"


def over_seeds(values: Sequence[float], digits: int = 2) -> OverSeeds:
    return OverSeeds(tuple(float(value) for value in values), digits)


def percent(shares: Sequence[float]) -> OverSeeds:
    """Shares, in per cent."""
    return over_seeds([100 * share for share in shares])


@dataclass(frozen=True)
class Draft:
    """A table whose cells may be quantities over seeds."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Cell | OverSeeds]]

    @property
    def table(self) -> Table:
        columns = [
            [c for c in cells if isinstance(c, OverSeeds)] for cells in zip(*self.rows, strict=True)
        ]
        digits = [
            decimals([mean(c.values) for c in cells], max((c.digits for c in cells), default=2))
            for cells in columns
        ]
        rows = [
            [c.cell(n) if isinstance(c, OverSeeds) else c for c, n in zip(row, digits, strict=True)]
            for row in self.rows
        ]
        return Table(self.title, self.columns, rows)


def findings_of(
    drafts: Sequence[Draft],
    settings: Mapping[str, Any],
    figures: Sequence[str],
    notes: Sequence[str],
    facts: Mapping[str, Any],
) -> Findings:
    """With every quantity of the tables seed by seed, by which relations are decided."""
    known, by_column = list(seeds(settings)), dict[str, dict[str, Any]]()
    for draft in drafts:
        for row in draft.rows:
            for column, cell in zip(draft.columns, row, strict=True):
                if isinstance(cell, OverSeeds) and len(cell.values) == len(known):
                    kept = {"seed": known, VALUE: list(cell.values)}
                    by_column.setdefault(column, {})[str(row[0])] = kept
    tables = [draft.table for draft in drafts]
    by_seed = {"usual": VALUE, "settings": by_column}
    return Findings(tables, figures, notes, {**facts, BY_SEED: by_seed})


# Figures: curves and bars in panels, as png and svg.

ENDINGS = ("png", "svg")
Curve = tuple[Sequence[float], Sequence[float]]


def draw(folder: Path, name: str, picture: Callable[[Figure], None]) -> str:
    """A figure as png and svg; returns its name."""
    for ending in ENDINGS:
        draw_file(picture, folder / f"{name}.{ending}")
    return name


def curves(
    figure: Figure,
    shown: Mapping[str, Mapping[str, Curve]],
    x: str,
    y: str,
    *,
    marks: bool = False,
    dashed: Callable[[str], bool] = lambda label: False,
    ticks: Sequence[str] = (),
    log: bool = False,
) -> None:
    """A panel for each title, a curve for each label; one label has one colour everywhere.

    ticks: what 0, 1, … on the horizontal axis are called; log: that axis is logarithmic.
    """
    from matplotlib.ticker import FormatStrFormatter, MaxNLocator

    axes = panels(figure, len(shown))
    labels = list(dict.fromkeys(label for by_label in shown.values() for label in by_label))
    for axis, (title, by_label) in zip(axes, shown.items(), strict=True):
        for label, (at, values) in by_label.items():
            style = ("s" if dashed(label) else "o") if marks else ""
            style += "--" if dashed(label) else "-"
            axis.plot(
                at, values, style, color=colour_of(labels.index(label)), label=label, ms=3.5, lw=1.6
            )
        axis.set_title(title, fontsize=10, parse_math=False)
        axis.set_xlabel(x)
        if ticks:
            name_ticks(axis, ticks)
        elif log:
            axis.set_xscale("log")
            axis.xaxis.set_major_formatter(FormatStrFormatter("%g"))
        elif all(float(at).is_integer() for along, _ in by_label.values() for at in along):
            axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel(y)
    legend(figure, axes, 4)


def accuracies(
    folder: Path,
    name: str,
    shown: Mapping[str, Mapping[str, Curve]],
    x: str = "round",
    *,
    marks: bool = False,
    dashed: Callable[[str], bool] = lambda label: False,
) -> str:
    """Curves of the test accuracy, in files of that name."""
    y = "test accuracy (%)"
    return draw(folder, name, partial(curves, shown=shown, x=x, y=y, marks=marks, dashed=dashed))


def over_rounds(result: Result) -> Curve:
    """Test accuracy of a run, in per cent."""
    return result.rounds, [100 * a for a in result.accuracy]


def dots(figure: Figure, shown: Mapping[str, Mapping[str, float]], y: str) -> None:
    """A panel for each title, a dot for each label: on a logarithmic axis bars have no foot."""
    axes = panels(figure, len(shown))
    for axis, (title, values) in zip(axes, shown.items(), strict=True):
        places = range(len(values))
        axis.scatter(places, list(values.values()), s=40, color=[colour_of(i) for i in places])
        name_ticks(axis, list(values))
        axis.set_title(title, fontsize=10, parse_math=False)
        axis.grid(axis="x", visible=False)
        log_heights(axis)
    axes[0].set_ylabel(y)


def listed(figure: Figure, values: Mapping[str, float], x: str) -> None:
    """A dot for each label, one below the other."""
    (axis,) = panels(figure, 1, height=0.8 + 0.26 * len(values), width=6.4)
    places = list(range(len(values)))
    axis.scatter(list(values.values()), places, s=36, color=colour_of(0))
    axis.set_yticks(places, list(values))
    axis.invert_yaxis()
    axis.set_xlabel(x)
