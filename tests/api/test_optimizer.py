"""The optimizer of the local steps: torch's, new at every visit, refused where it has no place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import fedrift as fr
from fedrift.algorithms.fedavg import FedAvg
from fedrift.cli import code_of
from fedrift.config.spec import Spec
from fedrift.core import SGD, Local
from fedrift.core.optim import PerStep, adam
from fedrift.storage.run_record import load
from tests.support.problems import Net, blobs, small_run

KINDS: list[tuple[str, Any, dict[str, Any]]] = [
    ("adam", torch.optim.Adam, {}),
    ("adamw:betas=0.8|0.95,eps=1e-6", torch.optim.AdamW, {"betas": (0.8, 0.95), "eps": 1e-6}),
    ("adagrad", torch.optim.Adagrad, {}),
    ("rmsprop:centered=true", torch.optim.RMSprop, {"centered": True}),
    ("sgd:momentum=0.9,nesterov=true", torch.optim.SGD, {"momentum": 0.9, "nesterov": True}),
]
CLIENTS = [
    tuple(t.double() if t.is_floating_point() else t for t in blobs(24, seed=i)) for i in (0, 1)
]


def by_hand(kind: Any, how: dict[str, Any], rounds: int, steps: int, rate: Any) -> Tensor:
    """FedAvg of whole clients with torch's optimizer, made anew for each visit."""
    module = small_run("fedavg", clients=CLIENTS, per_round=None, rounds=1, dtype="float64").problem
    w = module.w0.clone()
    for _ in range(rounds):
        ends: list[Tensor] = []
        for x, y in CLIENTS:
            model = module.module(w, {})
            optimizer = kind(model.parameters(), lr=0.01, **how)
            for k in range(steps):
                optimizer.param_groups[0]["lr"] = rate(k)
                optimizer.zero_grad()
                F.cross_entropy(model(x), y).backward()
                optimizer.step()
            ends.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
        w = torch.stack(ends).mean(0)
    return w


@pytest.mark.parametrize("stack", ["off", "auto"])
@pytest.mark.parametrize(("text", "kind", "how"), KINDS)
@pytest.mark.parametrize("decay", [None, 0.1])
def test_it_is_torchs_optimizer(
    text: str, kind: Any, how: dict[str, Any], decay: float | None, stack: str
) -> None:
    more: dict[str, Any] = {} if decay is None else {"weight_decay": decay}
    given = small_run(
        "fedavg", clients=CLIENTS, per_round=None, rounds=2, steps=4, batch_size=None, lr=0.02,
        optimizer=text, dtype="float64", stack=stack, **more,
    )  # fmt: skip
    expected = by_hand(kind, {**how, **more}, 2, 4, lambda k: 0.02)
    torch.testing.assert_close(given.weights, expected, rtol=0, atol=1e-12)


def test_a_rate_over_the_steps_of_a_visit() -> None:
    how: dict[str, Any] = {"clients": CLIENTS, "per_round": None, "rounds": 2, "steps": 3}
    how |= {"batch_size": None, "dtype": "float64", "lr": 0.2}
    given = small_run("fedavg", schedule="exp:0.5,per=step", **how).weights
    expected = by_hand(torch.optim.SGD, {}, 2, 3, lambda k: 0.2 * 0.5**k)
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-12)
    # One step of each rate is as long as their sum: the controls of SCAFFOLD stay gradients.
    small_run("scaffold", schedule="cosine:0.1,per=step", **how)
    stacked = small_run("fedavg", schedule="cosine:per=step", **how).weights
    alone = small_run("fedavg", schedule="cosine:per=step", stack="off", **how).weights
    torch.testing.assert_close(stacked, alone, rtol=0, atol=1e-12)


def test_the_rate_is_torchs_unless_said() -> None:
    def rate(text: str | None, **how: Any) -> Any:
        made = fr.api.task_of("fedavg", {"model": Net, "clients": [blobs(9)], "rounds": 1,
                                         "optimizer": text, **how})  # fmt: skip
        algorithm: Any = made.algorithm
        return algorithm.local.lr

    assert [rate(t) for t in ("adam", "adamw", "adagrad", "rmsprop")] == [1e-3, 1e-3, 1e-2, 1e-2]
    assert rate(None) == rate("sgd") == 0.1
    assert rate("adam", lr=0.5) == 0.5
    assert isinstance(rate("adam", schedule="cosine:per=step"), PerStep)
    same = small_run(FedAvg(Local(lr=0.1, batch_size=16, optimizer=SGD())), optimizer=None)
    assert small_run("fedavg", optimizer="sgd").fingerprint == same.fingerprint


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("fedavg", {"optimizer": "adan"}, "unknown optimizer 'adan': did you mean 'adam'"),
    ("fedavg", {"optimizer": "adam:lr=0.1"}, "run's own setting"),
    ("fedavg", {"optimizer": "adam:betas=0.9"}, "two numbers such as 0.9|0.999"),
    ("fedavg", {"optimizer": "adam:betas=0.9|1"}, "below 1"),
    ("fedavg", {"optimizer": "rmsprop:centered=yes"}, "true or false"),
    ("fedavg", {"optimizer": "adam:0.1"}, "key=value"),
    ("fedavg", {"optimizer": 3}, "optimizer must be a name"),
    ("fedavg", {"optimizer": "adam", "momentum": 0.9}, "momentum .*optimizer 'adam' has none"),
    ("fedavg", {"optimizer": "adamw:weight_decay=0.1", "weight_decay": 0.2}, "say the same"),
    ("fedavg", {"schedule": "exp:0.9,per=epoch"}, "per must be round or step"),
    *((name, {"optimizer": "adam"}, "optimizer") for name in (
        "scaffold", "scaffold:momentum_repair=outside", "fedgamma", "fedcm", "ghbm", "fedhbm",
        "mime", "mimelitemom", "swa(scaffold)",
    )),
    ("fednova", {"optimizer": "adam"}, "SGD with momentum only"),
    ("diloco", {"optimizer": "adam"}, "diloco: optimizer is refused"),
    ("fedsgd", {"optimizer": "adam"}, "makes no local steps"),
    *((name, {"schedule": "cosine:per=step"}, "schedule over local steps is refused") for name in (
        "fednova", "diloco", "fedsgd", "swa(fedavg):cycle=2",
    )),
]  # fmt: skip


@pytest.mark.parametrize(("algorithm", "how", "says"), WRONG)
def test_what_makes_no_sense_is_refused(algorithm: str, how: dict[str, Any], says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        small_run(algorithm, **how)


def test_from_flags_toml_and_objects(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = "run fedavg --rounds 1 --clients 3 --model logistic --workers 0 --quiet --out".split()
    for i, flag in enumerate(("--optimizer", "--local-optimizer")):
        assert code_of([*words, str(tmp_path / f"{i}"), flag, "adam:eps=1e-6"]) == 0
        assert load(tmp_path / f"{i}").spec.optimizer == "adam:eps=1e-6"
    file = tmp_path / "spec.toml"
    file.write_text('rounds = 1\noptimizer = "adam"\nmomentum = 0.9\n')
    assert code_of(["run", "--spec", str(file)]) == 2
    assert "momentum (0.9): optimizer 'adam' has none" in capsys.readouterr().err
    with pytest.raises(fr.InputError, match=r"optimizer='adam' and FedAvg\(local=Local"):
        fr.run(FedAvg(Local(optimizer=adam())), model=Net, clients=[blobs(9)], rounds=1,
               optimizer="adam")  # fmt: skip
    assert Spec(optimizer="rmsprop", momentum=0.5).validate() is None
