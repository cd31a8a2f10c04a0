"""Golden numbers: two clients, f_i(w) = ½ Σ_d a_{i,d} (w_d − b_{i,d})², float64, tolerance 2e-6.

a_1=(1,2), b_1=(3,1), a_2=(4,1), b_2=(−1,2), w⁰=0, η=0.1, K=5 exact gradient steps. Each row is
the closed recursion of its algorithm box on this problem, iterated by hand (the step on client i
is w_d ← w_d − η(a_{i,d}(w_d − b_{i,d}) + correction)), after 1, 2, 3 and 10 rounds. Mode A asks
client 1 in even and client 2 in odd rounds.
"""

from __future__ import annotations

from typing import Any

import pytest

from problems import alternating, quadratic_clients, trajectory

A = {"participants": alternating(10)}
Golden = tuple[str, dict[str, Any], list[tuple[float, float]]]

ROWS: list[Golden] = [
    (
        "fedsgd",
        {},
        [
            (-0.050000, 0.200000),
            (-0.087500, 0.370000),
            (-0.115625, 0.514500),
            (-0.188737, 1.070834),
        ],
    ),
    (
        "fedavg:weights=uniform",
        {},
        [(0.153145, 0.745670), (0.204315, 1.087996), (0.221412, 1.245153), (0.229987, 1.377961)],
    ),
    (
        "fedavg",
        {"clients": quadratic_clients((1, 3))},
        [
            (-0.384548, 0.782345),
            (-0.463742, 1.192910),
            (-0.480052, 1.408369),
            (-0.484282, 1.643697),
        ],
    ),
    (
        "fedavg",
        {"steps": [2, 8]},
        [
            (-0.206602, 0.749533),
            (-0.292011, 1.150708),
            (-0.327319, 1.365430),
            (-0.352150, 1.609597),
        ],
    ),
    (
        "scaffold:option=II",
        {},
        [(0.153145, 0.745670), (0.011874, 1.082616), (-0.111618, 1.228747), (-0.200098, 1.333162)],
    ),
    (
        "scaffold:option=I",
        {},
        [(0.153145, 0.745670), (-0.108848, 1.087996), (-0.216940, 1.231479), (-0.200043, 1.333118)],
    ),
    (
        "scaffold:option=II",
        A,
        [(1.228530, 0.672320), (-0.543460, 1.491340), (-0.572668, 1.097313), (-0.198369, 1.326808)],
    ),
]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    ROWS,
    ids=[f"{name} {','.join(options)}" for name, options, _ in ROWS],
)
def test_golden(name: str, options: dict[str, Any], expected: list[tuple[float, float]]) -> None:
    path = trajectory(name, rounds=10, **options)
    for after, w in zip((1, 2, 3, 10), expected, strict=True):
        assert path[after - 1] == pytest.approx(w, abs=2e-6), f"after round {after}"


LIMITS: list[tuple[str, dict[str, Any], tuple[float, float]]] = [
    ("fedavg", {}, (0.229991, 1.378535)),  # the drifted fixed point, not the minimiser
    ("scaffold:option=I", {}, (-0.2, 4 / 3)),
    ("scaffold:option=II", {}, (-0.2, 4 / 3)),
    ("scaffold:option=II", {"participants": alternating(400)}, (-0.2, 4 / 3)),
    ("fedsgd", {}, (-0.2, 4 / 3)),
]


@pytest.mark.parametrize(("name", "options", "limit"), LIMITS)
def test_limit(name: str, options: dict[str, Any], limit: tuple[float, float]) -> None:
    """After many rounds each algorithm stands where theory says."""
    assert trajectory(name, rounds=400, **options)[-1] == pytest.approx(limit, abs=2e-6)


@pytest.mark.slow
def test_scaffold_option_one_converges_slowly_when_alternating() -> None:
    path = trajectory("scaffold:option=I", rounds=3000, participants=alternating(3000))
    assert path[-1] == pytest.approx((-0.2, 4 / 3), abs=2e-6)
