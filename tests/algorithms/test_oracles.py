"""Oracles of single algorithms: closed forms, other libraries' optimizers, exact displacements."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedrift.algorithms.swa import Cycle
from fedrift.core import rate
from tests.support.product import (
    MINIMISER,
    Inside,
    Point,
    Trial,
    alternating,
    generator,
    golden_trial,
    path,
    uneven_quadratic,
)

A = torch.tensor([[1.0, 2.0], [4.0, 1.0]], dtype=torch.float64)
B = torch.tensor([[3.0, 1.0], [-1.0, 2.0]], dtype=torch.float64)


def linear(output: tuple[Tensor, Tensor], _: Tensor) -> Tensor:
    """Mean of ⟨q, w⟩: a constant gradient."""
    q, w = output
    return (q * w).sum() / len(q)


def linear_trial(rounds: int = 1, **local: Any) -> Trial:
    """Three clients with constant gradients, weighed 2 : 1 : 3 by their samples."""
    q = torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.5, 0.25]], dtype=torch.float64)
    clients = tuple((q[i].repeat(n, 1), q[i].repeat(n, 1)) for i, n in enumerate((2, 1, 3)))
    settings = {"lr": 0.1, "steps": 5, "batch_size": None, **local}
    return Trial(Point, clients, settings, rounds, loss=linear)


def pull(trial: Trial) -> Tensor:
    """Σ p_i q_i."""
    sizes = torch.tensor([len(x) for x, _ in trial.clients], dtype=torch.float64)
    return (sizes / sizes.sum()) @ torch.stack([x[0] for x, _ in trial.clients])


def deltas(inside: Inside, round: int) -> list[Tensor]:
    return [v.up["delta"] for v in inside.backend.visits if v.call.round == round and v.up]


# FedSGD, FedAvg


def test_one_minibatch_step_of_equal_clients_is_a_step_on_the_joint_batch() -> None:
    """FedAvg, K = 1, batch B, M clients of equal size = SGD with a batch of M·B."""
    base = uneven_quadratic((6, 6, 6)).everyone().working(steps=1, batch_size=2)
    trial = replace(base, rounds=3)
    w = torch.zeros(2, dtype=torch.float64)
    for t, found in enumerate(path("fedavg", trial)):
        a, b = [], []
        for i, (x, y) in enumerate(trial.clients):
            chosen = torch.from_numpy(generator(0, "order", t, i).permutation(6)[:2])
            a.append(x[chosen])
            b.append(y[chosen])
        joint_a, joint_b = torch.cat(a), torch.cat(b)
        w = w - 0.1 * (joint_a * (w - joint_b)).mean(0)
        assert float((found - w).abs().max()) < 1e-14


# FedAvgM, FedAdagrad, FedAdam, FedYogi


@pytest.mark.parametrize(
    ("text", "make"),
    [
        ("fedavgm", lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9)),
        (
            "fedavgm:nesterov=true",
            lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.9, nesterov=True),
        ),
        (
            "fedadam:v_init=0,bias_correction=true,beta2=0.999,tau=1e-4",
            lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.9, 0.999), eps=1e-4),
        ),
        (
            "fedadagrad:v_init=0.01,tau=1e-4",
            lambda p: torch.optim.Adagrad(p, lr=0.1, initial_accumulator_value=0.01, eps=1e-4),
        ),
    ],
    ids=["heavy ball", "nesterov", "adam", "adagrad"],
)
def test_the_server_steps_as_torch_does_on_minus_the_update(text: str, make: Any) -> None:
    inside = Inside(text, replace(uneven_quadratic(), rounds=6))
    inside.run()
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    optimizer = make([w])
    for t, report in enumerate(inside.reports):
        visits = [v for v in inside.backend.visits if v.call.round == t]
        sizes = [float(inside.split.sizes[v.client]) for v in visits]
        mean: Any = sum(n * v.up["delta"] for n, v in zip(sizes, visits, strict=True))
        w.grad = -mean / sum(sizes)
        optimizer.step()
        assert float((report.weights - w.detach()).abs().max()) < 1e-13


def test_adam_without_memory_takes_steps_of_bounded_size() -> None:
    """β1 = β2 = 0: |step| = η_s |D|/(|D| + τ)."""
    trial = linear_trial()
    moved = -0.1 * 5 * pull(trial)
    (w,) = path("fedadam:beta1=0,beta2=0,tau=0.01,server_lr=0.5", trial)
    expected = 0.5 * moved.abs() / (moved.abs() + 0.01)
    assert w.abs().tolist() == pytest.approx(expected.tolist(), abs=1e-15)
    assert torch.equal(w.sign(), moved.sign())


def test_yogi_moves_v_by_a_fixed_share() -> None:
    """|v⁺ − v| = (1−β2) D², towards D²."""
    inside = Inside("fedyogi:beta2=0.9", replace(uneven_quadratic(), rounds=5))
    v = inside.algorithm.server(inside.problem).opt.slots[1]
    inside.run()
    for t, report in enumerate(inside.reports):
        visits = [x for x in inside.backend.visits if x.call.round == t]
        sizes = [float(inside.split.sizes[x.client]) for x in visits]
        mean: Any = sum(n * x.up["delta"] for n, x in zip(sizes, visits, strict=True))
        square = (mean / sum(sizes)) ** 2
        new = report.state.opt.slots[1]
        assert (new - v).abs().tolist() == pytest.approx((0.1 * square).tolist(), rel=1e-9)
        assert torch.equal((new - v).sign(), (square - v).sign())
        v = new


@pytest.mark.parametrize("text", ["fedadagrad", "fedadam:beta1=0", "fedyogi:beta1=0"])
def test_a_coordinate_without_update_stays(text: str) -> None:
    q = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    trial = replace(linear_trial(3), clients=((q, q),))
    assert all(w[1] == 0.0 and w[0] != 0.0 for w in path(text, trial))


# FedProx


def test_fedprox_contracts_towards_the_blend() -> None:
    """Per step 1 − η(a+μ) towards (ab + μwᵗ)/(a+μ)."""
    mu, eta, steps = 0.7, 0.1, 5
    trial = replace(golden_trial(), clients=golden_trial().clients[:1], rounds=3)
    w = torch.zeros(2, dtype=torch.float64)
    for found in path(f"fedprox:mu={mu}", trial):
        target = (A[0] * B[0] + mu * w) / (A[0] + mu)
        w = target + (1 - eta * (A[0] + mu)) ** steps * (w - target)
        assert float((found - w).abs().max()) < 1e-14


def test_a_stronger_spring_means_shorter_updates() -> None:
    lengths: list[float] = []
    for mu in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0):
        inside = Inside(f"fedprox:mu={mu}", golden_trial(rounds=1))
        inside.run()
        lengths.append(float(deltas(inside, 0)[0].norm()))
    assert lengths == sorted(lengths, reverse=True) and len(set(lengths)) == 6


# FedNova


def length(steps: int, rho: float, mu: float, eta: float) -> float:
    """Displacement / η of the local solver on a constant unit gradient, by running it."""
    v = x = 0.0
    for _ in range(steps):
        v = rho * v + 1.0 + mu * x
        x -= eta * v
    return -x / eta


@pytest.mark.parametrize("rho", [0.0, 0.9])
@pytest.mark.parametrize("mu", [0.0, 0.5])
@pytest.mark.parametrize("tau_eff", ["auto", "a", "steps"])
def test_fednova_on_linear_losses(rho: float, mu: float, tau_eff: str) -> None:
    """One round moves exactly −η τ_eff Σ p_i q_i, whatever τ_i, momentum and proximal term."""
    counts = (2, 7, 4)
    trial = linear_trial(steps=counts, momentum=rho)
    (w,) = path(f"fednova:mu={mu},tau_eff={tau_eff}", trial)
    shares = (2 / 6, 1 / 6, 3 / 6)
    lengths = [length(k, rho, mu, 0.1) for k in counts]
    by_steps = tau_eff == "steps" or (tau_eff == "auto" and mu > 0)
    common = sum(
        p * (k if by_steps else a) for p, k, a in zip(shares, counts, lengths, strict=True)
    )
    assert w.tolist() == pytest.approx((-0.1 * common * pull(trial)).tolist(), abs=1e-13)


def test_fednova_lengths_are_the_closed_forms() -> None:
    rho, mu, eta, k = 0.9, 0.5, 0.1, 7
    assert length(k, 0.0, 0.0, eta) == pytest.approx(k)
    momentum = (k - rho * (1 - rho**k) / (1 - rho)) / (1 - rho)
    assert length(k, rho, 0.0, eta) == pytest.approx(momentum)
    assert length(k, 0.0, mu, eta) == pytest.approx((1 - (1 - eta * mu) ** k) / (eta * mu))


def test_fednova_server_momentum() -> None:
    """u = (wᵗ − w̃)/η; v ← γv + u; w ← w − ηv."""
    trial = replace(uneven_quadratic(), rounds=4)
    inside = Inside("fednova:gamma=0.6", trial)
    inside.run()
    w, v = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for t, report in enumerate(inside.reports):
        visits = [x for x in inside.backend.visits if x.call.round == t]
        sizes = [float(inside.split.sizes[x.client]) for x in visits]
        total = sum(sizes)
        d: Any = sum(n / total * x.up["d"] for n, x in zip(sizes, visits, strict=True))
        a = sum(n / total * x.up["a"] for n, x in zip(sizes, visits, strict=True))
        v = 0.6 * v - a * d / 0.1
        w = w - 0.1 * v
        assert float((report.weights - w).abs().max()) < 1e-13


# SCAFFOLD, FedDyn


def test_scaffold_weighed_by_samples_reaches_the_weighed_minimiser() -> None:
    trial = golden_trial((1, 3), rounds=60)
    share = torch.tensor([0.25, 0.75], dtype=torch.float64)[:, None]
    expected = ((share * A * B).sum(0) / (share * A).sum(0)).tolist()
    assert path("scaffold:objective=samples", trial)[-1].tolist() == pytest.approx(expected)
    assert path("scaffold", trial)[-1].tolist() == pytest.approx(MINIMISER)


@pytest.mark.parametrize("copies", [4, 6, 8])
def test_scaffold_with_more_clients(copies: int) -> None:
    """The same two functions on N clients: c must be divided by N."""
    trial = golden_trial((1,) * copies, rounds=30)
    assert path("scaffold", trial)[-1].tolist() == pytest.approx(MINIMISER, abs=1e-6)


def test_feddyn_at_rest() -> None:
    """Σ h_i = 0 and h_i = ∇F_i(w*)."""
    inside = Inside("feddyn:alpha=1", golden_trial(rounds=70))
    rows: list[Any] = []
    inside.run(lambda report: rows.append([inside.client(i).h.clone() for i in range(2)]))
    best = torch.tensor(MINIMISER, dtype=torch.float64)
    for i, h in enumerate(rows[-1]):
        assert h.tolist() == pytest.approx((A[i] * (best - B[i])).tolist(), abs=1e-8)
    assert float(torch.stack(rows[-1]).sum(0).abs().max()) < 1e-9


def test_the_mean_model_of_feddyn_is_evaluated_beside_it() -> None:
    inside = Inside("feddyn:alpha=1", golden_trial(rounds=3))
    inside.run()
    before = inside.reports[1].weights
    mean: Any = before + sum(deltas(inside, 2)) / 2
    assert float((inside.reports[2].state.mean - mean).abs().max()) < 1e-15


# Sharpness


def test_in_one_dimension_the_ascent_is_the_sign() -> None:
    """f = ½a(w−b)²: the gradient is taken at w + ρ sign(g)."""
    a, b = torch.tensor([[2.0, 0.0]]).double(), torch.tensor([[3.0, 0.0]]).double()
    trial = replace(golden_trial(), clients=((a, b),), rounds=1).working(steps=1)
    (w,) = path("fedsam:rho=0.1", trial)
    assert w.tolist() == pytest.approx([-0.1 * 2.0 * (-0.1 - 3.0), 0.0])


def test_asam_follows_the_scale_of_the_weights() -> None:
    """w → sw, loss → L(·/s), η_a → sη_a scales e by s: d becomes d/s, so η → s²η gives s·path."""
    scale = 3.0
    a, b = A[:1], B[:1]
    base = replace(golden_trial(), clients=((a, b),), rounds=4)
    wide = replace(base, clients=((a / scale**2, scale * b),)).working(lr=0.1 * scale**2)
    first = path("fedasam:rho=0.3,eta_a=0.2", base)
    second = path(f"fedasam:rho=0.3,eta_a={0.2 * scale}", wide)
    for w, v in zip(first, second, strict=True):
        assert v.tolist() == pytest.approx((scale * w).tolist(), abs=1e-12)


def test_fedsmoo_begins_as_fedsam() -> None:
    """First round, first step, s = μ = 0: the same perturbation, so the same displacement."""
    trial = golden_trial(rounds=1).working(steps=1)
    ends: list[list[Tensor]] = []
    for text in ("fedsmoo:r=0.1,gamma=1", "fedsam:rho=0.1,weights=uniform"):
        inside = Inside(text, trial)
        inside.run()
        ends.append(deltas(inside, 0))
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


# FedGF


def test_full_trust_takes_all_gradients_at_one_point() -> None:
    """T_D < 0: c = 1 from round 1, and Δ_i = −ηK ∇F_i(w̃)."""
    inside = Inside("fedgf:rho=0.1,rho_g=0.3,threshold=-1", golden_trial(rounds=4))
    inside.run()
    assert [report.state.c for report in inside.reports] == [1.0] * 4
    for t in (1, 2, 3):
        ahead = inside.reports[t - 1].state.up
        for i, delta in enumerate(deltas(inside, t)):
            gradient = A[i] * (ahead - B[i])
            assert delta.tolist() == pytest.approx((-0.1 * 5 * gradient).tolist(), abs=1e-12)


def test_no_trust_without_drift() -> None:
    inside = Inside("fedgf:threshold=1e9", golden_trial(rounds=5))
    inside.run()
    assert [report.state.c for report in inside.reports] == [0.0] * 5


# SWA, WiMA


def test_the_rate_of_a_cycle() -> None:
    found = [rate(Cycle(0.01, 20, 10, 1e-4), t) for t in range(18, 41)]
    cycle = [0.00901, 0.00802, 0.00703, 0.00604, 0.00505, 0.00406, 0.00307, 0.00208, 0.00109, 1e-4]
    assert found == pytest.approx([0.01, 0.01, *cycle, *cycle, 0.00901])


@pytest.mark.parametrize(("official", "captured"), [("false", (4, 6, 8)), ("true", (5, 7))])
def test_which_models_are_captured(official: str, captured: tuple[int, ...]) -> None:
    """t_s = 2, c = 2 of 8 rounds: after the last round of each cycle, or after the first."""
    inside = Inside(
        f"swa(fedavg):start=0.25,cycle=2,lr2=0.01,official_offset={official}",
        golden_trial(rounds=8),
    )
    inside.run()
    models = [report.state.inner.w for report in inside.reports]
    expected = torch.stack([models[t - 1] for t in captured]).mean(0)
    assert inside.reports[-1].weights.tolist() == pytest.approx(expected.tolist(), abs=1e-14)
    assert inside.reports[-1].state.n == len(captured)


def test_until_a_model_is_captured_the_first_is_shown() -> None:
    inside = Inside("swa(fedavg):start=2,cycle=3", golden_trial(rounds=6))
    inside.run()
    first = inside.reports[1].state.inner.w
    shown = [torch.equal(report.weights, first) for report in inside.reports]
    assert shown == [False, True, True, True, False, False]


def test_the_average_of_a_constant_path_is_exact() -> None:
    still = replace(golden_trial(), clients=((A[:1], torch.zeros(1, 2).double()),), rounds=9)
    for text in ("swa(fedavg):start=0", "wima(fedavg):window=4"):
        assert all(torch.equal(w, torch.zeros(2).double()) for w in path(text, still))


# GHBM, LocalGHBM, FedHBM


@pytest.mark.parametrize(("lr", "steps"), [(0.1, 5), (0.02, 5), (0.1, 1)])
def test_the_push_of_ghbm_does_not_depend_on_rate_and_steps(lr: float, steps: int) -> None:
    """On a constant gradient a round moves −ηKq + (β/τ)(wᵗ − wᵗ⁻τ)."""
    trial = linear_trial(6, lr=lr, steps=steps)
    found = [torch.zeros(2, dtype=torch.float64), *path("ghbm:tau=2,beta=0.8", trial)]
    for t in range(6):
        push = 0.4 * (found[t] - found[t - 2]) if t >= 2 else torch.zeros(2).double()
        expected = found[t] - lr * steps * pull(trial) + push
        assert float((found[t + 1] - expected).abs().max()) < 1e-13


def test_fedhbm_corrects_at_the_current_iterate() -> None:
    """Second visit, K = 1: d = g + βC/(ηJ)(a_i − wᵗ), with a_i the client's own last model."""
    trial = replace(alternating(golden_trial(rounds=3)).working(steps=1))
    one, two, three = path("fedhbm:beta=0.6", trial)
    anchor = one  # client 0 ended its first visit there
    d = A[0] * (two - B[0]) + 0.6 * 0.5 / 0.1 * (anchor - two)
    assert three.tolist() == pytest.approx((two - 0.1 * d).tolist(), abs=1e-14)


# Mime


def test_mime_adds_decay_once_after_the_base_step() -> None:
    """K = 1: w ← w − η((1−β)c + βs + wd·w); s never sees the decay."""
    trial = replace(golden_trial(rounds=4)).working(steps=1, weight_decay=0.05)
    w, s = torch.zeros(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    for found in path("mimemom:beta=0.8", trial):
        c = (A * (w - B)).mean(0)
        w, s = w - 0.1 * (0.2 * c + 0.8 * s + 0.05 * w), 0.2 * c + 0.8 * s
        assert float((found - w).abs().max()) < 1e-14


# DiLoCo


def test_one_worker_of_diloco_is_a_plain_run_of_adamw() -> None:
    """lr_out = 1, μ = 0: T·H steps of torch's AdamW, moments and count across rounds."""
    trial = replace(golden_trial(), clients=golden_trial().clients[:1], rounds=6).working(lr=0.01)
    text = "diloco:inner_wd=0.1,server_lr=1,server_momentum=0"
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    adamw = torch.optim.AdamW([w], lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1)
    for found in path(text, trial):
        for _ in range(5):
            w.grad = A[0] * (w.detach() - B[0])
            adamw.step()
        assert float((found - w.detach()).abs().max()) < 1e-13


def test_one_inner_step_is_synchronous_sgd_with_nesterov() -> None:
    trial = golden_trial(rounds=8).working(steps=1)
    w = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    outer = torch.optim.SGD([w], lr=0.7, momentum=0.9, nesterov=True)
    for found in path("diloco:inner=sgd,inner_wd=0", trial):
        w.grad = 0.1 * (A * (w.detach() - B)).mean(0)
        outer.step()
        assert float((found - w.detach()).abs().max()) < 1e-13


def test_warm_up_and_cosine_count_inner_steps() -> None:
    """Constant gradient, inner SGD: the displacements of the rounds are sums of the rates."""
    trial = linear_trial(4, lr=0.1, steps=3)
    text = "diloco:inner=sgd,inner_wd=0,warmup=4,schedule=cosine,server_lr=1,server_momentum=0"
    found = [torch.zeros(2, dtype=torch.float64), *path(text, trial)]
    rates = [0.1 * (k + 1) / 4 for k in range(4)]
    rates += [0.05 * (1 + torch.cos(torch.tensor(torch.pi * k / 8)).item()) for k in range(8)]
    mean = torch.stack([x[0] for x, _ in trial.clients]).mean(0)
    for t in range(4):
        expected = -sum(rates[3 * t : 3 * t + 3]) * mean
        assert (found[t + 1] - found[t]).tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_clipping_shortens_the_gradient_to_its_limit() -> None:
    q = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    trial = replace(linear_trial(1, steps=1), clients=((q, q),))
    text = "diloco:inner=sgd,inner_wd=0,clip=1,server_lr=1,server_momentum=0"
    assert path(text, trial)[0].tolist() == pytest.approx([-0.06, -0.08])
