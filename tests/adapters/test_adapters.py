"""Adapters: what must hold exactly, what is sent, and that everything else works unchanged."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from multiprocessing import active_children
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedrift as fr
from fedrift.adapters import layers
from fedrift.api import task_of
from fedrift.cli import code_of
from fedrift.config import algorithms
from fedrift.config.spec import Spec
from fedrift.core.problem import Problem
from fedrift.errors import InputError
from fedrift.storage.shared_memory import Base
from tests.support import printed
from tests.support.federations import Federation
from tests.support.problems import Net, Wide, blobs, own_bytes, small_run, uneven_clients

X, Y = blobs(40)
LORA = "lora:rank=2,alpha=4"


def problem_of(model: Any, adapter: str | None, x: Tensor = X, **more: Any) -> Problem:
    settings = {"model": model, "clients": [(x, Y)], "rounds": 1, "adapter": adapter, **more}
    return task_of("fedavg", settings).problem


def convolutions() -> nn.Module:
    kernel: dict[str, Any] = {"stride": 2, "padding": 1}
    body = nn.Conv2d(1, 6, 3, **kernel), nn.ReLU(), nn.Conv2d(6, 8, 3), nn.Flatten()
    return nn.Sequential(*body, nn.LazyLinear(4))


IMAGES = torch.randn(40, 1, 8, 8, generator=torch.Generator().manual_seed(3))


@pytest.mark.parametrize("how", ["separate", "freeze-A", "exact"])
@pytest.mark.parametrize(("model", "x"), [(Net, X), (convolutions, IMAGES)])
def test_at_the_start_the_function_is_unchanged_exactly(model: Any, x: Tensor, how: str) -> None:
    plain, view = problem_of(model, None, x), problem_of(model, f"{LORA},how={how}", x)
    before, after = plain.model.logits(plain.w0, x), view.model.logits(view.w0, x)
    assert torch.equal(before, after)
    factors = {**view.layout.named(view.w0), **view.rest}
    a = [t for name, t in factors.items() if "lora_A" in name]
    assert a and all(t.abs().max() > 0 for t in a), "A is drawn, B is 0"
    for name, t in factors.items():
        if "lora_B" in name:
            assert not t.any()
        elif "lora_A" in name:
            assert float(t.abs().max()) <= t[0].numel() ** -0.5  # Kaiming uniform, a = √5
    assert ("lora_A" in "".join(view.layout.names)) == (how != "freeze-A")


@pytest.mark.parametrize(("model", "x"), [(Net, X), (convolutions, IMAGES)])
def test_the_merged_module_is_plain_and_computes_the_same(model: Any, x: Tensor) -> None:
    view = problem_of(model, LORA, x)
    w = 0.1 * torch.randn(view.w0.shape, generator=torch.Generator().manual_seed(1))
    module = view.module(w, {}).eval()
    kinds = {type(layer) for layer in module.modules()}
    assert not any(hasattr(kind, "plain") for kind in kinds) and nn.Linear in kinds
    plain = problem_of(model, None, x)
    assert {n for n, _ in module.named_parameters()} == set(plain.layout.names)
    logits = view.model.logits(w, x)
    torch.testing.assert_close(module(x), logits, rtol=1e-5, atol=1e-6 * float(logits.abs().max()))


class HalfFrozen(Net):
    def __init__(self) -> None:
        super().__init__()
        self.hidden.requires_grad_(False)


@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "feddyn"])
def test_head_equals_training_with_a_frozen_body(algorithm: str) -> None:
    ours = small_run(algorithm, adapter="head")
    frozen = small_run(algorithm, model=HalfFrozen)
    assert torch.equal(ours.weights, frozen.weights) and ours.loss == frozen.loss
    assert ours.ledger.bytes_up == frozen.ledger.bytes_up


class Frozen(Net):
    """All but the biases."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden.weight.requires_grad_(False)
        self.out.weight.requires_grad_(False)


def test_bitfit_trains_biases_only() -> None:
    ours, frozen = small_run("fedavg", adapter="bitfit"), small_run("fedavg", model=Frozen)
    assert ours.problem.layout.names == ("hidden.bias", "out.bias")
    assert torch.equal(ours.weights, frozen.weights) and ours.loss == frozen.loss


# Averages, against a direct calculation: clients with one step each on W + s B A.


class Deep(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 5), nn.Tanh(), nn.Linear(5, 4))


PARTS = [(X[:12], Y[:12]), (X[12:20], Y[12:20]), (X[20:], Y[20:])]


def mean(tensors: Sequence[Tensor]) -> Tensor:
    shares = [len(y) / len(Y) for _, y in PARTS]
    return torch.stack([p * t for p, t in zip(shares, tensors, strict=True)]).sum(0)


def by_hand(rank: int, rounds: int, lr: float) -> tuple[list[Tensor], list[float]]:
    """W, A and B of both layers as FedEx-LoRA moves them, and the bias that it takes out."""
    view = problem_of(Deep, f"lora:rank={rank},alpha=3,how=exact", dtype="float64")
    scale, values = 3 / rank, {**view.rest, **view.layout.named(view.w0)}
    names = ("0", "2")
    w = [values[f"{n}.weight"] for n in names]
    bias = [values[f"{n}.bias"] for n in names]
    a = [values[f"{n}.lora_A.weight"] for n in names]
    b = [values[f"{n}.lora_B.weight"] for n in names]
    biases: list[float] = []
    for _ in range(rounds):
        trained: list[tuple[list[Tensor], list[Tensor]]] = []
        for x, y in PARTS:
            theirs = [t.clone().requires_grad_() for t in (*a, *b)]
            full = [w[i] + scale * theirs[2 + i] @ theirs[i] for i in (0, 1)]
            hidden = torch.tanh(x.double() @ full[0].T + bias[0])
            loss = nn.functional.cross_entropy(hidden @ full[1].T + bias[1], y)
            gradients = torch.autograd.grad(loss, theirs)
            moved = [(t - lr * g).detach() for t, g in zip(theirs, gradients, strict=True)]
            trained.append((moved[:2], moved[2:]))
        whole = [mean([w[i] + scale * own[1][i] @ own[0][i] for own in trained]) for i in (0, 1)]
        a, b = ([mean([own[k][i] for own in trained]) for i in (0, 1)] for k in (0, 1))
        left = [whole[i] - w[i] - scale * b[i] @ a[i] for i in (0, 1)]
        biases.append(float(sum((t / scale).square().sum() for t in left) ** 0.5))
        w = [w[i] + left[i] for i in (0, 1)]
    return [w[i] + scale * b[i] @ a[i] for i in (0, 1)], biases


HOW: dict[str, Any] = {
    "model": Deep,
    "clients": PARTS,
    "test": (X, Y),
    "rounds": 4,
    "steps": 1,
    "batch_size": "full",
    "lr": 2.0,
    "workers": 0,
    "dtype": "float64",
}


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_exact_is_the_mean_of_the_clients_full_matrices(rank: int) -> None:
    """With rank 4 = min(in, out) of the last layer nothing is lost in B A either."""
    adapter = f"lora:rank={rank},alpha=3,how=exact"
    result = fr.run("fedavg", adapter=adapter, **HOW)
    expected, biases = by_hand(rank, 4, 2.0)
    module = result.module()
    for layer, full in zip((module[0], module[2]), expected, strict=True):  # type: ignore[index]
        torch.testing.assert_close(layer.weight.detach(), full, rtol=1e-9, atol=1e-11)
    logged = [row["lora_bias"] for row in result.metrics]
    np.testing.assert_allclose(logged, biases, rtol=1e-6, atol=1e-12)
    assert logged[-1] > 1e-4, "there is a bias to take out"
    right = (module(X.double()).argmax(1) == Y).double().mean()
    assert result.accuracy[-1] == pytest.approx(float(right)), "what is evaluated is the whole"


@pytest.mark.parametrize("algorithm", ["fedper", "keep(fedavg):what=2.*"])
def test_exact_holds_for_the_layers_whose_factors_are_averaged(algorithm: str) -> None:
    """The last layer's factors stay at the clients, where they are trained from round to round."""
    adapter = "lora:rank=2,alpha=3,how=exact"
    result = fr.run(algorithm, adapter=adapter, **HOW)
    view = problem_of(Deep, adapter, dtype="float64")
    scale, values = 1.5, {**view.rest, **view.layout.named(view.w0)}
    w, bias = ([values[f"{n}.{part}"] for n in "02"] for part in ("weight", "bias"))
    a, b = ([values[f"{n}.lora_{part}.weight"] for n in "02"] for part in "AB")
    own = [(a[1], b[1])] * len(PARTS)
    for t in range(4):
        trained: list[list[Tensor]] = []
        for client, (x, y) in enumerate(PARTS):
            a1, b1, a2, b2 = (t.clone().requires_grad_() for t in (a[0], b[0], *own[client]))
            hidden = torch.tanh(x.double() @ (w[0] + scale * b1 @ a1).T + bias[0])
            output = hidden @ (w[1] + scale * b2 @ a2).T + bias[1]
            loss = nn.functional.cross_entropy(output, y)
            steps = zip((a1, b1, a2, b2), torch.autograd.grad(loss, (a1, b1, a2, b2)), strict=True)
            trained.append([(p - 2.0 * g).detach() for p, g in steps])
            own[client] = (trained[-1][2], trained[-1][3])
        product = mean([one[1] @ one[0] for one in trained])
        a[0], b[0] = mean([one[0] for one in trained]), mean([one[1] for one in trained])
        left = product - b[0] @ a[0]
        assert result.metrics[t]["lora_bias"] == pytest.approx(float(left.norm()))
        w[0] = w[0] + scale * left
    layer = result.problem.module(result.weights, result.buffers)[0]  # type: ignore[index]
    torch.testing.assert_close(layer.weight.detach(), w[0] + scale * b[0] @ a[0])
    assert "2.weight" not in result.buffers


def test_exact_with_half_of_a_product_at_the_clients_is_refused() -> None:
    with pytest.raises(InputError, match="clients keep one of those of '0'; use how=separate"):
        fr.run("keep(fedavg):what=0.lora_B", adapter="lora:rank=2,how=exact", **HOW)
    kept = fr.run("localonly", adapter="lora:rank=2,how=exact", **HOW)
    assert "lora_bias" not in kept.metrics[-1] and "0.weight" not in kept.buffers


def test_a_model_that_is_one_layer() -> None:
    layer = nn.Linear(8, 4)
    options: dict[str, Any] = {**HOW, "model": layer}
    for how in ("separate", "exact", "freeze-A"):
        result = fr.run("fedavg", adapter=f"lora:rank=2,how={how}", **options)
        assert set(result.problem.layout.names) <= {"lora_A.weight", "lora_B.weight"}
        whole, x = result.module(), X.double()
        assert type(whole) is nn.Linear and not torch.equal(whole.weight, layer.weight.double())
        right = (whole(x).argmax(1) == Y).double().mean()
        assert result.accuracy[-1] == pytest.approx(float(right))


def test_the_factors_of_the_head_are_the_heads() -> None:
    for algorithm in ("fedper", "fedrep", "keep(scaffold)"):
        result = fr.run(algorithm, adapter="lora:rank=2", **HOW)
        shared = result.problem.layout.named(result.weights - result.problem.w0)
        moved = {name for name, change in shared.items() if change.any()}
        assert moved == {"0.lora_A.weight", "0.lora_B.weight"}


def test_the_bias_of_separate_means_is_measured() -> None:
    apart = fr.run("fedavg", adapter="lora:rank=2,alpha=3", **HOW)
    first = by_hand(2, 1, 2.0)[1][0]  # the first round begins alike
    assert apart.metrics[0]["lora_bias"] == pytest.approx(first)
    assert apart.metrics[0]["lora_product"] > apart.metrics[0]["lora_bias"]
    assert apart.weights.numel() == apart.problem.layout.size
    assert not set(apart.buffers) & {"0.weight", "2.weight"}, "the base stays as it is"


def test_with_a_frozen_the_mean_is_exact() -> None:
    result = fr.run("fedavg", adapter="lora:rank=2,alpha=3,how=freeze-A", **HOW)
    assert "lora_bias" not in result.metrics[0]
    assert all("lora_B" in name for name in result.problem.layout.names)


# What is sent and kept is the adapter.


def test_the_ledger_counts_the_adapter() -> None:
    result = small_run("fedavg", adapter=LORA, rounds=2)
    size = 4 * (2 * (8 + 16) + 2 * (16 + 4))
    assert result.weights.nbytes == size
    assert result.ledger.bytes_up == result.ledger.bytes_down == 2 * 3 * size
    once = small_run("fedavg", adapter=f"{LORA},base=once", rounds=2)
    base = sum(t.nbytes for t in once.problem.rest.values())
    assert base == 4 * (8 * 16 + 16 + 16 * 4 + 4)
    met = {c for entry in once.ledger.entries for c in entry.asked}
    assert once.ledger.bytes_down == 2 * 3 * size + len(met) * base
    exact = small_run("fedavg", adapter=f"{LORA},how=exact", rounds=3)
    moved = 4 * (8 * 16 + 16 * 4)
    assert [e.cost.bytes_down - 3 * size for e in exact.ledger.entries] == [0, 3 * moved, 3 * moved]
    assert exact.ledger.bytes_up == 3 * 3 * size


@pytest.mark.parametrize("algorithm", ["scaffold", "ditto(fedavg)", "diloco"])
def test_what_is_kept_grows_with_the_adapter(algorithm: str, tmp_path: Path) -> None:
    """A base a thousand times larger: the same bytes for every parameter of the adapter."""
    sizes: dict[int, tuple[int, int]] = {}
    for width in (16, 512):
        folder = tmp_path / str(width)
        made = small_run(algorithm, model=partial(Wide, width), adapter=LORA, rounds=2, out=folder)
        files = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
        sizes[width] = made.weights.nbytes, files
    (few, small), (many, large) = sizes[16], sizes[512]
    assert large - small < 20 * (many - few) < 48 * 512**2 / 4  # of server, clients, checkpoint


NAMES = [
    f"{name}(fedavg)" if entry.is_wrapper else name
    for name, entry in algorithms.algorithms().items()
]
NEEDS_HEAD = ("fed3r", "fed3rft(fedavg)", "fedper", "fedrep", "keep(fedavg)")
PLAIN = ("fedsgd", "fed3r")


@pytest.mark.parametrize("algorithm", NAMES)
def test_every_algorithm_trains_an_adapter(algorithm: str) -> None:
    adapter = f"{LORA},on=hidden,also=head" if algorithm in NEEDS_HEAD else LORA
    made = small_run(algorithm, adapter=adapter, rounds=2)
    assert made.status == "done" and np.isfinite(made.loss[-1])
    assert made.weights.numel() == made.problem.layout.size < 120
    parts = [n for n in made.problem.layout.names if "lora" in n]
    assert len(parts) == (2 if algorithm in NEEDS_HEAD else 4)


@pytest.mark.parametrize("how", ["separate", "exact", "freeze-A"])
@pytest.mark.parametrize("algorithm", ["fedavg", "scaffold", "keep(fedavg):what=out.lora_B"])
def test_the_same_bits_in_workers_and_resumed(algorithm: str, how: str, tmp_path: Path) -> None:
    if how == "exact" and algorithm.startswith("keep"):
        return
    settings: dict[str, Any] = {"adapter": f"{LORA},how={how}", "rounds": 4}
    here = small_run(algorithm, **settings)
    assert small_run(algorithm, workers=2, **settings).fingerprint == here.fingerprint

    class Enough(fr.Callback):
        def on_round(self, report: fr.RoundReport) -> bool:
            if report.round == 2:
                raise KeyboardInterrupt
            return False

    with pytest.raises(KeyboardInterrupt):
        small_run(algorithm, out=tmp_path / "run", callbacks=[Enough()], **settings)
    again = small_run(algorithm, out=tmp_path / "run", **settings)
    assert again.fingerprint == here.fingerprint and again.ledger.rows() == here.ledger.rows()
    with pytest.raises(InputError, match=r"adapter was lora.*, is lora.*on=out"):
        small_run(algorithm, out=tmp_path / "run", **{**settings, "adapter": LORA + ",on=out"})


@pytest.mark.parametrize("how", ["separate", "exact"])
def test_the_same_bits_in_a_federation(how: str, tmp_path: Path) -> None:
    spec = Spec(
        algorithm="fedavg",
        data="digits:train=300,test=100",
        model="mlp:hidden=8,depth=1",
        adapter=f"lora:rank=2,how={how}",
        partition="dirichlet:0.5",
        clients=3,
        rounds=2,
        workers=0,
    )
    from fedrift.api import run_spec

    there = Federation(spec, tmp_path).everybody().run()
    assert there.fingerprint == run_spec(spec).fingerprint


def test_personal_factors_stay_at_the_clients() -> None:
    split = uneven_clients().held_out(0.3, 0)
    kept = "keep(fedavg):what=*.lora_B"
    made = small_run(kept, clients=split, adapter=LORA, rounds=3, eval_clients="every=1")
    assert made.ledger.entries[0].up["delta"].total == 3 * 4 * 2 * (8 + 16)
    assert len(made.client_accuracy) == 3 and "lora_bias" not in made.metrics[0]


class Normed(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Linear(8, 6), nn.BatchNorm1d(6), nn.Linear(6, 4))


def test_a_model_without_a_head_is_refused_as_the_adapters_and_not_the_algorithms_fault(
    capsys: pytest.CaptureFixture[str],
) -> None:
    data = ["--data", "python-docs:context=8,train=40,test=20", "--partition", "iid"]
    model = ["--model", "gpt:layers=1,width=8,heads=2", "--clients", "2", "--rounds", "1"]
    assert code_of(["run", "fedavg", *data, *model, "--adapter", "head"]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "adapter 'head': the model has no classifier head" in said
    assert "or use lora or bitfit" in said


@pytest.mark.parametrize("adapter", ["lora:rank=2", "bitfit", "head"])
def test_running_statistics_are_the_bases(adapter: str) -> None:
    made = small_run("fedavg", model=Normed, adapter=adapter, head="2")
    module = made.module()
    assert not module[1].running_mean.any() and not made.buffers  # type: ignore[index,operator]
    assert "buffers" not in made.ledger.entries[0].up


# What cannot be: one sentence each.


@pytest.mark.parametrize(
    ("adapter", "words"),
    [
        ("lor:rank=2", "unknown adapter 'lor'"),
        ("lora:rank=0", "option rank of lora must be a whole number of at least 1"),
        ("lora:rank=5", r"rank=5 is larger than layer 'out' \(4 × 16\) can hold; use rank=4"),
        ("lora:on=conv*", r"matches no layer of the model with on=conv\*.*are hidden, out"),
        ("lora:how=mean", "must be separate, freeze-A or exact, not 'mean'"),
        ("lora:ranks=2", r"has no option 'ranks' \(did you mean 'rank'\?\); write lora"),
        ("lora:8", "write lora"),
        ("lora:rank=2,also=body", "also=body matches no trained parameter"),
        ("bitfit:on=weight", "matches no bias of the model with on=weight; it has hidden.bias"),
        ("head:rank=2", "has no option 'rank'"),
        ("lora:rank=2,base=twice", "must be never or once"),
    ],
)
def test_a_wrong_adapter_is_refused(adapter: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        small_run("fedavg", adapter=adapter)


@pytest.mark.parametrize(
    ("algorithm", "options", "words"),
    [
        ("mime", {}, "how=exact needs clients that send nothing but the change"),
        ("fedbuff:buffer=2", {}, "stand on bases of different rounds"),
        ("fedavg", {"aggregate": "median", "weights": "uniform"}, "aggregate hides or changes"),
        ("fedavg", {"privacy": "gaussian:1,clip=1,delta=1e-5"}, "privacy hides or changes"),
    ],
)
def test_what_hides_the_factors_is_refused_with_exact(
    algorithm: str, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(InputError, match=words):
        small_run(algorithm, adapter=f"{LORA},how=exact", **options)


def test_fused_layers_take_the_factors_in() -> None:
    made = small_run("fedavg", model=attention, adapter="lora:rank=2,on=1.linear*", lr=0.5)
    module, plain = made.module().eval(), problem_of(attention, None, seed=0)
    with torch.no_grad():  # torch reads weights past the layers' own forward here
        given = made.problem.model.logits(made.weights, X)
        torch.testing.assert_close(given, module(X), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(given, plain.model.logits(plain.w0, X), atol=1e-3)


def attention() -> nn.Module:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (1, 8)), encoder, nn.Flatten(), nn.Linear(8, 4))


@pytest.mark.parametrize(
    ("adapter", "left"),
    [
        ("lora:rank=2", "1.self_attn, 1.self_attn.out_proj"),
        ("lora:rank=2,on=3+*.out_proj", "1.self_attn.out_proj"),
        ("lora:rank=2,on=1.linear*", ""),
        ("lora:rank=2,also=1.self_attn", "1.self_attn.out_proj"),
        ("bitfit", ""),
    ],
)
def test_layers_without_factors_are_told(adapter: str, left: str) -> None:
    """Projections of `nn.MultiheadAttention` are one packed matrix, which is no linear layer."""
    settings = {"model": attention, "clients": [(X, Y)], "rounds": 1, "adapter": adapter}
    (note,) = [n for n in task_of("fedavg", settings).notes if n.startswith("adapter")]
    assert note.partition("; LoRA knows no factors for ")[2].partition(", which stay")[0] == left


def test_attention_alone_is_refused_by_name() -> None:
    with pytest.raises(InputError, match=r"no layer .* on=\*attn.*no factors for 1.self_attn"):
        small_run("fedavg", model=attention, adapter="lora:on=*attn")


def test_the_rank_that_is_advised_fits_every_layer() -> None:
    with pytest.raises(InputError, match=r"'hidden' \(16 × 8\) can hold; use rank=4"):
        small_run("fedavg", adapter="lora:rank=9")


class Passed(nn.Module):
    """Reads the weight of a layer itself, but not in training."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) if self.training else x @ self.fc.weight.T


def test_a_layer_that_is_passed_by_is_refused() -> None:
    with pytest.raises(InputError, match="'fc' is not called when the model is evaluated"):
        small_run("fedavg", model=Passed, adapter="lora:rank=2")


def test_tied_weights_are_no_longer_tied_when_merged() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)
            self.second.weight = self.first.weight

        def forward(self, x: Tensor) -> Tensor:
            return self.second(torch.tanh(self.first(x)))

    made = small_run("fedavg", model=Tied, adapter="lora:rank=2,on=second")
    module, x = made.module(), X
    assert not torch.equal(module.second.weight, module.first.weight)  # type: ignore[arg-type]
    again = made.problem.model.logits(made.weights, x)
    torch.testing.assert_close(module(x).detach(), again, rtol=1e-4, atol=1e-5)


class Conv1D(nn.Module):
    """A linear layer whose weight is inputs × outputs, as in GPT-2 of the library transformers."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(inputs, outputs) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


@pytest.mark.parametrize("how", ["separate", "exact"])
def test_transposed_layers(how: str, tmp_path: Path) -> None:
    def make() -> nn.Module:
        return nn.Sequential(Conv1D(8, 8), nn.Tanh(), Conv1D(8, 4))

    made = small_run("fedavg", model=make, adapter=f"{LORA},how={how}", lr=0.5)
    assert made.metrics[-1]["lora_bias"] > 0
    module = made.module()
    assert [type(layer) for layer in module][::2] == [Conv1D, Conv1D]  # type: ignore[union-attr]
    right = (module(blobs(200, seed=5)[0]).argmax(1) == blobs(200, seed=5)[1]).double().mean()
    assert made.accuracy[-1] == pytest.approx(float(right), abs=0.006)
    if how == "separate":
        made.export(tmp_path)
        assert '"fan_in_fan_out": true' in (tmp_path / "adapter_config.json").read_text()


def test_a_factory_that_gives_the_same_module_is_left_alone() -> None:
    module = Net()
    small_run("fedavg", model=lambda: module, adapter=LORA, rounds=1)
    assert type(module.hidden) is nn.Linear and not list(layers.adapted_layers(module))


# Files.


def test_exported_as_peft_names_it(tmp_path: Path) -> None:
    import json

    from safetensors.torch import load_file

    made = small_run("fedavg", adapter="lora:rank=2,alpha=4,on=hidden,also=head")
    folder = made.export(tmp_path / "adapter")
    tensors = load_file(folder / "adapter_model.safetensors")
    assert set(tensors) == {
        "base_model.model.hidden.lora_A.weight",
        "base_model.model.hidden.lora_B.weight",
        "base_model.model.out.weight",
        "base_model.model.out.bias",
    }
    assert tensors["base_model.model.hidden.lora_A.weight"].shape == (2, 8)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert config["r"] == 2 and config["lora_alpha"] == 4 and config["target_modules"] == ["hidden"]
    assert config["modules_to_save"] == ["out"]
    whole = load_file(made.export(tmp_path / "merged", "merged") / "model.safetensors")
    net = Net()
    net.load_state_dict(whole)
    torch.testing.assert_close(net(X), made.module()(X))


def refused(made: fr.Result, what: str, words: str, folder: Path) -> None:
    with pytest.raises(InputError, match=words):
        made.export(folder, what)


def test_what_cannot_be_exported(tmp_path: Path) -> None:
    refused(small_run("fedavg", rounds=1), "adapter", "had no adapter", tmp_path)
    exact = small_run("fedavg", adapter=f"{LORA},how=exact", rounds=1)
    refused(exact, "adapter", "the base has moved too", tmp_path)
    refused(exact, "all", "what is 'all', not adapter or merged", tmp_path)
    file = tmp_path / "file"
    file.write_text("")
    refused(exact, "merged", "cannot be written", file / "in")


def runs(adapters: Sequence[str], seed: Sequence[int]) -> list[fr.Result]:
    return [
        small_run("fedavg", adapter=a, seed=s, clients=uneven_clients(seed=i), rounds=2)
        for i, (a, s) in enumerate(zip(adapters, seed, strict=True))
    ]


@pytest.mark.parametrize("adapter", ["lora:rank=2", "head", "bitfit"])
def test_adapters_are_not_aligned(adapter: str) -> None:
    """Factors look like a chain of layers, and the neurons between them are the base's."""
    made = [small_run("fedavg", adapter=adapter, rounds=1) for _ in range(2)]
    with pytest.raises(InputError, match=r"'aligned' renumbers neurons, and .* has frozen"):
        fr.merge(made, "aligned")


def test_adapters_of_one_base_are_merged() -> None:
    tests = [blobs(50, seed=1), blobs(50, seed=2)]
    merged = fr.merge(runs([LORA, LORA], [0, 0]), "ties:0.5", tests=tests)
    assert merged.weights.numel() == 88 and not list(layers.adapted_layers(merged.module()))
    with pytest.raises(InputError, match="stand on other frozen parameters"):
        fr.merge(runs([LORA, LORA], [0, 1]), tests=tests)
    exact = f"{LORA},how=exact"  # whose base moves, in each run by its own
    with pytest.raises(InputError, match="stand on other frozen parameters"):
        fr.merge(runs([exact, exact], [0, 0]), tests=tests)


def test_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from fedrift.cli import code_of

    small = ["--model", "mlp:hidden=8,depth=1", "--rounds", "1", "--workers", "0", "--quiet"]
    for adapter, words in (
        ("lora:rank=9", "rank=9 is larger than layer 'fc1' (8 × 64)"),
        ("lora:on=conv", "matches no layer of the model with on=conv"),
        ("lora:rank=x", "option rank of lora must be a whole number"),
    ):
        assert code_of(["run", "fedavg", "--adapter", adapter, *small]) == 2
        said = " ".join(capsys.readouterr().err.split())
        assert words in said and said.count("error") == 1
    run = str(tmp_path / "run")
    assert code_of(["run", "fedavg", "--adapter", "lora:rank=2", *small, "--out", run]) == 0
    assert code_of(["export", run, str(tmp_path / "out")]) == 0
    assert {p.name for p in (tmp_path / "out").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert code_of(["export", run, str(tmp_path / "out"), "--what", "merged"]) == 0
    assert code_of(["export", run, str(tmp_path / "out"), "--what", "base"]) == 2
    assert code_of(["verify", run]) == 0


def test_workers_share_the_base() -> None:
    from fedrift.backends import worker, worker_messages
    from fedrift.backends.visit import Visitor

    class Large(nn.Sequential):
        def __init__(self) -> None:
            super().__init__(nn.Linear(8, 500), nn.ReLU(), nn.Linear(500, 500), nn.Linear(500, 4))

    settings = {"model": Large, "clients": uneven_clients(), "rounds": 1, "adapter": LORA}
    made = task_of("fedavg", settings)
    visitor = Visitor(made.algorithm, made.problem, made.split, None)
    setup, trees = worker_messages.described(visitor, made.split, None)
    assert len(worker_messages.with_paths(setup)) < 200_000 < 4 * 500 * 500
    assert sum(t.nbytes for t in trees["base"].values()) > 1_000_000
    held = made.problem.base
    assert isinstance(held, Base)
    told = worker_messages.without_paths(worker_messages.with_paths(setup))
    run = worker.Run(told, trees, held)
    problem = run.visitor.problem
    weight = problem.model.module.get_submodule("2").weight
    assert problem.rest["2.weight"].data_ptr() == trees["base"]["2.weight"].data_ptr()
    slot = problem.model.memory._slots["2.weight"]
    assert slot.value.data_ptr() == trees["base"]["2.weight"].data_ptr(), "no copy to put back from"
    before = made.problem.rest["2.weight"].clone()
    with torch.no_grad():
        weight.add_(1.0)  # type: ignore[operator]
    assert torch.equal(made.problem.rest["2.weight"], before), "what it writes nobody else sees"
    assert torch.equal(made.problem.model.module.get_submodule("2").weight, before)  # type: ignore[arg-type]
    problem.model.memory.put_back()
    assert torch.equal(weight, before)  # type: ignore[arg-type]


class Neighbours(fr.Callback):
    """What every worker has of its own after a round."""

    def __init__(self) -> None:
        self.held: list[int] = []

    def on_round(self, report: Any) -> None:
        self.held = [own_bytes(child.pid or 0) for child in active_children()]


@pytest.mark.skipif(
    not Path("/proc/self/smaps_rollup").exists(),
    reason="reads what workers hold from /proc, which only Linux has",
)
@pytest.mark.parametrize("is_object", [True, False])
def test_no_worker_holds_a_base_of_its_own(is_object: bool) -> None:
    held: dict[int, list[int]] = {}
    for width in (8, 1024):
        look = Neighbours()
        model = Wide(width) if is_object else partial(Wide, width)
        small_run("fedavg", model=model, adapter=LORA, workers=2, rounds=2, callbacks=[look])
        held[width] = look.held
    assert len(held[8]) == len(held[1024]) == 2
    assert max(held[1024]) - min(held[8]) < 48 * 1024**2 / 2


class Writing(Net):
    """Writes to what is frozen, whenever it is evaluated."""

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            with torch.no_grad():
                self.hidden.weight.mul_(0.9)
        return super().forward(x)


def test_what_a_model_writes_to_its_base_is_its_own() -> None:
    alone = small_run("fedavg", model=Writing, adapter=LORA, workers=0)
    assert (
        alone.fingerprint == small_run("fedavg", model=Writing, adapter=LORA, workers=2).fingerprint
    )


# The guide's examples, as they are printed.


class Config(SimpleNamespace):
    """Stands in for a config of the library transformers."""


class Language(nn.Module):
    """Stands in for a language model of that library: inputs by name, an object with logits."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocab_size, config.n_embd)
        self.block = nn.ModuleDict({"c_attn": nn.Linear(config.n_embd, config.n_embd)})
        self.head = nn.Linear(config.n_embd, config.vocab_size)

    def forward(self, input_ids: Tensor) -> SimpleNamespace:
        hidden = torch.tanh(self.block["c_attn"](self.wte(input_ids)))
        return SimpleNamespace(logits=self.head(hidden))


@pytest.mark.parametrize("example", ["own module", "stand-in", "transformers"])
def test_the_guides_examples_run_as_printed(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, foreign = printed.texts("docs/guides/adapters.md", "python")
    text = own if example == "own module" else foreign
    assert len([line for line in text.splitlines() if line.strip()]) <= 15
    if example == "transformers":
        pytest.importorskip("transformers", reason="the library transformers is not installed")
    elif example == "stand-in":
        library = ModuleType("transformers")
        library.GPT2Config, library.GPT2LMHeadModel = Config, Language  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "transformers", library)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(text.replace("rounds=", "workers=0, rounds="), names)
    assert names["result"].status == "done"
    (folder,) = tmp_path.iterdir()
    assert (folder / "adapter_model.safetensors").is_file()
    assert all("lora" in name for name in names["result"].problem.layout.names)
