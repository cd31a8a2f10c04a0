"""The program ended from outside: it says how to go on, without a traceback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGTERM to catch")
def test_sigterm_ends_as_ctrl_c_does(tmp_path: Path) -> None:
    words = "run fedavg --rounds 100000 --clients 3 --model logistic --workers 0 --out kept"
    with subprocess.Popen(
        [sys.executable, "-m", "fedrift", *words.split()],
        cwd=tmp_path, env=os.environ, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 2/"):
                break
        process.send_signal(signal.SIGTERM)
        said = process.stderr.read()
        assert process.wait(60) == 130
    assert "interrupted after round" in said and "fedrift resume kept" in said
    assert "Traceback" not in said
