"""Every algorithm gives the same bits wherever it runs and however it is interrupted."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from fedrift.conform import bench as benches
from fedrift.conform import generic
from tests.support.compositions import EVERY
from tests.support.product import Bench, Pool, run_trial, subject_of

WITH_DRAWS = ("fedavg", "scaffold", "fedsmoo", "mimemom", "diloco", "fed3rft")


@pytest.fixture(scope="module")
def bench() -> Generator[Bench]:
    with benches.open_bench() as opened:
        yield opened


@pytest.fixture(scope="module")
def single() -> Generator[Pool]:
    pool = Pool(1)
    yield pool
    pool.close()


@pytest.mark.parametrize("text", EVERY)
def test_in_process_wire_one_and_two_workers_agree(text: str, bench: Bench, single: Pool) -> None:
    subject = subject_of(text)
    here = bench.fingerprint(subject)
    assert generic.wire(subject, bench).text == here
    assert generic.backends(subject, bench).passed
    assert run_trial(subject, bench.trial, pool=single).fingerprint == here


@pytest.mark.parametrize("text", EVERY)
def test_resumed_is_uninterrupted(text: str, bench: Bench) -> None:
    cell = generic.resume(subject_of(text), bench)
    assert cell.passed, cell.text


@pytest.mark.parametrize("text", EVERY)
def test_form_and_isolation(text: str, bench: Bench) -> None:
    """Frozen and typed all through; clients know nothing but `down` and their own state."""
    subject = subject_of(text)
    for column in (generic.form, generic.check):
        cell = column(subject, bench)
        assert cell.passed, cell.text


@pytest.mark.parametrize("text", WITH_DRAWS)
def test_drawn_work_schedules_and_clipping_agree(text: str, bench: Bench, single: Pool) -> None:
    """Amounts of work drawn per client and round, a schedule and clipping, everywhere alike."""
    trial = bench.trial.working(steps="uniform:1,3", schedule="exp:0.9", clip=1.0)
    here = run_trial(text, trial).fingerprint
    assert run_trial(text, trial, backend="wire").fingerprint == here
    assert run_trial(text, trial, pool=single).fingerprint == here
