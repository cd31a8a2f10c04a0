"""A few rounds of `python tests/stress/soak.py`, which does a thousand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "soak.py"


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold"])
def test_nothing_grows_and_nothing_is_left(algorithm: str) -> None:
    """A short run has had less time to settle, hence 3 %."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), algorithm, "--rounds", "200", "--growth", "3"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
