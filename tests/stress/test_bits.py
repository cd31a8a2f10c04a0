"""A few configurations of `make test-bits`, which runs hundreds; and that it finds mistakes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any, cast

import pytest

from tests.stress.bits import models
from tests.stress.bits.configuration import Configuration, draw
from tests.stress.bits.fuzz import Difference, judge, shrunk, write_script
from tests.stress.bits.mutants import MUTANTS
from tests.stress.bits.ways import REFERENCE, Outcome, Ways, prepare
from tests.stress.portions import ROOT

SEED = 29  # of many seeds one that draws most algorithms, layouts and options
SELECTION = range(len(models.KINDS))  # one for every kind of model


@pytest.fixture(scope="module")
def ways(tmp_path_factory: pytest.TempPathFactory) -> Generator[Ways]:
    prepare()
    opened = Ways(tmp_path_factory.mktemp("bits"), kept="forkserver")
    yield opened
    opened.close()


def quick(number: int) -> Configuration:
    """Without processes that import torch anew: spawned workers, and those of a killed run."""
    config = draw(SEED, number)
    chosen = [way.replace("spawn", "forkserver") for way in config["ways"]]
    config["ways"] = [re.sub(r"^(resumed:.*),\d,", r"\1,0,", way) for way in chosen]
    return config


@pytest.mark.parametrize("number", SELECTION)
def test_every_way_gives_the_same_bits(number: int, ways: Ways) -> None:
    config = quick(number)
    verdict = judge(ways, config)
    assert not verdict.differences, json.dumps(config)
    assert not verdict.is_refused, verdict.outcome


def test_configurations_are_drawn_from_their_seed_alone() -> None:
    drawn = [draw(SEED, number) for number in SELECTION]
    assert drawn == [draw(SEED, number) for number in SELECTION]
    assert {config["model"]["kind"] for config in drawn} == set(models.KINDS)
    assert drawn != [draw(SEED + 1, number) for number in SELECTION]


class Wrong:
    """Executes nothing; says that workers differ wherever there is momentum and dropout."""

    def execute(self, config: Configuration, way: str) -> Outcome:
        is_wrong = way != REFERENCE and "momentum" in config["options"]
        is_wrong = is_wrong and config["model"].get("dropout", 0) > 0
        return {"status": "done", "fingerprint": "b" if is_wrong else "a"}


def test_a_difference_is_shrunk_to_a_script(tmp_path: Path) -> None:
    config = draw(0, 0)
    config["model"] = {"kind": "mlp", "norm": "batch", "dropout": 0.3, "depth": 2}
    config["options"] |= {"momentum": 0.9, "clip": 0.5, "eval_every": 2, "rounds": 4}
    fake = cast(Ways, Wrong())
    first = judge(fake, config).differences[0]
    small = shrunk(fake, config, first.way)
    assert small["model"] == {"kind": "mlp", "dropout": 0.3}
    assert set(small["options"]) <= {"momentum", "rounds", "lr", "batch_size"}
    assert (small["options"]["rounds"], small["data"]["clients"]) == (1, 1)
    assert (small["data"]["layout"], small["algorithm"]) == ("plain", "fedavg")
    small = {**config, "options": {"rounds": 1, "lr": 0.1}, "ways": ["shifted"]}
    path = write_script(tmp_path, "one", small, Difference("shifted", {}, {"x": "\\"}), "--seed 0")
    done = subprocess.run([sys.executable, path], capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stderr.endswith("no difference\n"), done.stderr


FEW = 40  # configurations within which every mistake is found


def fuzzed(*words: object) -> tuple[int, list[dict[str, Any]], str]:
    """A process of the fuzzer: its exit code, what it says of each configuration, its errors."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.stress.bits", *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))},
    )
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mistake_is_found(mutant: str, tmp_path: Path) -> None:
    """Planted in a process and in all its workers; without it the same configuration agrees."""
    code, lines, errors = fuzzed("--mutant", mutant, "--count", FEW, "--folder", tmp_path)
    assert code == 1 and lines[-1]["way"], errors
    again = ("--shard", "--first", lines[-1]["number"], "--count", 1, "--folder", tmp_path)
    assert fuzzed(*again)[0] == 0
