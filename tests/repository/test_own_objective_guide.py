"""The guide to one's own local objective: its MOON is short, conforms, is FedAvg where μ = 0."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fedrift as fr
from tests.support.problems import Net, blobs

ROOT = Path(__file__).resolve().parents[2]
GUIDE = (ROOT / "docs" / "guides" / "own-objective.md").read_text(encoding="utf-8")
MOON, DISTILLED = re.findall(r"^```python\n(.*?)^```$", GUIDE, flags=re.MULTILINE | re.DOTALL)
MOST_LINES = 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the guide's moon.py, from which it can be imported."""
    (tmp_path / "moon.py").write_text(MOON, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("moon", None)


def run(algorithm: Any, **more: Any) -> Any:
    x, y = blobs(120, seed=3)
    given: dict[str, Any] = {
        "model": Net,
        "clients": fr.split(x, y, "dirichlet:0.5", clients=5, seed=1),
        "test": (x, y),
        "rounds": 4,
        "per_round": 3,
        "workers": 0,
    }
    return fr.run(algorithm, **(given | more))


LOCAL = fr.Local(lr=0.1, batch_size=16)


def test_it_is_short_and_needs_one_import() -> None:
    lines = [line for line in MOON.splitlines() if line.strip()]
    assert len(lines) <= MOST_LINES
    assert {*re.findall(r"^from (fedrift[\w.]*) import", MOON, flags=re.MULTILINE)} == {
        "fedrift.core"
    }


def test_without_the_contrast_it_is_fedavg_to_the_bit(folder: Path) -> None:
    moon = import_module("moon").Moon
    plain = run("fedavg", lr=0.1, batch_size=16, stack="off")
    zero = run(moon(local=LOCAL, mu=0.0))
    assert torch.equal(zero.weights, plain.weights) and zero.accuracy == plain.accuracy
    assert not torch.equal(run(moon(local=LOCAL, mu=1.0)).weights, plain.weights)


def test_one_step_is_that_of_the_paper(folder: Path) -> None:
    """By autograd alone: two visits of one step each of a single client, on all its samples."""
    moon, (x, y), mu, tau, lr = import_module("moon").Moon, blobs(12, seed=1), 0.7, 0.5, 0.1
    own = moon(local=fr.Local(lr=lr, batch_size=None, steps=1), mu=mu, tau=tau)
    result = run(own, clients=[(x, y)], rounds=3, per_round=None, dtype="float64")
    x = x.double()
    first: Any = result.problem.module(result.problem.w0, {})
    module, previous = first, first

    def features(net: Any) -> torch.Tensor:
        caught: list[torch.Tensor] = []
        hook = net.out.register_forward_pre_hook(lambda _, args: caught.append(args[0]))
        net(x)
        hook.remove()
        return caught[0]

    for _ in range(3):
        received = features(module).detach()
        before = features(previous).detach()
        z = features(module)
        near = torch.exp(F.cosine_similarity(z, received) / tau)
        far = torch.exp(F.cosine_similarity(z, before) / tau)
        loss = F.cross_entropy(module(x), y) - mu * torch.log(near / (near + far)).mean()
        gradients = torch.autograd.grad(loss, list(module.parameters()))
        changed = result.problem.module(
            torch.cat([p.detach().reshape(-1) for p in module.parameters()])
            - lr * torch.cat([g.reshape(-1) for g in gradients]),
            {},
        )
        module, previous = changed, changed
    wanted = torch.cat([p.detach().reshape(-1) for p in module.parameters()])
    torch.testing.assert_close(result.weights, wanted, rtol=1e-9, atol=1e-12)


def test_the_other_objective_runs_too(folder: Path) -> None:
    header = MOON[: MOON.index("@message")]
    rule = DISTILLED.replace("\n", "\n    ")
    source = f"{header}\n\n@dataclass(frozen=True)\nclass Rule:\n    weight: float\n"
    source += f"    received: Vec\n\n    {rule.rstrip()}\n"
    (folder / "distilled.py").write_text(source, encoding="utf-8")
    rule_class = import_module("distilled").Rule
    problem = run("fedavg").problem
    x, y = blobs(12, seed=1)
    step = problem.step
    with torch.no_grad():
        step.w.copy_(problem.w0)
        step.begin(0, 0.1, (x, y))
        plain = step.grad(step.w).clone()
        assert torch.allclose(rule_class(1.0, problem.w0)(step), plain, atol=1e-6)
        assert not torch.allclose(rule_class(1.0, problem.w0 * 2)(step), plain, atol=1e-3)
    sys.modules.pop("distilled", None)


@pytest.mark.timeout(600)
def test_it_conforms(folder: Path, programs: Path) -> None:
    done = subprocess.run(
        [programs / "fedrift", "conform", "moon:Moon"],
        capture_output=True,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p != str(folder))},
    )
    assert done.returncode == 0, done.stdout.decode() + done.stderr.decode()
