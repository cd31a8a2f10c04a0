"""A visit depends on what it is given, not on who was visited before in the same process."""

from __future__ import annotations

import random
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

import fedrift as fr
from fedrift.config.privacy import Guarantee
from fedrift.core import Algorithm, Cohort, Local, Mean, Problem, Site, Vec, Weights, message, state
from fedrift.core.isolation import (
    SWITCHES,
    Memory,
    TorchSettings,
    borrowed_generators,
    seed_all,
)
from fedrift.core.problem import define
from fedrift.engine import aggregation
from fedrift.rng import torch_seed

X = torch.randn(200, 20, generator=torch.Generator().manual_seed(0))
Y = X[:, :1] * 2
CLIENTS = [(X[20 * i : 20 * i + 20], Y[20 * i : 20 * i + 20]) for i in range(8)]


def run(model: Any, workers: int = 0, **changes: Any) -> fr.Result:
    settings: dict[str, Any] = {
        "clients": CLIENTS,
        "test": (X[160:], Y[160:]),
        "loss": nn.functional.mse_loss,
        "rounds": 3,
        "per_round": 4,
        "lr": 0.05,
        "batch_size": 8,
        "workers": workers,
    }
    return fr.run("fedavg", model=model, **(settings | changes))


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 1)


class Spectral(nn.Sequential):
    """Buffers that move only because weights do."""

    def __init__(self) -> None:
        super().__init__(nn.Linear(20, 16), nn.ReLU(), spectral_norm(nn.Linear(16, 1)))


class Reassigned(Base):
    """A buffer that `forward` replaces by another tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean = self.mean * 0.9 + x.mean()
        return self.layer(x) + self.mean


class ForLargeBatches(Base):
    def __init__(self) -> None:
        super().__init__()
        self.mean: Tensor
        self.register_buffer("mean", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and len(x) > 4:
            self.mean.mul_(0.9).add_(x.mean())
        return self.layer(x) + self.mean


class Teacher(Base):
    """A frozen parameter that follows the trained one."""

    def __init__(self) -> None:
        super().__init__()
        self.teacher = nn.Parameter(torch.zeros(1, 20), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.teacher.mul_(0.9).add_(self.layer.weight.detach(), alpha=0.1)
        return self.layer(x) + x @ self.teacher.T


class Counter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.passes, self.seen, self.last = 0, [0], torch.zeros(1)

    def forward(self, x: Tensor) -> Tensor:
        self.passes += 1
        self.seen.append(len(x))
        self.last.add_(x.detach().mean())
        return self.layer(x) * (1 + 0.01 * self.passes + 0.001 * len(self.seen)) + self.last


class OwnGenerators(Base):
    def __init__(self) -> None:
        super().__init__()
        self.torch_noise = torch.Generator().manual_seed(0)
        self.numpy_noise = np.random.default_rng(0)

    def forward(self, x: Tensor) -> Tensor:
        noise = torch.randn(len(x), 1, generator=self.torch_noise)
        return self.layer(x) + 0.01 * noise + 0.01 * self.numpy_noise.random()


class Noise(Base):
    """Random in evaluation too, from every generator that there is."""

    def forward(self, x: Tensor) -> Tensor:
        shift = torch.randn(len(x), 1) + float(np.random.rand()) + random.random()
        return self.layer(x) + 0.1 * shift


class Cache(Base):
    """A buffer that exists only after the first pass."""

    cache: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "cache"):
            self.register_buffer("cache", torch.arange(20.0).cos(), persistent=False)
        return self.layer(x * self.cache)


class Tied(Base):
    """A trained weight and a buffer that stand in two places."""

    mean: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(20, 20), nn.Linear(20, 20)
        self.b.weight = self.a.weight
        self.register_buffer("mean", torch.zeros(1))
        self.a.register_buffer("mean", self.mean)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.mean.mul_(0.9).add_(x.mean())
        return self.layer(torch.tanh(self.b(torch.tanh(self.a(x))))) + self.a.mean


ONCE: dict[str, Any] = {"rounds": 1, "per_round": None}
MODELS = [
    Spectral,
    Reassigned,
    ForLargeBatches,
    Teacher,
    Counter,
    OwnGenerators,
    Noise,
    Cache,
    Tied,
]


@pytest.mark.parametrize("model", MODELS)
def test_the_same_bits_in_every_process(model: type[nn.Module]) -> None:
    prints = [run(model, workers).fingerprint for workers in (0, 0, 2, 1)]
    assert len(set(prints)) == 1


@pytest.mark.parametrize("model", MODELS)
def test_other_clients_do_not_show(model: type[nn.Module]) -> None:
    """With client 0's data changed, the replies of the others in the first round are the same."""
    replies: list[dict[int, Tensor]] = []
    for first in (CLIENTS[0], (CLIENTS[0][0] * 3, CLIENTS[0][1])):
        alone = [run(model, clients=[first, one], participants=[[1]], **ONCE) for one in CLIENTS]
        both = run(model, clients=[first, CLIENTS[1]], participants=[[0, 1]], **ONCE)
        replies.append({i: r.weights for i, r in enumerate(alone)} | {-1: both.weights})
    for i in range(1, len(CLIENTS)):
        assert torch.equal(replies[0][i], replies[1][i])
    # the mean of two replies moves by half of what the first client's own reply does
    assert not torch.equal(replies[0][-1], replies[1][-1])


def test_what_moves_late_is_named() -> None:
    class Late(Base):
        passes: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("passes", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            if self.training and float(self.layer.weight.detach().abs().sum()) > 4.5:
                self.passes.add_(1)
            return self.layer(x)

    with pytest.raises(fr.InputError, match="'passes' of Late changes while"):
        run(Late, rounds=20, lr=0.2)


def test_what_cannot_be_put_back_is_refused() -> None:
    class Elsewhere(Base):
        def __init__(self) -> None:
            super().__init__()
            self.heap = deque([1.0], maxlen=3)

        def forward(self, x: Tensor) -> Tensor:
            self.heap.append(float(x.detach().mean()))
            return self.layer(x) * sum(self.heap)

    with pytest.raises(fr.InputError, match="Elsewhere gives other gradients for the same samples"):
        run(Elsewhere)


def test_so_is_what_only_an_evaluation_remembers() -> None:
    class Seen(Base):
        def __init__(self) -> None:
            super().__init__()
            self.heap = deque([1.0], maxlen=3)

        def forward(self, x: Tensor) -> Tensor:
            if not self.training:
                self.heap.append(float(x.mean()))
            return self.layer(x) * sum(self.heap)

    with pytest.raises(fr.InputError, match="Seen gives other outputs for the same samples when"):
        run(Seen)


class Grown(Base):
    def forward(self, x: Tensor) -> Tensor:
        if not hasattr(self, "scale"):
            self.scale = nn.Parameter(torch.ones(1))
        return self.layer(x) * self.scale


class Swapped(Base):
    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.layer, nn.Linear):
            self.layer = nn.Sequential(self.layer, nn.Tanh())  # type: ignore[assignment]
        return self.layer(x)


class Widened(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(0))

    def forward(self, x: Tensor) -> Tensor:
        self.mean = x.detach().mean(0)
        return self.layer(x - self.mean)


class Sparse(Base):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(4, 1, sparse=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.rows((x[:, 0] > 0).long())


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Grown, "forward of Grown makes or replaces the parameter 'scale'"),
        (Swapped, r"forward of Swapped makes or replaces the parameter 'layer\."),
        (Widened, "the buffer 'mean' of Widened gets another shape in forward"),
        (Sparse, "'rows' of Sparse gives sparse gradients"),
    ],
)
def test_what_no_vector_can_hold_is_refused(model: type[nn.Module], says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        run(model)


def test_hooks_of_tensors_are_refused() -> None:
    class Hooked(Base):
        def __init__(self) -> None:
            super().__init__()
            self.layer.weight.register_hook(lambda g: g * 2)

    with pytest.raises(fr.InputError, match=r"'layer\.weight' has a hook"):
        run(Hooked)


def test_memory_is_put_back() -> None:
    module = nn.Sequential(nn.BatchNorm1d(20), Counter())
    memory = Memory(module, {name for name, _ in module.named_parameters()})
    before = {name: b.clone() for name, b in module.named_buffers()}
    counter = module[1]
    assert isinstance(counter, Counter)
    for _ in range(2):
        module.train()(X[:8])
        module.register_buffer("made", torch.ones(1))
        setattr(counter, "extra", 3)  # noqa: B010
        assert set(memory.moved()) == set(before)
        memory.put_back()
        assert memory.moved() == ()
        assert {n: b.tolist() for n, b in module.named_buffers()} == {
            n: b.tolist() for n, b in before.items()
        }
        assert (counter.passes, counter.seen, counter.last.tolist()) == (0, [0], [0.0])
        assert not hasattr(counter, "extra")


def test_generators_are_seeded_and_given_back() -> None:
    def draw() -> tuple[float, float, float]:
        return float(torch.rand(())), float(np.random.rand()), random.random()

    seed_all(0, "before")
    expected = draw()
    seed_all(0, "before")
    with borrowed_generators():
        seed_all(1, "inside", 2, 3)
        first = draw()
        seed_all(1, "inside", 2, 3)
        assert draw() == first
        seed_all(1, "inside", 2, 4)
        assert draw() != first
    assert draw() == expected
    seed_all(0, "before")
    run(Noise)
    assert draw() == expected


def test_settings_of_torch_are_carried() -> None:
    before = TorchSettings.current()
    torch.set_flush_denormal(True)
    torch.backends.mkldnn.set_flags(False)
    try:
        there = TorchSettings.current()
        assert there != before
        before.apply()
        assert TorchSettings.current() == before
        there.apply()
        assert TorchSettings.current() == there
    finally:
        before.apply()


class AsksTorch(Base):
    """What it computes depends on a setting of torch."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (2.0 if torch.backends.mkldnn.enabled else 1.0)


def test_workers_have_the_settings_of_their_parent() -> None:
    usual = run(AsksTorch, 2).fingerprint
    torch.backends.mkldnn.set_flags(False)
    try:
        prints = [run(AsksTorch, workers).fingerprint for workers in (0, 2)]
    finally:
        torch.backends.mkldnn.set_flags(True)
    assert prints[0] == prints[1] != usual
    assert run(AsksTorch, 2).fingerprint == usual


class AsksTheDefault(Base):
    """What it computes depends on how precise a number is that nobody has said more of."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(20, 1, dtype=torch.float32)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * (1.0 + torch.finfo(torch.ones(1).dtype).bits / 64)


def test_so_have_they_its_default_dtype() -> None:
    usual = run(AsksTheDefault, 2).fingerprint
    torch.set_default_dtype(torch.float64)
    try:
        prints = [run(AsksTheDefault, workers).fingerprint for workers in (0, 2)]
    finally:
        torch.set_default_dtype(torch.float32)
    assert prints[0] == prints[1] != usual


class Attends(nn.Module):
    """Takes another road in evaluation where torch's fast path is on."""

    def __init__(self) -> None:
        super().__init__()
        self.attends = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, dropout=0.1)
        self.layer = nn.Linear(20, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.attends(x.view(-1, 5, 4)).flatten(1))


@pytest.mark.parametrize("name", ["flush_denormal", "attention_fastpath", "autocast"])
def test_every_setting_reaches_workers(name: str) -> None:
    before = TorchSettings.current()
    read, write = SWITCHES[name]
    write(not read())
    try:
        prints = {run(Attends, workers, rounds=2).fingerprint for workers in (0, 2)}
    finally:
        before.apply()
    assert len(prints) == 1


class Variational(Base):
    """Draws in evaluation as in training, as an autoencoder's middle or dropout left on does."""

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(nn.functional.dropout(x, 0.3, training=True) + 0.1 * torch.randn_like(x))


def test_draws_of_an_evaluation_are_seeded() -> None:
    assert len({run(Variational, workers).fingerprint for workers in (0, 0, 2, 2)}) == 1


def noise() -> float:
    return random.random() + float(np.random.rand()) + float(torch.rand(()))


@message
class Down:
    w: Vec


@message
class Up:
    delta: Mean[Vec]


@state
class Held:
    w: Vec


@dataclass(frozen=True)
class Noisy(Algorithm[Held, Held]):
    """Draws wherever something is computed at the server, and for what clients begin with."""

    local: Local = Local(lr=0.05, batch_size=8)
    weights: Weights = "uniform"

    def server(self, p: Problem) -> Held:
        return Held(w=p.w0 + 0.01 * noise())

    def client(self, p: Problem) -> Held:
        return Held(w=torch.zeros_like(p.w0) + 0.01 * noise())

    def round(self, s: Held, cohort: Cohort) -> Held:
        before = 0.01 * noise()
        up = cohort.ask(self.train, Down(w=s.w))
        return Held(w=s.w + up.delta + before - 0.01 * noise())

    def train(self, site: Site, down: Down, mine: Held) -> tuple[Up, Held]:
        return Up(delta=site.train(self.local, down.w + mine.w).delta), mine

    def log(self, s: Held) -> dict[str, float]:
        return {"drawn": noise()}


def some_of(choice: Any) -> list[int]:
    return random.sample(list(choice.clients), 3)


def test_draws_at_the_server_are_seeded(tmp_path: Path) -> None:
    """Of an algorithm, a metric and a choice of clients: with workers, resumed and in threads."""

    def stop(report: fr.RoundReport) -> None:
        if report.round == 2:
            raise KeyboardInterrupt

    given: dict[str, Any] = {
        "model": Variational,
        "clients": CLIENTS,
        "test": (X[160:], Y[160:]),
        "loss": nn.functional.mse_loss,
        "metrics": {"about": lambda output, target: noise()},
        "sampling": some_of,
        "per_round": 3,
        "rounds": 4,
    }
    found = [fr.run(Noisy(), workers=workers, **given) for workers in (0, 2)]
    with pytest.raises(KeyboardInterrupt):
        fr.run(Noisy(), workers=2, out=tmp_path / "run", on_round=stop, **given)
    found.append(fr.run(Noisy(), workers=0, out=tmp_path / "run", **given))
    compared = fr.compare([Noisy(), Noisy(weights="samples")], seeds=2, workers=2, **given)
    found.append(compared.results[0])
    assert len({one.fingerprint for one in found}) == 1
    assert len({(*one["drawn"], *one["about"]) for one in map(columns, found)}) == 1


def columns(result: fr.Result) -> dict[str, list[float]]:
    return {name: [row[name] for row in result.metrics] for name in ("drawn", "about")}


@pytest.mark.parametrize("guard", [{"aggregate": "median"}, {"privacy": "gaussian:1,clip=1"}])
def test_protected_replies_do_not_tell_of_others(
    guard: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Client 0's data change; what the others send does not."""
    known = Guarantee(1.0, 1e-5, "not reckoned here")  # that needs a library of its own
    monkeypatch.setattr(aggregation, "guarantee", lambda *_: known)
    seen: list[dict[int, Tensor]] = []

    class Look(fr.Callback):
        def on_reply(self, exchange: Any, client: int, weight: float, up: Any) -> None:
            seen[-1][client] = up.delta.clone()

        def looks_at(self, round: int) -> bool:
            return True

    for first in (CLIENTS[0], (CLIENTS[0][0] * 3, CLIENTS[0][1])):
        seen.append({})
        run(
            Counter,
            clients=[first, *CLIENTS[1:]],
            rounds=1,
            weights="uniform",
            callbacks=[Look()],
            **guard,
        )
    assert seen[0].keys() == seen[1].keys() and len(seen[0]) > 1
    assert all(torch.equal(seen[0][c], seen[1][c]) for c in seen[0] if c)


def test_hooks_of_a_module_that_is_given_are_refused_too() -> None:
    module = nn.Linear(20, 1)
    module.bias.register_post_accumulate_grad_hook(lambda _: None)
    with pytest.raises(fr.InputError, match="'bias' has a hook"):
        run(module)


class Plain(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


def test_what_was_patched_here_is_not_computed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = run(Plain, 1).fingerprint
    old = nn.Linear.forward
    monkeypatch.setattr(nn.Linear, "forward", lambda module, x: old(module, x) * 2)
    assert run(Plain).fingerprint != usual
    with pytest.raises(fr.RunError, match="gives other gradients in a worker"):
        run(Plain, 1)
    monkeypatch.undo()
    assert run(Plain, 1).fingerprint == usual


def test_runs_in_threads_wait_for_each_other() -> None:
    """No two are ever in a round, or each would draw what is the other's."""
    alone = [run(Variational, seed=seed).fingerprint for seed in range(4)]
    together, met = threading.Barrier(2), list[bool]()

    def meet(report: fr.RoundReport) -> None:
        with suppress(threading.BrokenBarrierError):  # and from then on at once
            together.wait(1.0)
            met.append(True)

    def one(seed: int) -> str:
        return run(Variational, seed=seed, on_round=meet).fingerprint

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(one, range(4))) == alone
    assert not met


def test_a_callback_of_a_comparison_may_run_another() -> None:
    made: list[str] = []

    class Nested(fr.Callback):
        def on_round(self, report: fr.RoundReport) -> None:
            made.append(run(Plain, rounds=1).fingerprint)

    how: dict[str, Any] = {"clients": CLIENTS, "loss": nn.functional.mse_loss, "rounds": 1}
    fr.compare(
        ["fedavg", "scaffold"], model=Plain, workers=1, callbacks=lambda _: [Nested()], **how
    )
    assert len(made) == 2 and len(set(made)) == 1


class Slow(nn.Module):
    """Draws its weights in two parts, and has something happen in between."""

    def __init__(self, between: Any = lambda: None) -> None:
        super().__init__()
        self.first = nn.Linear(20, 4)
        between()
        self.second = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x))


def test_a_module_made_in_another_thread_does_not_draw_from_these_weights() -> None:
    """As when a run of a comparison ends and its module is made while another one begins."""
    alone = run(Slow, rounds=1)
    is_between, may_go_on = threading.Event(), threading.Event()

    def waiting() -> None:
        is_between.set()
        may_go_on.wait(5)

    other = replace(alone.problem, make=lambda: Slow(waiting))
    thread = threading.Thread(target=lambda: other.module(other.w0, {}))

    def between() -> None:
        if not thread.ident:
            thread.start()
            is_between.wait(0.3)

    beside = define(
        lambda: Slow(between),
        nn.functional.mse_loss,
        (X[:2], Y[:2]),
        init_seed=torch_seed(0, "init"),
        population=8,
        participation=0.5,
        rounds=1,
    )
    may_go_on.set()
    thread.join()
    assert torch.equal(beside.w0, alone.problem.w0)
