"""Kills at random moments: a few here, many with `python tests/stress/kill.py`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "kill.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", ["stateless", "stateful", "two-exchange", "wrapper"])
def test_a_killed_run_ends_with_the_same_fingerprint(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), kind, "--kills", "50"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
