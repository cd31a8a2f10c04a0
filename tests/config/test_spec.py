"""The spec: TOML there and back, and every impossible value refused in one sentence."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedrift.config.local_work import schedule_of, uniform
from fedrift.config.spec import FIELDS, LARGEST_FILE
from fedrift.errors import InputError
from tests.support.product import Spec

FULL: dict[str, Any] = {
    "algorithm": "scaffold:server_lr=0.5",
    "data": "mnist",
    "data_dir": "/some/where",
    "partition": "hsu:0.3",
    "alpha": 0.1,
    "shift": "rotation:45",
    "clients": 4,
    "model": "cnn",
    "loss": "my.module:loss",
    "head": "fc2",
    "rounds": 3,
    "fraction": 0.5,
    "sampling": "fixed",
    "participants": [[0, 3], [], [1, 2]],
    "steps": [1, 2, 3, 0],
    "batch_size": "none",
    "lr": 1,
    "momentum": 0.9,
    "weight_decay": 1e-4,
    "clip": 10,
    "schedule": "exp:0.9",
    "optimizer": "rmsprop:alpha=0.9",
    "weights": "uniform",
    "augment": ["crop:4", "flip"],
    "faults": ["dropout:0.1", "corrupt:0.2"],
    "aggregate": "trimmed:0.1",
    "privacy": "gaussian:1,clip=2",
    "dtype": "float64",
    "device": "cuda:1",
    "stack": "off",
    "workers": 2,
    "backend": "processes",
    "seed": 7,
    "eval_every": 2,
    "adapter": "lora:rank=2",
    "compress": "up=topk:0.1",
    "devices": "lognormal:1",
    "late": "drop:2",
    "client_test": 0.2,
    "eval_clients": "every=10,sample=5",
    "out": "runs/x",
}


def test_every_field_of_the_spec_can_be_read_and_written(tmp_path: Path) -> None:
    spec = Spec.of(FULL)
    assert {*FIELDS} == {*FULL, "per_round", "epochs"} == {*vars(Spec())}
    assert (spec.batch_size, spec.lr, spec.steps) == ("full", 1.0, (1, 2, 3, 0))
    assert spec.participants == ((0, 3), (), (1, 2))
    path = tmp_path / "spec.toml"
    path.write_text(spec.to_toml(), encoding="utf-8")
    assert Spec.from_toml(path) == spec


def test_defaults_are_valid_and_leave_local_work_to_the_algorithm(tmp_path: Path) -> None:
    spec = Spec()
    spec.validate()
    assert (spec.data, spec.partition, spec.wanted_clients, spec.rounds) == (
        "digits",
        "dirichlet:0.5",
        10,
        20,
    )
    assert spec.epochs is spec.steps is spec.batch_size is spec.lr is spec.momentum is None
    path = tmp_path / "spec.toml"
    path.write_text(spec.to_toml(), encoding="utf-8")
    assert Spec.from_toml(path) == spec


@pytest.mark.parametrize("number", [0.1, 1e-17, 1 / 3, 5e-324, 1e300])
def test_floats_survive_toml_exactly(tmp_path: Path, number: float) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(Spec(lr=number).to_toml(), encoding="utf-8")
    assert Spec.from_toml(path).lr == number


@pytest.mark.parametrize("text", ["a\"b'c", "ü\\n", "line\nbreak", "C:\\x"])
def test_any_path_survives_toml(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_text(Spec(data_dir=text).to_toml(), encoding="utf-8")
    assert Spec.from_toml(path).data_dir == text


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"cleints": 3}, "unknown key 'cleints': did you mean 'clients'?"),
        ({"per-round": 3}, "unknown key 'per-round': did you mean 'per_round'?"),
        ({"clients": 0}, "clients must be a whole number of at least 1, not 0"),
        ({"clients": -1}, "clients must be a whole number of at least 1, not -1"),
        ({"clients": 2.5}, "clients must be a whole number of at least 1, not 2.5"),
        ({"clients": "ten"}, "clients must be a whole number of at least 1, not 'ten'"),
        ({"clients": True}, "clients must be a whole number of at least 1, not true"),
        ({"clients": 10**30}, "clients must be a whole number of at most 10000000"),
        ({"rounds": 0}, "rounds must be a whole number of at least 1, not 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, not -1"),
        ({"eval_every": 0}, "eval_every must be a whole number of at least 1, not 0"),
        ({"lr": 0}, "lr must be a number above 0, not 0"),
        ({"lr": -0.1}, "lr must be a number above 0, not -0.1"),
        ({"lr": math.nan}, "lr must be a number above 0, not nan"),
        ({"lr": math.inf}, "lr must be a number above 0, not inf"),
        ({"lr": "fast"}, "lr must be a number above 0, not 'fast'"),
        ({"lr": [0.1]}, "lr must be a number above 0, not [0.1]"),
        ({"momentum": 1}, "momentum must be a number of at least 0 and below 1, not 1"),
        ({"momentum": -0.1}, "momentum must be a number of at least 0 and below 1"),
        ({"weight_decay": -1}, "weight_decay must be a number of at least 0, not -1"),
        ({"clip": 0}, "clip must be a number above 0, not 0"),
        ({"alpha": -0.5}, "alpha must be a number of at least 0, not -0.5"),
        ({"fraction": 0}, "fraction must be a number above 0 and at most 1, not 0"),
        ({"fraction": 1.5}, "fraction must be a number above 0 and at most 1, not 1.5"),
        ({"per_round": 11}, "per_round is 11 but there are only 10 clients"),
        ({"per_round": 3, "fraction": 0.5}, "per_round (3) and fraction (0.5) are both given"),
        ({"epochs": 1, "steps": 2}, "epochs (1) and steps (2) are both given; keep one"),
        ({"epochs": 0}, "epochs must be a whole number of at least 1"),
        ({"epochs": [0, 0]}, "epochs must be a whole number of at least 1"),
        ({"epochs": [1, 2]}, "epochs lists 2 entries for 10 clients; give one per client"),
        ({"steps": "uniform:5,2"}, "steps must be uniform:LOW,HIGH"),
        ({"steps": "uniform:2"}, "steps must be uniform:LOW,HIGH"),
        ({"steps": "normal:2,5"}, "unknown draw in steps 'normal'"),
        ({"batch_size": -1}, "batch_size must be a whole number of at least 1, or 'full'"),
        ({"batch_size": "half"}, "batch_size must be a whole number of at least 1, or 'full'"),
        ({"batch_size": False}, "batch_size must be a whole number of at least 1, or 'full'"),
        ({"participants": []}, "participants must be one list of client numbers per round"),
        ({"participants": [0, 1]}, "participants must be one list of client numbers per round"),
        ({"participants": [[0], [10]]}, "participants[1] names client 10 but there are 10"),
        ({"participants": [[0], [-1]]}, "participants must be one list of client numbers"),
        ({"participants": [[0, 0]]}, "participants[0] names a client twice: [0, 0]"),
        ({"participants": [[0]], "rounds": 2}, "participants lists 1 rounds but rounds is 2"),
        ({"participants": [[0]], "per_round": 1}, "participants (0) and per_round (1)"),
        ({"participants": [[0]], "sampling": "cyclic"}, "sampling 'cyclic' has no meaning"),
        ({"sampling": "fixd"}, "unknown sampling 'fixd': did you mean 'fixed'?"),
        ({"weights": "sample"}, "unknown weights 'sample': did you mean 'samples'?"),
        ({"dtype": "float16"}, "unknown dtype 'float16'"),
        ({"device": "gpu"}, "device must be cpu, cuda, cuda:NUMBER or mps, not 'gpu'"),
        ({"workers": -1}, "workers must be 'auto' or a whole number"),
        ({"workers": "many"}, "workers must be 'auto' or a whole number"),
        ({"backend": "thread"}, "unknown backend 'thread'"),
        ({"schedule": "exp"}, "schedule 'exp' needs factor; write for example exp:0.9"),
        ({"schedule": "expo:1"}, "unknown schedule 'expo': did you mean 'exp'?"),
        ({"schedule": "constant:3"}, "schedule 'constant:3' has no value"),
        ({"schedule": "exp:-1"}, "factor must be a number of at least 0, not '-1'"),
        ({"augment": "flip"}, "augment must be a list of names"),
        ({"augment": [""]}, "augment '' does not start with a name"),
        ({"data": ""}, "data '' does not start with a name"),
        ({"data": 3}, "data must be a name"),
        ({"data": "mnits"}, "unknown data 'mnits': did you mean 'mnist'?"),
        ({"partition": "dirichelt:1"}, "unknown partition 'dirichelt': did you mean 'dirichlet'?"),
        ({"partition": "my.module:split"}, "unknown partition 'my.module'"),
        ({"model": "cn"}, "unknown model 'cn': did you mean 'cnn'?"),
        ({"algorithm": "fedagv"}, "unknown algorithm 'fedagv': did you mean 'fedavg'?"),
        ({"algorithm": "fedavg:weights=none"}, "option weights of fedavg must be"),
        ({"algorithm": "fedavg:weights=uniform", "weights": "samples"}, "keep one of the two"),
        ({"out": ""}, "out must be a text, not ''"),
        ({"data_dir": "a\0b"}, "data_dir must be a text without zero bytes"),
    ],
    ids=str,
)
def test_refused(values: dict[str, object], message: str) -> None:
    with pytest.raises(InputError) as caught:
        Spec.of(values).validate()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "values",
    [
        {"per_round": 10},
        {"fraction": 1},
        {"partition": "natural", "per_round": 500},
        {"partition": "classes:1,3|0,6", "epochs": [1, 2]},
        {"partition": "manifest:file.json", "participants": [[99]]},
        {"participants": [[0, 9], [1]], "fraction": 0.2},
        {"epochs": "uniform:0,5"},
        {"data": "my.module:load", "model": "my.module:Net"},
        {"weights": "uniform"},
        {"batch_size": "none"},
        {"sampling": "bernoulli", "fraction": 0.3},
    ],
    ids=str,
)
def test_accepted(values: dict[str, object]) -> None:
    Spec.of(values).validate()


def test_a_spec_made_in_python_is_checked_too() -> None:
    with pytest.raises(InputError, match="clients must be a whole number"):
        Spec(clients="10").validate()  # type: ignore[arg-type]


def test_rounds_follow_an_explicit_schedule() -> None:
    assert Spec.of({"participants": [[0], [1], [2]]}).rounds == 3


def test_clients_are_the_partitions_where_it_brings_them() -> None:
    assert Spec(partition="natural").wanted_clients is None
    assert Spec(partition="natural", clients=3).wanted_clients == 3
    assert Spec(partition="iid").wanted_clients == 10


def test_weights_reach_the_algorithm_inside_a_wrapper() -> None:
    spec = Spec(algorithm="swa(fedavg):start=0.5", weights="uniform")
    assert str(spec.algorithm_named) == "swa(fedavg:weights=uniform):start=0.5"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("exp:0.9", ("exp", {"factor": 0.9})),
        ("exp:factor=0.9", ("exp", {"factor": 0.9})),
        ("step:10", ("step", {"every": 10, "factor": 0.1})),
        ("step:10,factor=0.5", ("step", {"every": 10, "factor": 0.5})),
        ("cosine", ("cosine", {"floor": 0.0})),
        ("constant", ("constant", {})),
    ],
)
def test_schedules(text: str, expected: tuple[str, dict[str, float]]) -> None:
    assert schedule_of(text) == expected


def test_uniform_work() -> None:
    assert uniform("uniform:2,5", "steps") == (2, 5)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("epochs", "3", 3),
        ("epochs", "1,2,3", [1, 2, 3]),
        ("epochs", "uniform:1,2", "uniform:1,2"),
        ("batch_size", "32", 32),
        ("batch_size", "full", "full"),
        ("participants", "0,3|1", [[0, 3], [1]]),
        ("lr", "1e-2", 0.01),
        ("workers", "2", 2),
        ("workers", "auto", "auto"),
        ("clients", "12", 12),
    ],
)
def test_text_of_the_command_line(name: str, text: str, expected: object) -> None:
    assert FIELDS[name].parse(text, name) == expected


@pytest.mark.parametrize(
    ("name", "text"),
    [("epochs", "1,x"), ("batch_size", "--5"), ("participants", "0,a"), ("lr", "x"), ("seed", "")],
)
def test_bad_text_of_the_command_line(name: str, text: str) -> None:
    with pytest.raises(InputError, match=name):
        FIELDS[name].read(FIELDS[name].parse(text, name), name)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"clients = ", "is not valid TOML"),
        (b"clients = 3\nclients = 4\n", "is not valid TOML"),
        (b"\xff\xfe", "is not UTF-8"),
        (b"x = " + b"[" * 100_000, "is not valid TOML"),
        (b"#" * (LARGEST_FILE + 1), "is larger than"),
        (b"[run]\nclients = 3\n", "unknown key 'run'"),
        (b"lr = 1979-05-27\n", "lr must be a number"),
        (b"seed = " + b"9" * 5000, "is not valid TOML"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "spec.toml"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        Spec.from_toml(path)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.toml", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            Spec.from_toml(path)


WORDS = st.sampled_from(["uniform:1,2", "full", "auto", "fixed", "exp:1", "none", ""]) | st.text()
LEAVES = st.integers() | st.floats() | st.booleans() | WORDS
VALUES = st.recursive(LEAVES, lambda inside: st.lists(inside, max_size=3), max_leaves=6)


@settings(max_examples=300)
@given(st.dictionaries(st.sampled_from(sorted(FIELDS)), VALUES, max_size=4))
def test_any_values_are_accepted_or_refused(values: dict[str, object]) -> None:
    try:
        spec = Spec.of(values)
        spec.validate()
    except InputError:
        return
    assert Spec.of(spec.to_dict()) == spec
