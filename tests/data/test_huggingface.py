"""Data sets of Hugging Face and partitioners of flwr-datasets: everything offline."""

# pyright: reportMissingImports=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedrift as fr
from tests.support.problems import Net, blobs, small_run
from tests.support.product import load_data

datasets = pytest.importorskip("datasets", reason="needs fedrift[datasets]")
pytest.importorskip("flwr_datasets", reason="needs fedrift[datasets]")
pytestmark = pytest.mark.filterwarnings("ignore")


def pictures(n: int) -> Any:
    from PIL import Image

    made = [Image.fromarray(np.full((6, 5, 3), i % 256, np.uint8)) for i in range(n)]
    features = datasets.Features(
        {"img": datasets.Image(), "kind": datasets.ClassLabel(names=["cat", "dog"])}
    )
    columns = {"img": made, "kind": [i % 2 for i in range(n)]}
    return datasets.Dataset.from_dict(columns, features=features)


def test_pictures_and_their_classes_are_found(tmp_path: Path) -> None:
    both = datasets.DatasetDict({"train": pictures(8), "test": pictures(4)})
    both.save_to_disk(str(tmp_path / "saved"))
    data = load_data(f"huggingface:{tmp_path / 'saved'}")
    assert data.x.shape == (8, 3, 6, 5) and data.x_test.shape == (4, 3, 6, 5)
    assert data.class_names == ("cat", "dog") and data.y.tolist() == [0, 1] * 4


def test_a_table_with_users(tmp_path: Path) -> None:
    held = {"f": [[float(i), 0.0] for i in range(20)], "y": [i % 2 for i in range(20)]}
    held["who"] = [i // 5 for i in range(20)]
    datasets.Dataset.from_dict(held).save_to_disk(str(tmp_path / "saved"))
    data = load_data(f"huggingface:{tmp_path / 'saved'},x=f,y=y,users=who")
    assert data.x.shape == (16, 2) and data.users is not None
    with pytest.raises(fr.InputError, match="say which column is x"):
        load_data(f"huggingface:{tmp_path / 'saved'}")
    with pytest.raises(fr.InputError, match="no column 'g'"):
        load_data(f"huggingface:{tmp_path / 'saved'},x=g,y=y")


def test_a_partitioner_divides_as_flower_does() -> None:
    from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner

    x, y = blobs(200)
    how: dict[str, Any] = {"partition_by": "label", "alpha": 0.5, "seed": 3}
    clients = fr.split(x, y, DirichletPartitioner(num_partitions=4, **how))
    again = fr.split(x, y, DirichletPartitioner(num_partitions=4, **how))
    assert len(clients) == 4
    assert np.array_equal(np.sort(np.concatenate(clients.parts)), np.arange(200))
    assert all(np.array_equal(a, b) for a, b in zip(clients.parts, again.parts, strict=True))
    assert small_run("fedavg", model=Net, clients=clients, rounds=1).status == "done"
    assert fr.split(x, y, IidPartitioner(3)).sizes.tolist() == [67, 67, 66]
    with pytest.raises(fr.InputError, match="must be a text such as dirichlet"):
        fr.split(x, y, 7)
