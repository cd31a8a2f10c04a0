"""MobileNetV2: torchvision's names and sizes, weights from a file, inputs as ImageNet's."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fedrift.config.models import choose_model
from fedrift.errors import InputError
from fedrift.models import factory
from fedrift.models.mobilenet import MEAN, STD, MobileNetV2, Prepared, mobilenet_v2
from tests.support.product import datasets

DATA = os.environ.get("FEDRIFT_DATA")
FILE = Path(DATA or ".") / "mobilenet_v2-imagenet.safetensors"
needs_weights = pytest.mark.skipif(
    not FILE.is_file(), reason="FEDRIFT_DATA holds no mobilenet_v2-imagenet.safetensors"
)


def parts(net: MobileNetV2) -> dict[str, Tensor]:
    """What torchvision would call its state, without the counters of batches."""
    held = net.state_dict()
    return {
        n: v
        for n, v in held.items()
        if not n.startswith("prepared.") and not n.endswith("num_batches_tracked")
    }


def test_names_and_sizes_are_torchvisions() -> None:
    held = parts(mobilenet_v2((3, 32, 32), 1000))
    assert len(held) == 262
    assert sum(v.numel() for v in held.values()) == 3_538_984
    assert next(iter(held)) == "features.0.0.weight" and list(held)[-1] == "classifier.1.bias"
    assert held["features.1.conv.0.0.weight"].shape == (32, 1, 3, 3)
    assert held["features.2.conv.2.weight"].shape == (24, 96, 1, 1)
    assert held["features.17.conv.3.running_var"].shape == (320,)
    assert held["features.18.0.weight"].shape == (1280, 320, 1, 1)


def test_images_reach_the_network_as_imagenet_scaled_ones() -> None:
    raw = torch.rand(2, 3, 8, 8)
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.25, 0.3)
    shaped = [torch.tensor(v).reshape(1, 3, 1, 1) for v in (mean, std, MEAN, STD)]
    normalised = (raw - shaped[0]) / shaped[1]
    expected = (raw - shaped[2]) / shaped[3]
    torch.testing.assert_close(Prepared(8, (mean, std))(normalised), expected)
    torch.testing.assert_close(Prepared(8, None)(raw), expected)
    grey = Prepared(8, ((0.1,), (0.3,)))((raw[:, :1] - 0.1) / 0.3)
    torch.testing.assert_close(grey, (raw[:, :1].expand(-1, 3, -1, -1) - shaped[2]) / shaped[3])
    assert Prepared(16, None)(raw).shape == (2, 3, 16, 16)


def test_weights_come_from_the_file_and_the_head_where_it_fits(tmp_path: Path) -> None:
    torch.manual_seed(0)
    path = tmp_path / "w.safetensors"
    held = parts(mobilenet_v2((3, 32, 32), 7))
    save_file(held, path)
    for classes, same in ((7, True), (5, False)):
        made = parts(factory(f"mobilenet-v2:weights={path},size=32", (3, 32, 32), classes)())  # type: ignore[arg-type]
        assert torch.equal(made["features.3.conv.1.0.weight"], held["features.3.conv.1.0.weight"])
        assert (made["classifier.1.bias"].shape == (7,)) is same
        if same:
            assert torch.equal(made["classifier.1.weight"], held["classifier.1.weight"])


def test_other_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.safetensors"
    with pytest.raises(InputError, match="there is no file"):
        choose_model(f"mobilenet-v2:weights={path}")
    path.write_bytes(b"no weights")
    with pytest.raises(InputError, match="cannot be read as safetensors"):
        mobilenet_v2((3, 32, 32), 5, str(path))
    held = parts(mobilenet_v2((3, 32, 32), 5))
    save_file({**held, "extra": torch.zeros(1)}, path)
    with pytest.raises(InputError, match="'extra' does not fit"):
        mobilenet_v2((3, 32, 32), 5, str(path))
    del held["features.4.conv.0.1.running_mean"]
    save_file(held, path)
    with pytest.raises(InputError, match=r"features\.4\.conv\.0\.1\.running_mean' does not fit"):
        mobilenet_v2((3, 32, 32), 5, str(path))
    with pytest.raises(InputError, match="of at least 32"):
        choose_model("mobilenet-v2:size=8")
    with pytest.raises(InputError, match="of 1 or 3 channels"):
        choose_model("mobilenet-v2", (2, 32, 32))


@needs_weights
@pytest.mark.slow
def test_published_weights_know_photographs() -> None:
    """Cars and trucks of CIFAR-10 are taken for vehicles of ImageNet, 29 of its 1,000 classes."""
    data = datasets.load("cifar10:test=200", Path(DATA or "."))
    make = factory(
        f"mobilenet-v2:weights={FILE},size=160", (3, 32, 32), 1000, (data.mean, data.std)
    )
    net = make().eval()
    chosen = np.isin(data.y_test, [data.class_names.index(n) for n in ("automobile", "truck")])
    with torch.no_grad():
        found = net(torch.from_numpy(data.x_test[chosen])).argmax(1).numpy()
    vehicles = [407, 436, 468, 511, 555, 569, 575, 609, 627, 656, 661, 675, 705, 717, 734, 751]
    vehicles += [779, 817, 829, 847, 864, 867, 874, 803, 565, 654, 581, 479, 586]
    assert np.isin(found, vehicles).mean() > 0.4  # by chance: 0.03
