"""Clients trained in stacks: the same as one by one, for every algorithm and setting."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import fedrift as fr
from fedrift import api, models
from fedrift.algorithms import NAMES
from fedrift.algorithms.fedavg import Down, Server, Up
from fedrift.backends.stacking import loop, scheduler
from fedrift.backends.stacking.chain import chain_of
from fedrift.core import Algorithm, Cohort, Layout, Local, OptState, Problem, Site, site
from fedrift.core.local import batches, table
from fedrift.core.site import Request, Trained
from fedrift.engine import execute
from tests.support.problems import Net, blobs, uneven_clients
from tests.support.product import Pool

MODELS = {
    "logistic": models.factory("logistic", (8,), 4),
    "mlp": models.factory("mlp:hidden=6", (8,), 4),
}
WRAPPED = {"swa": "swa(fedavg)", "wima": "wima(fedavg)", "sam": "sam(fedavg)"}
WRAPPED |= {
    "asam": "asam(fedavg)",
    "serveradam": "serveradam(fedavg)",
    "fed3rft": "fed3rft(fedavg)",
    "keep": "keep(fedavg)",
    "ditto": "ditto(fedavg)",
    "finetune": "finetune(fedavg)",
}
ALONE = ("fedsgd", "fed3r", "fed3rft", "fedsmoo")  # no steps, a temperature, a rule not for rows
ALONE += ("localonly", "fedper", "fedrep", "keep", "pfedme", "apfl")  # two vectors a client


class Counter:
    """Counts the requests that were trained in stacks, and the largest stack."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.rows: list[int] = []
        monkeypatch.setattr(scheduler, "train", self.train)

    def train(
        self, chain: Any, layout: Layout, requests: Sequence[Request], trace: loop.RowTrace
    ) -> list[Trained]:
        self.rows.append(len(requests))
        return loop.train(chain, layout, requests, trace)


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Counter:
    return Counter(monkeypatch)


USUAL: dict[str, Any] = {
    "clients": uneven_clients(samples=250),
    "test": blobs(100, seed=5),
    "rounds": 3,
    "lr": 0.05,
    "batch_size": 16,
}


def small(algorithm: Any, model: Any = "logistic", **options: Any) -> fr.Result:
    """Seven unequal clients, all of them in every round, batches that do not divide them."""
    made = MODELS.get(model, model) if isinstance(model, str) else model
    settings: dict[str, Any] = {**USUAL, "model": made, "workers": 0, **options}
    return fr.run(algorithm, **settings)


def apart(x: Tensor, y: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Six clients of unequal size, each with tensors of its own."""
    sizes = [len(x) // 12, len(x) // 6, len(x) // 4, len(x) // 6, len(x) // 6]
    sizes.append(len(x) - sum(sizes))
    return list(zip(x.split(sizes), y.split(sizes), strict=True))


def agree(algorithm: Any, model: Any = "logistic", **options: Any) -> fr.Result:
    """Stacked and one by one: the same weights to 1e-6, the same cost."""
    one, other = (small(algorithm, model, stack=how, **options) for how in ("on", "off"))
    assert one.ledger.entries == other.ledger.entries
    difference = float((one.weights - other.weights).abs().max())
    assert difference <= 1e-6, difference
    return one


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", NAMES)
def test_every_algorithm_is_the_same_in_stacks(name: str, model: str, counter: Counter) -> None:
    own: dict[str, Any] = {"lr": None} if name == "diloco" else {}
    agree(WRAPPED.get(name, name), model, **own)
    assert bool(counter.rows) == (name not in ALONE)
    assert name in ALONE or max(counter.rows) > 1


@pytest.mark.parametrize(
    "options",
    [
        {"batch_size": 7, "epochs": 3},
        {"batch_size": "full", "epochs": 2},
        {"batch_size": 60},  # the whole of some clients, a part of others
        {"steps": [1, 2, 3, 4, 5, 6, 9]},
        {"steps": "uniform:1,6", "epochs": None},
        {"momentum": 0.9},
        {"weight_decay": 0.1},
        {"momentum": 0.5, "weight_decay": 0.01, "clip": 0.3},
        {"clip": 0.05},
        {"schedule": "exp:0.5"},
        {"faults": ["dropout:0.3", "stragglers:0.5,late=partial"]},
        {"dtype": "float64"},
        {"per_round": 3},
        {"test": None},
    ],
    ids=str,
)
@pytest.mark.parametrize("model", MODELS)
def test_every_setting_is_the_same_in_stacks(model: str, options: dict[str, Any]) -> None:
    agree("fedavg", model, **options)
    if not options.get("momentum"):
        agree("scaffold", model, **options)


@pytest.mark.parametrize(
    "text",
    [
        "scaffold:momentum_repair=outside",
        "scaffold:momentum_repair=raw",
        "fedprox:mu=0.5",
        "fednova:mu=0.1",
        "diloco:warmup=3,schedule=cosine,inner_lr=0.01",
    ],
)
def test_options_of_algorithms(text: str, counter: Counter) -> None:
    more: dict[str, Any] = {"momentum": 0.9} if "repair" in text else {}
    agree(text, "mlp", lr=None if "diloco" in text else 0.05, steps=[5, 4, 4, 3, 2, 2, 1], **more)
    assert counter.rows


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("fedprox:mu=0", "fedavg"),
        ("fedsam:rho=0", "fedavg"),
        ("ghbm:beta=0", "fedavg"),
        ("fedcm:alpha=1", "fedavg:weights=uniform"),
        ("scaffold:freeze_controls=true", "fedavg:weights=uniform"),
    ],
)
def test_a_correction_of_zero_changes_no_bit(text: str, plain: str, model: str) -> None:
    """Plain steps take a way of their own: it must round as the way with corrections does."""
    one, other = (small(name, model, stack="on") for name in (text, plain))
    assert torch.equal(one.weights, other.weights)


@pytest.mark.parametrize("bend", [nn.ReLU, nn.Tanh, nn.Sigmoid, nn.GELU])
def test_activations(bend: type[nn.Module], counter: Counter) -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.Flatten(), nn.Linear(8, 5, bias=False), bend(), nn.Linear(5, 4))

    agree("fedavg", model)
    assert max(counter.rows) > 1


@pytest.mark.parametrize(
    "loss",
    [
        nn.functional.mse_loss,
        nn.functional.l1_loss,
        nn.functional.binary_cross_entropy_with_logits,
    ],
)
def test_losses_of_numbers(loss: Any, counter: Counter) -> None:
    x, labels = blobs(200)
    y = nn.functional.one_hot(labels, 4).float()
    clients = apart(x, y)
    agree("fedavg", "mlp", clients=clients, test=(x, y), loss=loss)
    assert max(counter.rows) > 1


@pytest.fixture(scope="module")
def pools() -> Generator[list[Pool]]:
    pools = [Pool(1), Pool(2)]
    yield pools
    for pool in pools:
        pool.close()


@pytest.mark.parametrize("text", ["fedavg", "scaffold", "fedsam", "localghbm", "mimemom", "diloco"])
def test_the_same_bits_wherever_it_runs(text: str, pools: list[Pool]) -> None:
    own: dict[str, Any] = {} if text == "diloco" else {"lr": 0.05}
    settings = {**USUAL, "model": MODELS["mlp"], "lr": None, **own}
    task = api.task_of(text, settings)
    runs = [execute.execute(task, pool=pool) for pool in pools]
    runs += [execute.execute(task, workers=0, backend=kind) for kind in ("auto", "wire")]
    assert len({run.fingerprint for run in runs}) == 1
    assert all(run.ledger.entries == runs[0].ledger.entries for run in runs)


def test_images_and_clients_of_their_own_tensors(counter: Counter) -> None:
    x = torch.randn(90, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    y = torch.arange(90) % 4
    clients = apart(x, y)
    agree("fedavg", models.factory("logistic", (3, 4, 4), 4), clients=clients, test=(x, y))
    assert max(counter.rows) > 1


def test_clients_that_are_made_when_visited(counter: Counter) -> None:
    def make(client: int) -> tuple[np.ndarray, np.ndarray]:
        random = np.random.default_rng(client)
        n = 5 + 3 * client
        return random.normal(size=(n, 8)).astype(np.float32), random.integers(0, 4, n)

    sizes = np.array([5 + 3 * client for client in range(7)])
    x, y = (torch.from_numpy(part) for part in make(0))
    weights: list[Tensor] = []
    for how in ("on", "off"):
        task = api.task_of("scaffold", {**USUAL, "model": MODELS["mlp"], "stack": how})
        task = replace(task, split=fr.Split(x, y, (), make=make, sizes=sizes))
        weights.append(execute.execute(task, workers=0).weights)
    assert torch.allclose(weights[0], weights[1], rtol=0, atol=1e-6)
    assert max(counter.rows) > 1


class Twice(nn.Module):
    """Claims to be a chain and is none."""

    layers = ("fc",)

    def __init__(self) -> None:
        nn.Module.__init__(self)
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return 2 * self.fc(x)


def tied() -> nn.Module:
    square = nn.Linear(8, 8)
    return nn.Sequential(square, nn.ReLU(), square, nn.Linear(8, 4))


def hooked() -> nn.Module:
    def twice(_: nn.Module, args: Any, output: Tensor) -> Tensor:
        return 2 * output

    module = nn.Sequential(nn.Linear(8, 4))
    module[0].register_forward_hook(twice)
    return module


OTHERS: dict[str, Any] = {
    "own": Net,
    "untrue": Twice,
    "tied": tied,
    "hooked": hooked,
    "dropout": lambda: nn.Sequential(nn.Linear(8, 9), nn.Dropout(0.5), nn.Linear(9, 4)),
    "norm": lambda: nn.Sequential(nn.Linear(8, 9), nn.LayerNorm(9), nn.Linear(9, 4)),
    "conv": lambda: nn.Sequential(
        nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 2, 3), nn.Flatten(), nn.Linear(12, 4)
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_models_are_trained_one_by_one(kind: str, counter: Counter) -> None:
    one, other = (small("fedavg", OTHERS[kind], stack=how) for how in ("auto", "off"))
    assert torch.equal(one.weights, other.weights) and not counter.rows
    with pytest.raises(fr.InputError, match="stack=on"):
        small("fedavg", OTHERS[kind], stack="on")


def test_what_is_not_for_rows_falls_back_exactly(counter: Counter) -> None:
    x, y = blobs(200)
    y[::5] = -100  # not labelled
    unlabelled: dict[str, Any] = {"clients": [(x[:90], y[:90]), (x[90:], y[90:])], "test": None}
    cases: list[tuple[str, dict[str, Any]]] = [
        ("fedsmoo", {}),
        ("fedavg", {"loss": lambda z, y: nn.functional.cross_entropy(z, y)}),
        ("fedavg", {"loss": nn.functional.cross_entropy, **unlabelled}),
    ]
    for text, options in cases:
        one, other = (small(text, stack=how, **options) for how in ("auto", "off"))
        assert torch.equal(one.weights, other.weights) and not counter.rows, (text, options)


def test_large_batches_of_large_models_are_off_unless_asked(
    counter: Counter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "WORTH", 36 * 16 - 1)
    small("fedavg", rounds=1)
    assert not counter.rows
    small("fedavg", rounds=1, stack="on")
    assert counter.rows


def test_groups_are_a_rule_of_model_and_cohort() -> None:
    problem = api.task_of("fedavg", {**USUAL, "model": MODELS["logistic"]}).problem
    stacks = scheduler.scheduler_for(problem)
    assert stacks is not None
    sizes = np.full(100, 60)
    assert stacks.groups(10, sizes) == 4 and stacks.groups(10, sizes[:3]) == 3
    assert stacks.groups(10, np.full(1000, 60)) == 16  # of at most 64
    large = replace(problem, layout=Layout(("w",), ((scheduler.CACHED, 1),)))
    assert scheduler.StackScheduler(large, stacks._chain).groups(10, sizes) == 100


def test_neighbours_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = [small("fedavg", "mlp", steps=[1, 2, 3, 4, 5, 6, 9])]
    monkeypatch.setattr(scheduler, "CACHED", 1)
    runs.append(small("fedavg", "mlp", steps=[1, 2, 3, 4, 5, 6, 9]))
    assert torch.equal(runs[0].weights, runs[1].weights)


ENDED: list[int] = []


@dataclass(frozen=True)
class Failing(Algorithm[Server, None]):
    """Trains twice, and one client fails in between."""

    local: Local = Local()
    who: int = -1

    def server(self, p: Problem) -> Server:
        return Server(w=p.w0, opt=OptState(count=torch.zeros((), dtype=torch.int64)))

    def round(self, s: Server, cohort: Cohort) -> Server:
        return replace(s, w=s.w + cohort.ask(self.train, Down(w=s.w)).delta)

    def train(self, site: Site, down: Down, mine: None) -> tuple[Up, None]:
        try:
            with torch.no_grad():
                first = site.train(self.local, down.w)
            assert torch.is_grad_enabled()
            if site.client == self.who:
                raise ValueError("mine alone")
            second = site.train(self.local, first.w, purpose="again")
            return Up(delta=first.delta + second.delta), mine
        finally:
            ENDED.append(site.client)


def test_a_visit_may_train_twice(counter: Counter) -> None:
    local = Local(lr=0.05, batch_size=16)
    agree(Failing(local), lr=None, batch_size="default")
    assert max(counter.rows) > 1


def test_a_mistake_of_one_client_ends_the_run_and_the_others() -> None:
    ENDED.clear()
    with pytest.raises(ValueError, match="mine alone"):
        small(Failing(Local(batch_size=16), who=1), lr=None, batch_size="default")
    assert ENDED == [0, 1, 2] and torch.is_grad_enabled()  # 0 was alone, 2 waited beside 1


class NoWaiting(TorchDispatchMode):
    """Fails where the host would wait for a device: a tensor turned into a number."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        is_count = args and isinstance(args[0], Tensor) and args[0].dtype == torch.int64
        if func is torch.ops.aten._local_scalar_dense.default and not is_count:
            raise AssertionError("the host waits for the device inside the local loop")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("stack", ["off", "on"])
@pytest.mark.parametrize("name", NAMES)
def test_no_local_loop_waits_for_the_device(
    name: str, stack: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[str] = []

    def guarded(function: Any) -> Any:
        def call(*given: Any, **more: Any) -> Any:
            looked.append(name)
            with NoWaiting():
                return function(*given, **more)

        return call

    monkeypatch.setattr(site, "local_train", guarded(site.local_train))
    monkeypatch.setattr(loop._Stack, "train", guarded(loop._Stack.train))
    own: dict[str, Any] = {"lr": None} if name == "diloco" else {}
    options = {} if name == "fednova" else {"clip": 0.5}
    small(WRAPPED.get(name, name), "mlp", rounds=1, stack=stack, **options, **own)
    assert looked or name in ("fedsgd", "fed3r", "fed3rft")


@pytest.mark.parametrize("n", [1, 5, 16, 17, 40])
@pytest.mark.parametrize("size", [None, 1, 4, 16, 100])
def test_rows_are_the_minibatches(n: int, size: int | None) -> None:
    steps = 7
    room = size if size is not None and size < n else n + 3
    rows, sizes = table(n, size, steps, lambda: np.random.default_rng(3), room)
    plain = list(batches(n, size, steps, np.random.default_rng(3)))
    assert len(plain) == len(rows) == len(sizes) == steps
    for row, count, positions in zip(rows, sizes, plain, strict=True):
        expected = np.arange(n) if positions is None else positions
        assert row[:count].tolist() == expected.tolist()
        assert set(row[count:]) <= set(row[:count])


def mutated_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Padding counts like a sample."""
    right = loop.Minibatches.__init__

    def wrong(self: Any, *given: Any) -> None:
        right(self, *given)
        self._share = torch.full_like(self._share, 1 / self._share.shape[2])

    monkeypatch.setattr(loop.Minibatches, "__init__", wrong)


def mutated_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is finished goes on moving."""
    right = loop._Stack._some_steps

    def wrong(self: Any, which: range, rows: int) -> None:
        right(self, which, len(self.requests))

    monkeypatch.setattr(loop._Stack, "_some_steps", wrong)


def mutated_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everybody gets the result of another row."""
    right = loop._Stack.results
    monkeypatch.setattr(loop._Stack, "results", lambda self: right(self)[::-1])


@pytest.mark.parametrize("mutant", [mutated_share, mutated_end, mutated_order])
def test_mutants_are_caught(mutant: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant(monkeypatch)
    with pytest.raises((AssertionError, ValueError)):  # more minibatches than a client has
        agree("fedavg", "mlp")


def test_a_chain_is_what_the_model_computes() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Sequential(nn.Linear(6, 5), nn.GELU()), nn.Linear(5, 3))
    layout = Layout.of(module)
    chain = chain_of(module, layout, nn.functional.cross_entropy)
    assert chain is not None
    x, y = torch.randn(2, 4, 6), torch.randint(0, 3, (2, 4))
    weights = [torch.randn(2, *p.shape) for p in module.parameters()]
    share = torch.full((2, 4, 1), 0.25)
    made = chain.gradients(chain.bound(weights), x, chain.wanted(y, share), share, [])
    for row in range(2):
        own = {n: w[row].requires_grad_() for n, w in zip(layout.names, weights, strict=True)}
        output = torch.func.functional_call(module, own, (x[row],))
        loss = nn.functional.cross_entropy(output, y[row])
        for g, expected in zip(made, torch.autograd.grad(loss, list(own.values())), strict=True):
            assert torch.allclose(g[row], expected, atol=1e-6)
