"""Packed messages in a run: identities, feedback by hand, bytes, the same bits everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedrift as fr
from fedrift.core.codecs import packed_bytes
from fedrift.core.compression import parse_compression
from fedrift.errors import InputError

VECTORS = ("fedavg", "fedsgd", "scaffold", "feddyn", "fedcm", "fednova", "mime", "mimelitemom",
           "fedsmoo", "fedgf", "localghbm", "keep(scaffold)", "ditto(fedavg)", "swa(fedavg)",
           "pfedme")  # fmt: skip


def run(algorithm: Any = "fedavg", **changes: Any) -> fr.Result:
    settings: dict[str, Any] = {
        "model": Net,
        "clients": CLIENTS,
        "test": (X[:40], Y[:40]),
        "rounds": 3,
        "per_round": 3,
        "batch_size": 8,
        "lr": 0.05,
        "workers": 0,
        "seed": 1,
    }
    return fr.run(algorithm, **(settings | changes))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 5)
        self.head = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))


SIZE = 6 * 5 + 5 + 5 * 3 + 3
_random = torch.Generator().manual_seed(3)
X = torch.randn(100, 6, generator=_random)
Y = torch.randint(0, 3, (100,), generator=_random)
CLIENTS = [(X[i::5], Y[i::5]) for i in range(5)]


@pytest.mark.parametrize("algorithm", VECTORS)
def test_all_entries_are_the_plain_run_bit_for_bit(algorithm: str) -> None:
    assert run(algorithm, compress="up=topk:1").fingerprint == run(algorithm).fingerprint


@pytest.mark.parametrize("algorithm", VECTORS)
@pytest.mark.parametrize("compress", ["up=topk:0.1,down=float16", "up=qsgd:4,down=qsgd:8"])
def test_the_same_bits_through_the_codec_of_a_federation(algorithm: str, compress: str) -> None:
    plain = run(algorithm, compress=compress)
    wired = run(algorithm, compress=compress, backend="wire")
    assert wired.fingerprint == plain.fingerprint
    assert wired.fingerprint != run(algorithm).fingerprint


@pytest.mark.parametrize("algorithm", ["scaffold", "keep(scaffold)"])
def test_workers_and_resuming_give_the_same_bits(algorithm: str, tmp_path: Path) -> None:
    compress = "up=topk:0.1,up.delta=sign,down=bfloat16"
    whole = run(algorithm, compress=compress, rounds=6)
    assert run(algorithm, compress=compress, rounds=6, workers=2).fingerprint == whole.fingerprint

    def stop(report: fr.RoundReport) -> None:
        if report.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(algorithm, compress=compress, rounds=6, out=tmp_path / "run", on_round=stop)
    resumed = run(algorithm, compress=compress, rounds=6, out=tmp_path / "run")
    assert resumed.fingerprint == whole.fingerprint
    with pytest.raises(InputError):
        run(algorithm, compress="up=topk:0.2", rounds=6, out=tmp_path / "run")


def test_none_is_as_usual() -> None:
    assert run(compress="none").fingerprint == run().fingerprint


def test_feedback_by_hand() -> None:
    """Two clients on quadratics ½‖w − b‖², one step each: p = Δ + e, the largest entry is sent."""
    b = np.array([[1.0, -2.0, 0.5], [3.0, 1.0, -1.0]])
    rate, rounds = 0.1, 5
    w, e = np.zeros(3), np.zeros((2, 3))
    for _ in range(rounds):
        sent = []
        for i in range(2):
            p = -rate * (w - b[i]) + e[i]
            q = np.where(np.arange(3) == np.argmax(np.abs(p)), p, 0.0)
            e[i] = p - q
            sent.append(q)
        w = w + np.mean(sent, axis=0)

    class Point(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.zeros(3))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.w - x

    def half_square(off: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
        return off.square().sum(dim=1).mean() / 2

    data = [(torch.tensor(row[None]), torch.zeros(1, dtype=torch.float64)) for row in b]
    result = fr.run(
        "fedavg:weights=uniform",
        model=Point,
        clients=data,
        loss=half_square,
        rounds=rounds,
        steps=1,
        batch_size=None,
        lr=rate,
        dtype="float64",
        workers=0,
        compress="up=topk:0.3",
    )
    assert np.allclose(result.weights.numpy(), w, rtol=0, atol=1e-15)


def test_who_was_dropped_keeps_what_it_had_not_sent() -> None:
    """A client that is silent in a round is as if it had not been asked: faults change nothing."""
    faulty = run("fedavg", per_round=5, faults="dropout:0.5", compress="up=topk:0.1", rounds=6)
    there = [list(entry.replied) for entry in faulty.ledger.entries]
    assert any(len(clients) < 5 for clients in there)
    asked = run("fedavg", per_round=None, participants=there, compress="up=topk:0.1", rounds=6)
    assert torch.equal(asked.weights, faulty.weights)


def test_the_ledger_counts_what_is_packed() -> None:
    result = run("scaffold", compress="up=topk:0.1,up.dc=qsgd:4,down=float16", rounds=1)
    (entry,) = result.ledger.entries
    how = parse_compression("up=topk:0.1,up.dc=qsgd:4")
    assert how is not None
    sizes = {}
    for name in ("delta", "dc"):
        packing = how.of("up", name)
        assert packing is not None
        sizes[name] = 3 * packed_bytes(packing, SIZE, torch.float32)
    assert {name: size.tensors for name, size in entry.up.items()} == sizes
    assert {name: size.tensors for name, size in entry.down.items()} == {
        "w": 3 * 2 * SIZE,
        "c": 3 * 2 * SIZE,
    }
    workers = run("scaffold", compress="up=topk:0.1,up.dc=qsgd:4,down=float16", rounds=1, workers=2)
    assert workers.ledger.entries == result.ledger.entries


def test_little_that_is_sent_still_learns() -> None:
    """With feedback a hundredth of the entries goes where all of them go; without it, it stays
    behind."""
    full = run(rounds=60, per_round=5).loss[-1]
    fed = run(rounds=60, per_round=5, compress="up=topk:0.05").loss[-1]
    unfed = run(rounds=60, per_round=5, compress="up=topk:0.05,no-feedback").loss[-1]
    assert abs(fed - full) < abs(unfed - full)


def test_robust_runs_may_pack() -> None:
    robust = run("fedavg:weights=uniform", compress="up=qsgd:8", aggregate="median")
    assert robust.status == "done"


def test_private_runs_may_pack() -> None:
    pytest.importorskip("dp_accounting", reason="the extra 'privacy' is not installed")
    private = run("fedavg:weights=uniform", compress="up=qsgd:8", privacy="gaussian:1,clip=1")
    assert private.status == "done"


@pytest.mark.parametrize(
    ("algorithm", "compress", "says"),
    [
        ("fed3r", "up=float16", "must be exact"),
        ("scaffold", "up=topk:0.1,no-feedback", "drift apart"),
        ("scaffold", "up.dz=sign", "dc"),
        ("fedavg", "down.c=float16", "w"),
        ("fedavg", 3, "a text such as"),
    ],
)
def test_refusals(algorithm: str, compress: Any, says: str) -> None:
    with pytest.raises(InputError) as error:
        run(algorithm, compress=compress)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_values_too_large_for_half_precision_are_not_finite() -> None:
    result = run("fedavg", lr=1e7, compress="up=float16", rounds=2)
    assert result.status == "diverged"
