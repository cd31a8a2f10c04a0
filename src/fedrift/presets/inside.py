"""What the microscope sees in the models of a comparison: figures of its first seed."""

from __future__ import annotations

import shutil
from pathlib import Path

from fedrift.analysis.case import Options
from fedrift.analysis.examine import examine
from fedrift.analysis.saved import Loader
from fedrift.grid import slug
from fedrift.presets.drawn import ENDINGS
from fedrift.presets.preset import Part
from fedrift.session import one_thread
from fedrift.statistics.findings import Findings

EVERYBODY = 0


def inside(found: Findings, folder: Path, part: Part) -> list[str]:
    """Names of the figures, which are copied beside those of the comparison."""
    loader, names = Loader(), list[str]()
    for one in found.all:
        run = Path(one.group.runs[0].name)
        case = loader.case(run, one.method)
        with one_thread():
            for seen in examine(case, run, part.analyse, Options(clients=EVERYBODY), ENDINGS):
                for file in seen.files:
                    if file.suffix[1:] in ENDINGS:
                        name = f"{file.stem}-{slug(one.method)}"
                        shutil.copyfile(file, folder / f"{name}{file.suffix}")
                        names += [name] if name not in names else []
    return names
