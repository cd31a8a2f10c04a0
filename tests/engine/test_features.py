"""Data as a frozen model sees them: extracted once, kept under a hash, projected, named."""

from __future__ import annotations

import os
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from fedrift.data import datasets
from fedrift.data.samples import DataSet
from fedrift.engine import feature_cache, features
from fedrift.engine.features import Extractor, cached, extract, extractor, fingerprint, projected
from fedrift.errors import InputError
from fedrift.models import factory

SHAPE = (1, 8, 8)


def images(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((n, *SHAPE)).astype(np.float32)


def some(seed: int = 0, text: str = "random-conv:filters=3") -> Extractor:
    return extractor(text, factory(text, SHAPE, 4), torch.from_numpy(images(2)), seed=seed)


def test_features_are_the_heads_input() -> None:
    made, caught = factory("mlp:hidden=6", SHAPE, 4)(), []
    source = extractor("own", lambda: made, torch.from_numpy(images(2)))
    made.get_submodule("fc3").register_forward_pre_hook(lambda _, args: caught.append(args[0]))
    x = images(40)
    made(torch.from_numpy(x))
    found = extract(source, x)
    assert found.shape == (40, 6) and source.width == 6
    torch.testing.assert_close(found, caught[0].detach())
    assert isinstance(made.get_submodule("fc3"), nn.Linear), "the reader's module is not touched"


def test_bits_do_not_depend_on_the_number_of_threads() -> None:
    source, x = some(), images(70)
    assert torch.equal(extract(source, x, 1), extract(source, x, 3))


def test_a_factory_is_drawn_from_the_seed() -> None:
    x = images(5)
    assert torch.equal(extract(some(3), x), extract(some(3), x))
    assert not torch.equal(extract(some(3), x), extract(some(4), x))


def test_a_model_without_a_head_is_refused() -> None:
    make = partial(nn.Sequential, nn.Flatten(), nn.Linear(64, 4), nn.Tanh())
    with pytest.raises(InputError, match="classifier head"):
        extractor("own", make, torch.from_numpy(images(2)))


def test_features_are_computed_once_and_blocks_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "BLOCK", 20)
    source, x, told = some(), images(50), list[str]()
    first = cached(source, x, folder=tmp_path, tell=told.append)
    assert len(told) == 3 and torch.equal(first, extract(source, x))
    assert told[0] == "features of random-conv:filters=3: 0 of 50 samples"
    assert told[2].endswith(" s left"), "after the first block the time left is known"
    files = sorted(tmp_path.rglob("*.safetensors"))
    assert len(files) == 3
    files[1].write_bytes(files[1].read_bytes()[:-9])  # a torn file is made again, the rest is read
    told.clear()
    assert torch.equal(cached(source, x, folder=tmp_path, tell=told.append), first)
    assert told == ["features of random-conv:filters=3: 20 of 50 samples"]
    assert not [f for f in tmp_path.rglob("*") if f.name.endswith(".tmp")]


def test_every_change_has_another_name() -> None:
    x = images(10)
    moved = x.copy()
    moved[3, 0, 2, 2] += 1e-6
    names = {
        fingerprint(some(), x),
        fingerprint(some(1), x),
        fingerprint(some(), moved),
        fingerprint(some(text="random-conv:filters=4"), x),
        fingerprint(some(text="mlp:hidden=5"), x),
    }
    assert len(names) == 5
    assert fingerprint(some(), x) == fingerprint(some(), x.copy())


def test_the_size_images_are_brought_to_is_part_of_the_name() -> None:
    x = np.zeros((2, 3, 32, 32), np.float32)
    found = set()
    for size in (32, 48):
        torch.manual_seed(0)
        net = factory(f"mobilenet-v2:size={size}", (3, 32, 32), 4)()
        found.add(fingerprint(Extractor("m", net, 1280), x))
    assert len(found) == 2


# Projected.


def by_svd(train: np.ndarray, test: np.ndarray, dim: int) -> tuple[np.ndarray, np.ndarray]:
    """The same by another road: singular vectors of the centred features."""
    mean = train.mean(0)
    turn = np.linalg.svd(train - mean, full_matrices=False)[2][:dim].T
    turn *= np.sign(turn[np.abs(turn).argmax(0), range(dim)])
    a, b = (train - mean) @ turn, (test - mean) @ turn
    return a / a.std(), b / a.std()


def test_features_are_centred_turned_and_scaled_by_the_training_half(tmp_path: Path) -> None:
    source, x, x_test = some(), images(90), images(31, seed=1) + 2
    train, test, _ = projected(source, x, x_test, 5, folder=tmp_path)
    raw, raw_test = (extract(source, half).double().numpy() for half in (x, x_test))
    for found, expected in zip((train, test), by_svd(raw, raw_test, 5), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
    assert train.dtype == np.float32 and abs(train.mean()) < 1e-6
    assert train.std() == pytest.approx(1, abs=1e-5)
    assert abs(test.mean()) > 0.01, "the test half is not centred by itself"


def test_all_dimensions_are_only_centred_and_scaled(tmp_path: Path) -> None:
    source, x, x_test = some(), images(40), images(8, seed=1)
    train, _, _ = projected(source, x, x_test, None, folder=tmp_path)
    raw = extract(source, x).double().numpy()
    centred = raw - raw.mean(0)
    np.testing.assert_allclose(train, centred / centred.std(), atol=1e-5)


def test_projections_are_read_the_second_time_and_have_a_name_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, x, x_test = some(), images(40), images(8, seed=1)
    hashed: list[np.ndarray] = []
    with monkeypatch.context() as patch:
        patch.setattr(features, "fingerprint", lambda s, v: hashed.append(v) or fingerprint(s, v))
        first = projected(source, x, x_test, 4, folder=tmp_path)
    assert len(hashed) == 2, "each once"
    told: list[str] = []
    again = projected(source, x, x_test, 4, folder=tmp_path, tell=told.append)
    assert not told and first[2] == again[2] and all(map(np.array_equal, first[:2], again[:2]))
    other = projected(source, x, x_test, 3, folder=tmp_path, tell=told.append)
    assert other[0].shape == (40, 3) and told
    files = list(tmp_path.glob("projected-*.safetensors"))
    assert len(files) == 2
    for file in files:
        file.write_bytes(file.read_bytes()[:-5])  # torn: made again from the kept features
    monkeypatch.setattr(features, "extract", lambda *_: pytest.fail("features were kept"))
    made = projected(source, x, x_test, 4, folder=tmp_path)
    assert all(map(np.array_equal, first[:2], made[:2]))


def test_a_killed_extraction_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "BLOCK", 16)
    source, x, x_test = some(), images(64), images(8, seed=1)
    calls: list[int] = []

    def dies(net: Extractor, part: np.ndarray, cores: int) -> torch.Tensor:
        calls.append(len(part))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return extract(net, part, cores)

    monkeypatch.setattr(features, "extract", dies)
    with pytest.raises(KeyboardInterrupt):
        projected(source, x, x_test, 4, folder=tmp_path)
    found = projected(source, x, x_test, 4, folder=tmp_path)
    assert len(calls) == 3 + 2 + 1, "two blocks were there, two and the test half were not"
    alone = projected(some(), x, x_test, 4, folder=tmp_path / "b")
    assert all(map(np.array_equal, found[:2], alone[:2]))


# By name, wherever data are named.

SEEN = "features:digits,train=80,test=20,extractor=random-conv:filters=3,dim=6"


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FEDRIFT_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_features_are_named_like_any_data(own_cache: Path) -> None:
    found, plain = features.load(SEEN), features.load("digits:train=80,test=20")
    assert found.x.shape == (80, 6) and found.x_test.shape == (20, 6)
    assert np.array_equal(found.y, plain.y) and found.class_names == plain.class_names
    assert found.name == "features:digits" and not found.mean
    assert list((own_cache / "features").glob("projected-*"))
    wide = features.load("features:digits:train=80,test=20,extractor=random-conv:filters=3,dim=all")
    assert wide.x.shape == (80, 3 * 16)
    usual = features.load("features:digits:train=30,test=20,extractor=random-conv")
    assert usual.x.shape == (30, 30), "256 unless there are fewer"


# What was made before is found by the hash of the files, and nothing else is touched.


def write_arrays(path: Path, seed: int = 0, y: np.ndarray | None = None) -> str:
    rng = np.random.default_rng(seed)
    users = np.array(["lea", "ada", "bob"])[np.arange(40) % 3]
    np.savez(
        path,
        x=images(40, seed),
        y=rng.integers(0, 4, 40) if y is None else y,
        users=users,
        x_test=images(9, seed + 9),
        y_test=np.arange(9) % 4,
        users_test=users[:9],
    )
    return f"features:npz:{path},extractor=random-conv:filters=3,dim=4"


def same(a: DataSet, b: DataSet) -> bool:
    pairs = ((vars(a)[name], vars(b)[name]) for name in vars(a))
    return all(
        type(one) is type(other)
        and (np.array_equal(one, other) if isinstance(one, np.ndarray) else one == other)
        for one, other in pairs
    )


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The data sets that are read sample by sample from now on."""
    texts: list[str] = []
    load = datasets.load

    def noted(text: str, *rest: Any) -> DataSet:
        texts.append(text)
        return load(text, *rest)

    monkeypatch.setattr(datasets, "load", noted)
    return texts


def test_the_second_time_nothing_is_decoded_and_no_network_is_built(
    own_cache: Path, tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_arrays(tmp_path / "d.npz")
    first = features.load(text)
    assert len(decoded) == 1 and first.user_names == ("ada", "bob", "lea")
    monkeypatch.setattr(features, "extractor", lambda *_: pytest.fail("no network is needed"))
    assert same(features.load(text), first) and len(decoded) == 1


def test_values_are_not_taken_for_labels(own_cache: Path, tmp_path: Path) -> None:
    text = write_arrays(tmp_path / "d.npz")
    labels, values = features.load(text), features.load(text, None, "values")
    assert labels.y.dtype == np.int64 and values.y.dtype == np.float32
    assert same(features.load(text), labels)


def test_a_file_with_other_content_is_decoded_though_size_and_time_are_the_same(
    own_cache: Path, tmp_path: Path, decoded: list[str]
) -> None:
    path = tmp_path / "d.npz"
    first = features.load(write_arrays(path))
    there = path.stat()
    text = write_arrays(path, y=(first.y + 1) % 4)
    os.utime(path, ns=(there.st_atime_ns, there.st_mtime_ns))
    assert path.stat().st_size == there.st_size
    assert np.array_equal(features.load(text).y, (first.y + 1) % 4) and len(decoded) == 2


def test_a_file_that_changes_before_it_is_read_is_not_taken_for_what_was_there(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, load = tmp_path / "d.npz", datasets.load
    text = write_arrays(path)

    def meddled(*arguments: Any) -> DataSet:
        write_arrays(path, seed=5)  # it has been hashed by now
        return load(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(datasets, "load", meddled)
        other = features.load(text)
    write_arrays(path)
    assert not same(features.load(text), other)
    write_arrays(path, seed=5)
    assert same(features.load(text), other)


def test_other_code_of_ours_decodes_once_more(
    own_cache: Path, tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = write_arrays(tmp_path / "d.npz")
    first = features.load(text)
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a.py").write_text("changed = True")
    monkeypatch.setattr(feature_cache, "SOURCE", tmp_path / "source")
    assert same(features.load(text), first) and len(decoded) == 2
    (tmp_path / "source" / "a.py").write_text("changed = None")
    assert same(features.load(text), first) and len(decoded) == 3


@pytest.mark.parametrize("library", ["numpy", "torch", "pillow"])
def test_another_version_of_what_decodes_and_computes_decodes_once_more(
    library: str,
    own_cache: Path,
    tmp_path: Path,
    decoded: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = write_arrays(tmp_path / "d.npz")
    first = features.load(text)
    version = feature_cache.version
    monkeypatch.setattr(
        feature_cache, "version", lambda name: "other" if name == library else version(name)
    )
    assert same(features.load(text), first) and len(decoded) == 2


@pytest.mark.parametrize("kept", ["data", "projected"])
def test_a_damaged_record_is_made_again(
    own_cache: Path, tmp_path: Path, decoded: list[str], kept: str
) -> None:
    text = write_arrays(tmp_path / "d.npz")
    first = features.load(text)
    (record,) = (own_cache / "features").glob(f"{kept}-*")
    whole = record.read_bytes()
    damaged = [whole[:-5], b""]
    if kept == "data":  # a single wrong label is found as well
        damaged.append(whole[:-8] + bytes([whole[-8] ^ 1]) + whole[-7:])
    for content in damaged:
        record.write_bytes(content)
        decoded.clear()
        assert same(features.load(text), first) and len(decoded) == 1


def test_what_other_code_decides_is_never_remembered(
    own_cache: Path, tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ownnet.py").write_text(
        "from fedrift.models import Mlp\ndef make(input_shape, classes):\n"
        "    return Mlp(input_shape, classes, 5)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    text = write_arrays(tmp_path / "d.npz").replace("random-conv:filters=3", "ownnet:make")
    for _ in range(2):
        features.load(text)
        features.load(SEEN)
    assert len(decoded) == 4


def test_other_weights_are_another_network(
    own_cache: Path, tmp_path: Path, decoded: list[str]
) -> None:
    from safetensors.torch import save_file

    weights, found = tmp_path / "w.safetensors", []
    np.savez(tmp_path / "d.npz", x=images(12), y=np.arange(12) % 4)
    text = f"features:npz:{tmp_path / 'd.npz'},size=32,dim=4,weights={weights}"
    for seed in (0, 1, 1):
        torch.manual_seed(seed)
        state = factory("mobilenet-v2", (3, 32, 32), 7)().state_dict()
        save_file({k: v for k, v in state.items() if not k.startswith("prepared.")}, weights)
        found.append(features.load(text))
    assert not np.array_equal(found[0].x, found[1].x) and same(found[1], found[2])
    assert len(decoded) == 2


def test_a_run_of_features_has_the_same_bits_for_any_number_of_workers(
    own_cache: Path, tmp_path: Path
) -> None:
    from fedrift.api import run_spec
    from fedrift.config.spec import Spec

    said = {"algorithm": "fedavg", "data": SEEN, "model": "mlp:hidden=4,depth=1", "clients": 4}
    said |= {"partition": "dirichlet:1", "rounds": 2, "batch_size": 16}
    runs = [run_spec(Spec.of({**said, "workers": n})) for n in (0, 2)]
    assert runs[0].fingerprint == runs[1].fingerprint
    assert runs[0].problem.layout.names[0] == "fc1.weight"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("features", "names no data"),
        ("features:cifar11", "did you mean 'cifar10'"),
        ("features:digits,dims=3", "has no option 'dims'"),
        ("features:digits,extractor=mobilnet-v2", "did you mean 'mobilenet-v2'"),
        ("features:digits,weights=/no/such.safetensors", "there is no file '/no/such.safetensors'"),
        ("features:features:digits", "keep one"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_computed(text: str, said: str) -> None:
    from fedrift.config.spec import Spec

    with pytest.raises(InputError, match=said):
        Spec.of({"algorithm": "fedavg", "data": text}).validate()


def test_dimensions_must_be_there(own_cache: Path) -> None:
    with pytest.raises(InputError, match=r"dim \(or all\) must be a whole number .* not '49'"):
        features.load(SEEN.replace("dim=6", "dim=49"))


def test_weights_are_found_in_the_data_folder(
    own_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors.torch import save_file

    monkeypatch.delenv("FEDRIFT_DATA", raising=False)
    text = "features:digits:train=12,test=4,size=32,dim=4"
    with pytest.raises(InputError, match=f"no {features.WEIGHTS} in the data folder"):
        features.load(text, tmp_path)
    torch.manual_seed(0)
    net = factory("mobilenet-v2", (3, 32, 32), 7)()
    weights = {k: v for k, v in net.state_dict().items() if not k.startswith("prepared.")}
    save_file({k: v for k, v in weights.items() if "num_batches" not in k}, tmp_path / "own.st")
    save_file(weights, tmp_path / features.WEIGHTS)
    found = features.load(text, tmp_path)
    assert found.x.shape == (12, 4)
    named = features.load(f"{text},weights={tmp_path / 'own.st'}")
    assert np.array_equal(found.x, named.x)


def test_pictures_are_read_at_the_size_that_the_model_takes() -> None:
    from fedrift.data.datasets import seen_data
    from fedrift.grammar import parse

    text = "features:csv:a.csv,root=b,size=64,dim=9,extractor=random-conv"
    assert seen_data(parse(text, "data")) == "csv:a.csv,root=b,size=64"
    assert seen_data(parse("features:synthetic:1,1,size=64", "data")) == "synthetic:1,1"


def test_code_of_others_inside_is_named() -> None:
    from fedrift.config.own_code import foreign_code
    from fedrift.config.spec import Spec

    spec = Spec.of({"algorithm": "fedavg", "data": "features:my.data:make,extractor=my.nets:Net"})
    assert foreign_code(spec) == ["my.data:make", "my.nets:Net"]
    assert foreign_code(Spec.of({"algorithm": "fedavg", "data": SEEN})) == []
