"""Configurations compared way by way; a difference is shrunk to a script that shows it alone."""

from __future__ import annotations

import json
import os
import pprint
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.stress.bits.configuration import Configuration, simpler
from tests.stress.bits.ways import REFERENCE, Outcome, Ways
from tests.stress.portions import ROOT

TRIES = 3  # of a simpler configuration: a race does not show every time
PATIENCE = 90.0  # seconds that making one simpler may take

SETS: dict[str, dict[str, str]] = {
    "as it is": {},
    "avx2": {
        "ATEN_CPU_CAPABILITY": "avx2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
    },
    "default": {
        "ATEN_CPU_CAPABILITY": "default",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
    },
    "compatible": {"MKL_CBWR": "COMPATIBLE"},
}
"""Instruction sets by the variables that torch, oneDNN and MKL read when they are loaded."""
DECIDING = sorted({name for one in SETS.values() for name in one})


def sets_here() -> list[str]:
    """Those that this machine has."""
    try:
        flags = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        flags = ""
    return [name for name in SETS if name != "avx2" or " avx2" in flags]


@dataclass(frozen=True)
class Difference:
    """A way whose outcome is another than in this process."""

    way: str
    expected: Outcome
    got: Outcome


@dataclass(frozen=True)
class Verdict:
    """What became of one configuration."""

    outcome: Outcome
    ways: int = 0
    differences: list[Difference] = field(default_factory=list[Difference])

    @property
    def is_refused(self) -> bool:
        return "refused" in self.outcome and not self.differences


def differs(expected: Outcome, got: Outcome) -> bool:
    """Refusals are alike however they are worded: workers tell where they were."""
    return expected != got and not ("refused" in expected and "refused" in got)


def judge(ways: Ways, config: Configuration) -> Verdict:
    """Execute it in this process and in each of its ways."""
    expected = ways.execute(config, REFERENCE)
    if "crash" in expected:
        return Verdict(expected, 1, [Difference(REFERENCE, {}, expected)])
    found: list[Difference] = []
    # What is refused here need not be tried everywhere, only once.
    chosen = config["ways"][:2] if "refused" in expected else config["ways"]
    for way in chosen:
        got = ways.execute(config, way)
        if differs(expected, got):
            found.append(Difference(way, expected, got))
    return Verdict(expected, 1 + len(chosen), found)


def shows(ways: Ways, config: Configuration, way: str) -> bool:
    """Whether this way still differs, or crashes."""
    for _ in range(TRIES):
        verdict = judge(ways, {**config, "ways": [] if way == REFERENCE else [way]})
        if verdict.differences:
            return True
    return False


def shrunk(ways: Ways, config: Configuration, way: str) -> Configuration:
    """The simplest configuration found that still shows it."""
    end = time.monotonic() + PATIENCE
    smallest = {**config, "ways": [] if way == REFERENCE else [way]}
    found = True
    while found and time.monotonic() < end:
        found = False
        for candidate in simpler(smallest):
            if time.monotonic() > end:
                break
            if shows(ways, candidate, way):
                smallest, found = candidate, True
                break
    return smallest


SCRIPT = '''"""Two executions of one configuration of fedrift differ.

{story}

It sets the instruction set, then runs the configuration both ways; 1: they still differ.
"""

import os
import sys

NEEDED = {environment}
if any(os.environ.get(name) != value for name, value in NEEDED.items()):
    os.environ.update(NEEDED)
    os.execv(sys.executable, [sys.executable, *sys.argv])

sys.path[:0] = [{root!r}, {source!r}]
os.environ["PYTHONPATH"] = os.pathsep.join(sys.path[:2])

from tests.stress.bits.fuzz import replay

CONFIGURATION = {config}

sys.exit(replay(CONFIGURATION))
'''


def write_script(
    folder: Path, name: str, config: Configuration, difference: Difference, drawn: str
) -> Path:
    """A program that shows the difference."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.py"
    story = "\n".join(
        (
            f"drawn as {drawn}",
            f"in this process: {json.dumps(difference.expected)}",
            f"{difference.way}: {json.dumps(difference.got)}",
        )
    )
    here = {name: os.environ[name] for name in DECIDING if name in os.environ}
    path.write_text(
        SCRIPT.format(
            story=story.replace("\\", "/").replace('"""', "'''"),
            environment=pprint.pformat(here),
            root=str(ROOT),
            source=str(ROOT / "src"),
            config=pprint.pformat(config, sort_dicts=False, width=96),
        ),
        encoding="utf-8",
    )
    return path


def replay(config: Configuration) -> int:
    """Run a configuration again and tell what each way gives."""
    from tests.stress.bits.ways import prepare

    prepare()
    ways = Ways()
    try:
        for _ in range(TRIES):
            verdict = judge(ways, config)
            print(f"{REFERENCE}: {json.dumps(verdict.outcome)}")
            for one in verdict.differences:
                print(f"{one.way}: {json.dumps(one.got)}")
            if verdict.differences:
                return 1
    finally:
        ways.close()
    print("no difference", file=sys.stderr)
    return 0


def line_of(number: int, verdict: Verdict, script: Path | None) -> Mapping[str, Any]:
    """One configuration as a line that a shard prints."""
    first = verdict.differences[0] if verdict.differences else None
    return {
        "number": number,
        "ways": verdict.ways,
        "refused": verdict.outcome.get("refused") if verdict.is_refused else None,
        "way": first and first.way,
        "expected": first and first.expected,
        "got": first and first.got,
        "script": None if script is None else str(script),
    }
