"""Devices: what a visit takes on the simulated clock, when they are there, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedrift as fr
from fedrift.cli import code_of
from fedrift.core.devices import DevicePlan, Devices, Presence, parse_devices, parse_late


def settled(text: str, clients: int = 5, seed: int = 0) -> Devices:
    plan = parse_devices(text)
    assert plan is not None
    return plan.settle(clients, seed)


def test_a_visit_takes_what_its_bytes_and_gradients_take() -> None:
    devices = settled("uniform:speed=100,down=1e3,up=500,latency=0.25")
    [trip] = devices.trips([3], 10.0, np.array([2000.0]), np.array([50.0]), np.array([1000.0]))
    assert trip == (3, 10.0, 0.25 + 2.0, 0.5, 0.25 + 2.0, 10.0 + 2.25 + 0.5 + 2.25)


def test_lognormal_devices_have_their_median_and_spread_and_follow_the_seed() -> None:
    devices = settled("lognormal:0.8,network=0.3,speed=50", 4000)
    logs = np.log(devices.speed)
    assert abs(np.median(devices.speed) - 50) < 4 and abs(logs.std() - 0.8) < 0.05
    assert abs(np.log(devices.up).std() - 0.3) < 0.02
    assert abs(np.corrcoef(logs, np.log(devices.up))[0, 1]) < 0.05, "computing and network apart"
    assert np.corrcoef(np.log(devices.down), np.log(devices.up))[0, 1] > 0.999
    other = settled("lognormal", 4000, 1)
    assert np.array_equal(devices.speed, settled("lognormal:0.8,network=0.3,speed=50", 4000).speed)
    assert not np.array_equal(other.speed, settled("lognormal", 4000).speed)


def test_a_share_of_the_devices_is_slower_and_part_of_a_larger_share() -> None:
    half = settled("stragglers:0.5,slow=10,speed=50", 400)
    most = settled("stragglers:0.9,slow=10,speed=50", 400)
    slow = half.speed < 50
    assert slow.sum() == 200 and (half.speed[~slow] == 50).all() and half.speed.min() >= 5
    assert abs((50 / half.speed[slow]).mean() - 5.5) < 0.5, "uniform in 1…10"
    assert np.array_equal(half.speed[slow], most.speed[slow]), "the same ones by the same factor"
    assert (most.speed < 50).sum() == 360 and set(half.up) == {1e6}
    assert not np.array_equal(half.speed, settled("stragglers:0.5,slow=10,speed=50", 400, 1).speed)
    assert np.array_equal(settled("stragglers:0").speed, settled("uniform").speed)


def test_a_file_says_whose_a_device_is_or_clients_draw(tmp_path: Path) -> None:
    named, plain = tmp_path / "named.csv", tmp_path / "plain.csv"
    named.write_text("client,speed,down,up\n1,20,2,3\n0,10,1,1\n")
    plain.write_text("speed,down,up,latency\n10,1,1,0.5\n20,2,3,0.1\n")
    mine = settled(str(named), 2)
    assert mine.speed.tolist() == [10, 20] and mine.up.tolist() == [1, 3]
    assert mine.latency.tolist() == [0, 0]
    drawn = settled(str(plain), 200)
    assert set(drawn.speed) == {10, 20} and set(drawn.latency[drawn.speed == 20]) == {0.1}


pieces = st.lists(st.integers(1, 9), min_size=1, max_size=6)


@given(st.lists(pieces, min_size=1, max_size=3), st.integers(0, 200), st.integers(1, 60))
def test_work_rests_while_a_device_is_away(lengths: list[list[int]], began: int, need: int) -> None:
    """Against a walk in steps of a second: lengths are in turn time away and time there."""
    several: list[list[tuple[float, float]]] = []
    for own in lengths:
        at, there = 0, list[tuple[float, float]]()
        for away in own:
            there.append((float(at + away), float(at + away + 1 + away % 3)))
            at += away + 1 + away % 3
        several.append(there)
    period = max(own[-1][1] for own in several) + 2
    one = np.ones(len(several))
    devices = Devices(one, one, one, one, Presence.of(several, period))
    here = devices.present(float(began))
    assert here is not None
    for client, own in enumerate(several):
        time, left = began, need
        while left:
            left -= any(a <= time % period < b for a, b in own)
            time += 1
        who = np.array([client])
        arrives = devices.arrival(who, np.array([float(began)]), np.array([float(need)]))
        assert arrives[0] == pytest.approx(time)
        inside = any(a <= began % period < b for a, b in own)
        assert (client in here) == inside
    if not len(here):
        soon = devices.next_present(float(began))
        later = devices.present(soon + 1e-6)
        assert soon > began and later is not None and len(later)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("fast", "unknown devices 'fast'"),
        ("uniform:3", "write uniform"),
        ("uniform:up=0", "up must be a number of at least 1e-06"),
        ("uniform:speed=-1", "speed must be a number of at least 1e-06"),
        ("lognormal:x", "must be a number"),
        ("lognormal:1,colour=2", "write lognormal"),
        ("trace", "write trace"),
        ("stragglers", "write stragglers"),
        ("stragglers:1.5", "stragglers must be a number of at least 0 and at most 1"),
        ("stragglers:0.5,slow=0", "slow must be a number"),
        ("none.csv", "cannot be read"),
        ("trace:none.csv", "cannot be read"),
    ],
)
def test_texts_that_say_no_devices(text: str, words: str) -> None:
    with pytest.raises(fr.InputError, match=words):
        parse_devices(text)


FILES = [
    ("speed,up\n1,1\n", "", "no column 'down'"),
    ("speed,down,up\n", "", "has no rows"),
    ("speed,down,up\n1,0,1\n", "", "row 1: down must be a number of at least 1e-06 and"),
    ("speed,down,up\n1,1\n", "", "line 2: 2 values for 3 columns"),
    ("speed,down,up\n1,nan,1\n", "", "line 2: down must be a number"),
    ("speed,down,up,latency\n1,1,1,-1\n", "", "latency must be a number of at least 0"),
    ("client,speed,down,up\n0,1,1,1\n2,1,1,1\n", "", "no row of client 1"),
    ("client,speed,down,up\n0,1,1,1\n0,1,1,1\n", "", "two rows of client 0"),
    ("client,speed,down,up\n0.5,1,1,1\n", "", "client must be a whole number"),
    ("client,start,end\n0,0,5\n2,0,5\n", "trace:", "has a hole: client 1 is never there"),
    ("client,start,end\n0,5,5\n", "trace:", "from 5 to 5 is no time"),
    ("client,start,end\n0,0,5\n0,4,9\n", "trace:", "two times of client 0 overlap at 4"),
    ("client,start,end\n0,-1,5\n", "trace:", "start must be at least 0"),
    ("client,from,to\n0,0,5\n", "trace:", "no column 'start'"),
]


@pytest.mark.parametrize(("content", "kind", "words"), FILES)
def test_files_that_describe_no_devices(
    content: str, kind: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "d.csv"
    path.write_text(content)
    assert code_of(["run", "fedavg", "--devices", f"{kind}{path}"]) == 2
    said = capsys.readouterr().err.strip()
    assert words in " ".join(said.split()) and "Traceback" not in said


def test_a_period_before_the_last_end_and_too_few_clients(tmp_path: Path) -> None:
    path = tmp_path / "d.csv"
    path.write_text("client,start,end\n0,0,5\n1,0,9\n")
    with pytest.raises(fr.InputError, match="period must be at least 9"):
        parse_devices(f"trace:{path},period=8")
    plan = parse_devices(f"trace:{path}")
    assert plan is not None and plan.settle(2, 0).presence is not None
    with pytest.raises(fr.InputError, match="says nothing of client 2"):
        plan.settle(3, 0)
    with pytest.raises(fr.InputError, match="is of 2 clients, but there are 1"):
        plan.settle(1, 0)
    assert isinstance(plan, DevicePlan)


@pytest.mark.parametrize("text", ["drop", "drop:0", "wait:3", "over:0", "over:1.5", "early:1"])
def test_rules_for_late_clients_that_mean_nothing(text: str) -> None:
    with pytest.raises(fr.InputError, match="late"):
        parse_late(text)
