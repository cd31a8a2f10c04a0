"""What users give and get: kinds of data, outputs and settings that are taken, or refused in a
sentence that says what to do."""

from __future__ import annotations

import threading
import time
import warnings
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.masked import masked_tensor
from torch.utils.data import Dataset

import fedrift as fr
from fedrift.core import Local, Mean, message, shaped
from tests.support.problems import Net, blobs, small_run

X, Y = blobs(60)
with warnings.catch_warnings():
    warnings.simplefilter("ignore", UserWarning)  # torch calls these kinds prototypes
    QUANTIZED = torch.quantize_per_tensor(X, 0.1, 0, torch.qint8)
    MASKED, NESTED = masked_tensor(X, X > 0), torch.nested.nested_tensor(list(X))


def run(**how: Any) -> fr.Result:
    given: dict[str, Any] = {"model": Net, "clients": [(X, Y)], "rounds": 1, "workers": 0}
    return fr.run("fedavg", **{**given, **how})


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (torch.complex(X, X), r"clients\[0\] x: holds complex numbers.*view_as_real"),
        (np.asarray(X) * 1j, r"clients\[0\] x: holds complex numbers"),
        (np.ma.masked_less(np.asarray(X), 0), r"clients\[0\] x: is masked; fill"),
        (MASKED, r"clients\[0\] x: is masked; fill"),
        (X.to_sparse(), r"clients\[0\] x: is sparse \(torch.sparse_coo\); give x.to_dense"),
        (X.to("meta"), r"clients\[0\] x: holds no numbers"),
        (QUANTIZED, r"clients\[0\] x: is quantized; give x.dequantize"),
        (NESTED, r"clients\[0\] x: is a nested tensor; pad it"),
    ],
)
def test_kinds_of_tensors_that_are_no_block_of_numbers(x: Any, says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        run(clients=[(x, Y)])


def with_attribute(name: str, value: Any, is_buffer: bool = False) -> nn.Module:
    net = Net()
    net.register_buffer(name, value) if is_buffer else setattr(net, name, value)
    return net


COMPLEX = torch.polar(torch.ones(3), torch.arange(3.0))


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (lambda: with_attribute("f", COMPLEX, True), "buffer 'f' of Net is complex.*view_as_real"),
        (lambda: with_attribute("p", nn.Parameter(COMPLEX)), "parameter 'p' of Net is complex"),
        (lambda: with_attribute("lock", threading.Lock()), "Net cannot be copied.*keep files, loc"),
        (with_attribute("lock", threading.Lock()), "Net cannot be copied, as a run does"),
        (
            lambda: with_attribute("w", torch.ones(2, requires_grad=True) * 2),
            "Net cannot be copied.*computed with gradients.*parametrizations has another",
        ),
        (torch.jit.ScriptModule(), "compiled by TorchScript.*give the module that it was made of"),
        (
            lambda: with_attribute("part", torch.jit.ScriptModule()),
            "its 'part' is compiled by TorchScript.*give the module that it was made of",
        ),
    ],
)
def test_modules_that_no_run_can_have(model: Any, says: str) -> None:
    """A complex buffer has lost its imaginary part before, with a warning of torch's."""
    with pytest.raises(fr.InputError, match=f"^model: .*{says}"):
        run(model=model)


@pytest.mark.parametrize(
    ("loss", "says"),
    [
        (lambda o, y: 1.0, "it gave a float, and a tensor is wanted"),
        (lambda o, y: o.logits.mean(), "no loss can be computed.*no attribute 'logits'"),
        (lambda o, y: {"a": o.mean()}["b"], r"no loss can be computed.*KeyError: 'b' \(test_given"),
    ],
)
def test_losses_that_give_none(loss: Any, says: str) -> None:
    with pytest.raises(fr.InputError, match=f"^loss: .*({says})"):
        run(loss=loss)


def test_a_place_that_is_no_path() -> None:
    for make in (run, lambda **how: fr.compare(["fedavg"], model=Net, clients=[(X, Y)], **how)):
        with pytest.raises(fr.InputError, match=r"^out=b'x' must be a path, a text"):
            make(out=b"x")


class Endless(Dataset[Any]):
    """A map-style data set that never says stop."""

    def __init__(self, number: int = 60, ragged: bool = False) -> None:
        self.number, self.ragged = number, ragged

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, i: int) -> Any:
        x = X[i % len(X)]
        return (torch.cat([x, x]) if self.ragged and i == 7 else x), Y[i % len(Y)]


class Column:
    """A sequence of no known kind, without an end of its own."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, i: int) -> Tensor:
        return self.values[i % len(self.values)]


@pytest.mark.timeout(60)
def test_data_sets_are_read_by_their_length() -> None:
    plain = run(test=(X, Y))
    assert run(clients=[Endless()], test=Endless()).fingerprint == plain.fingerprint
    apart = run(clients=[(X, Y)] * 2, test=[(X, Y)] * 2)
    assert run(clients=[Endless()] * 2, test=[Endless()] * 2).fingerprint == apart.fingerprint
    assert run(clients=[(Column(X), Column(Y))], test=(X, Y)).fingerprint == plain.fingerprint
    with pytest.raises(fr.InputError, match="a Dataset is no array"):
        run(clients=[(Endless(), Endless())])


def test_a_ragged_list_is_told_where() -> None:
    lists = [[1.0, 2.0], [3.0, 4.0], [5.0]]
    with pytest.raises(
        fr.InputError, match=r"item 2 has shapes \[\(1,\)\], item 0 \[\(2,\)\]; pad"
    ):
        fr.run("fedavg", model=lambda: nn.Linear(2, 2), clients=[(lists, [0, 1, 0])], rounds=1)


def test_a_ragged_data_set_is_told_where() -> None:
    with pytest.raises(fr.InputError, match=r"item 7 has shapes .*, item 0 .*; pad them to one"):
        run(clients=[Endless(ragged=True)])


def test_clients_of_different_lengths_are_named() -> None:
    clients = [(torch.zeros(3, n), [0, 1, 0]) for n in (4, 4, 6)]
    said = r"clients\[2\] has shapes \[\(6,\), \(\)\], clients\[0\] .*; pad them to one length"
    with pytest.raises(fr.InputError, match=said):
        fr.run("fedavg", model=lambda: nn.Linear(4, 2), clients=clients, rounds=1)


def test_own_metrics_without_a_test_set_of_the_server_are_told() -> None:
    halves = [(X[:20], Y[:20]), (X[20:40], Y[20:40])]
    result = run(clients=halves, test=halves, rounds=1, metrics={"exact": lambda z, y: 1.0})
    [note] = [note for note in result.notes if note.startswith("metrics: exact would be")]
    assert note.endswith("give test=(x, y), and theirs as client_test")


class Answer(Net):
    """Gives an object with logits, as models of Hugging Face do."""

    def forward(self, x: Tensor) -> Any:
        return SimpleNamespace(logits=super().forward(x), hidden_states=None)


@pytest.mark.parametrize("workers", [0, 2])
def test_the_logits_of_an_output_are_the_output(workers: int) -> None:
    how: dict[str, Any] = {"rounds": 2, "workers": workers}
    plain, other = small_run("scaffold", **how), small_run("scaffold", model=Answer, **how)
    assert other.fingerprint == plain.fingerprint and other.accuracy
    fed3r = small_run("fed3r", model=Answer, **how)  # it looks for the head behind the logits
    assert fed3r.fingerprint == small_run("fed3r", **how).fingerprint


def test_a_loss_of_ones_own_gets_the_whole_output() -> None:
    def loss(output: Any, y: Tensor) -> Tensor:
        return nn.functional.cross_entropy(output.logits, y)

    assert torch.equal(run(model=Answer, loss=loss).weights, run().weights)


def test_labels_beyond_the_model_name_the_largest() -> None:
    y = torch.arange(60) % 10
    with pytest.raises(fr.InputError, match=r"label 4 is outside.*, or the model 10 outputs$"):
        run(clients=[(X, y)])


def test_samples_without_a_label_are_left_out_of_fed3r() -> None:
    hidden = Y.clone()
    hidden[::3] = -100
    kept = hidden >= 0
    given: dict[str, Any] = {"model": Net, "rounds": 1, "workers": 0, "test": (X, Y)}
    ours = fr.run("fed3r", clients=[(X, hidden)], **given)
    apart = fr.run("fed3r", clients=[(X[kept], Y[kept])], **given)
    torch.testing.assert_close(ours.weights, apart.weights)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"steps": 10**20}, "steps must be a whole number of at most 10000000, not 1000"),
        ({"epochs": 10**20}, "epochs must be a whole number of at most 10000000"),
        ({"batch_size": 0}, r"batch_size must be a whole number of at least 1, or 'full'"),
        ({"lr": 10**400}, "lr must be a number above 0, not 1000"),
        ({"metrics": {"a\udcff": lambda o, y: 0.0}}, r"metrics: 'a\\udcff' cannot be printed"),
        ({"metrics": {"time": lambda o, y: 0.0}}, "metrics: 'time' is a column of every run"),
        ({"metrics": {"loss": lambda o, y: 0.0}}, "metrics: 'loss' is a column of every run"),
    ],
)
def test_settings_that_are_refused(how: dict[str, Any], says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        run(**how)


@pytest.mark.parametrize(
    ("local", "says"),
    [
        (Local(steps=10**20), "steps must be a whole number of at most"),
        (Local(steps=-1), "steps must be a whole number of at least 1"),
        (Local(batch_size=0), "batch_size must be a whole number of at least 1"),
    ],
)
def test_so_are_those_of_an_object(local: Local, says: str) -> None:
    from fedrift.algorithms.fedavg import FedAvg

    with pytest.raises(fr.InputError, match=says):
        fr.run(FedAvg(local), model=Net, clients=[(X, Y)], rounds=1, workers=0)


TABLE: Any = shaped(torch.float64, lambda algorithm, problem: (3,))


@message
class First:
    a: Mean[Tensor] = TABLE
    b: Mean[Tensor] = TABLE


@message
class Second:
    c: Mean[Tensor] = TABLE


def test_a_shaped_field_may_be_written_twice() -> None:
    assert [f.name for f in fields(First)] == ["a", "b"]  # type: ignore[arg-type]
    assert [f.name for f in fields(Second)] == ["c"]  # type: ignore[arg-type]
    assert all(f.metadata["shape"](None, None) == (3,) for f in fields(First))  # type: ignore[arg-type]


def test_a_stopped_run_says_how_far_it_came() -> None:
    stopped = run(rounds=30, on_round=lambda report: report.round == 4)
    assert repr(stopped).startswith("<Result: fedavg, stopped, 4 of 30 rounds")
    assert repr(run(rounds=2)).startswith("<Result: fedavg, done, 2 rounds")


def test_no_curve_is_no_picture(tmp_path: Any) -> None:
    with pytest.raises(fr.InputError, match="nothing was evaluated, so there is no curve"):
        run().plot(tmp_path / "curve.png")
    assert not list(tmp_path.iterdir())


def test_a_comparison_without_test_data_says_so() -> None:
    given: dict[str, Any] = {"model": Net, "clients": [(X, Y)], "rounds": 1, "workers": 0}
    assert "1 run: nothing is evaluated: give test=(x, y)" in repr(fr.compare(["fedavg"], **given))
    assert "nothing is evaluated" not in repr(fr.compare(["fedavg"], **given, test=(X, Y)))


def test_rounds_are_told_with_their_own_time(capsys: pytest.CaptureFixture[str]) -> None:
    from fedrift.cli.progress import Lines
    from tests.support.product import Spec

    lines = Lines(Spec(rounds=3))
    time.sleep(0.01)
    told: Any = SimpleNamespace(round=2, metrics={"loss": 1.0}, nonfinite=(), seconds=75.0)
    lines.on_round(told)
    assert capsys.readouterr().err == "round 2/3  loss 1.0000  1 min 15 s\n"


class LanguageModel(nn.Module):
    """Logits of positions × tokens in an object, as causal models of Hugging Face give them."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.out = nn.Embedding(5, 8), nn.Linear(8, 5)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> SimpleNamespace:
        seen = self.tokens(input_ids) * attention_mask[..., None]
        return SimpleNamespace(logits=self.out(seen), loss=None)


def test_logits_of_positions_have_their_tokens_last() -> None:
    x = torch.arange(96).reshape(12, 8) % 5
    y = (x + 1) % 5
    y[:, 6:] = -100  # ragged: the last positions are filled up
    mask = (y >= 0).long()
    given = [({"input_ids": x[i::3], "attention_mask": mask[i::3]}, y[i::3]) for i in range(3)]
    test = {"input_ids": x, "attention_mask": mask}, y
    how: dict[str, Any] = {"rounds": 30, "lr": 2.0, "workers": 0, "batch_size": 4}
    made = fr.run("fedavg", model=LanguageModel, clients=given, test=test, **how)
    assert made.accuracy[-1] == 1.0, "the next number follows from the last"
    assert made.metrics[-1]["perplexity"] < 1.2
    assert sum(made.metrics[-1]["class_total"]) == 12 * 6


class Short(Dataset[tuple[torch.Tensor, int]]):
    """Says of itself that it has more samples than it has."""

    def __init__(self, said: int) -> None:
        self.said = said

    def __len__(self) -> int:
        return self.said

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        if index > 20:
            raise IndexError("no more")
        return X[index], int(Y[index])


class Unmeasured(Dataset[tuple[torch.Tensor, int]]):
    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        return X[0], 0


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (Short(30), r"Short has 30 samples, but number 21 cannot be read \(IndexError: no more"),
        (Short(10**12), r"its 1,000,000,000,000 samples take [\d,.]+ GB, and this machine has"),
        (Unmeasured(), "Unmeasured does not say how many samples it has; give it __len__"),
    ],
)
def test_data_sets_that_cannot_be_read_are_refused(data: Any, says: str) -> None:
    with pytest.raises(fr.InputError, match=says):
        fr.run("fedavg", model=Net, clients=[data], rounds=1, workers=0)


class ByKeyword(nn.Module):
    """Its layers are given their inputs by name."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(X.shape[1], 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(input=x)


def test_a_head_may_be_called_by_keyword() -> None:
    given: dict[str, Any] = {"clients": [(X, Y)], "rounds": 1, "workers": 0, "head": "head"}
    assert fr.run("fed3r", model=ByKeyword, **given).problem.feature_dim == X.shape[1]
