"""The hash of how a machine rounds: equal where bits can be compared, else not."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch

from fedrift.engine.arithmetic import last_bits

TELL = "from fedrift.engine.arithmetic import last_bits; print(last_bits())"


def told(**variables: str) -> str:
    known = {k: v for k, v in os.environ.items() if k not in ("ATEN_CPU_CAPABILITY", "MKL_CBWR")}
    command = [sys.executable, "-c", TELL]
    return subprocess.check_output(command, env=known | variables, text=True).strip()


def test_it_is_the_same_in_another_process_and_with_other_threads() -> None:
    assert told(OMP_NUM_THREADS="1") == told(OMP_NUM_THREADS="2")


@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="there is but one instruction set"
)
@pytest.mark.parametrize("name", ["ATEN_CPU_CAPABILITY", "MKL_CBWR"])
def test_other_kernels_are_seen(name: str) -> None:
    other = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE"}[name]
    assert told() != told(**{name: other})


def test_nothing_of_the_callers_is_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are the generators given back as they were: another thread may have drawn meanwhile."""
    before, threads = torch.get_rng_state(), torch.get_num_threads()
    monkeypatch.setattr(torch, "set_rng_state", lambda state: pytest.fail("a generator was set"))
    with torch.no_grad():
        once = last_bits.__wrapped__()
        assert not torch.is_grad_enabled()
    assert (once, threads) == (last_bits(), torch.get_num_threads())
    assert torch.equal(before, torch.get_rng_state())
