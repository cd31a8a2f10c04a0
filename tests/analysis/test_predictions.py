"""Grids of test images with what each model takes them for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from fedrift.analysis import MEASURES, Case, NotMeasured, Options, predictions
from fedrift.analysis.examine import draw_file
from fedrift.cli import code_of
from tests.support.product import Loader, dump


def run(folder: Path, *more: str) -> Case:
    text = "run fedavg --clients 6 --per-round 3 --rounds 3 --workers 0 --quiet --out"
    assert code_of([*text.split(), str(folder), *more]) == 0
    return Loader().case(folder, "fedavg")


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    folder = tmp_path_factory.mktemp("runs") / "run"
    return run(folder, *"--data digits --model logistic --partition dirichlet:0.3".split())


def test_classes_are_shown_in_turn() -> None:
    labels = np.array([2, 2, 0, 2, -1, 0, 1])
    assert predictions.choose_images(labels, 5) == [2, 6, 0, 5, 1]
    assert predictions.choose_images(labels, 99) == [2, 6, 0, 5, 1, 3]


def test_pixels_reach_from_dark_to_light_in_every_channel() -> None:
    x = torch.rand(3, 3, 70, 5) * torch.tensor([1.0, 10.0, 0.1]).reshape(1, 3, 1, 1) - 4
    found = predictions.pixels(x)
    assert found.shape == (3, 35, 3, 3) and found.dtype == np.uint8
    assert found.min(axis=(0, 1, 2)).max() < 30 and found.max(axis=(0, 1, 2)).min() > 225
    flat = predictions.pixels(torch.ones(2, 4, 4))
    assert flat.shape == (2, 4, 4, 1)


def test_images_are_told_from_features() -> None:
    assert predictions.is_image(torch.zeros(5, 1, 8, 8))
    assert predictions.is_image(torch.zeros(5, 8, 8))
    assert not predictions.is_image(torch.zeros(5, 64))
    assert not predictions.is_image(torch.zeros(5, 2, 8, 8))
    assert not predictions.is_image((torch.zeros(5, 1, 8, 8),))


def test_every_row_is_what_that_model_says(case: Case) -> None:
    found = MEASURES["predictions"](case, Options(images=0, clients=2)).numbers
    x, y = case.test()
    models = {"global": case.weights}
    models |= {f"client {c}": seen.w for c, seen in case.trained(case.few(2)).items()}
    assert list(found["models"]) == list(models)
    places = predictions.choose_images(y.numpy(), 10)
    assert found["true"] == [int(y[i]) for i in places] == list(range(10))
    for name, w in models.items():
        said = case.model().logits(w, x).argmax(1)
        row = found["models"][name]
        assert list(row["labels"]) == [int(said[i]) for i in places]
        assert row["accuracy"] == pytest.approx(float((said == y).double().mean()))
    logged = case.history[-1]["accuracy"]
    assert found["models"]["global"]["accuracy"] == pytest.approx(logged)
    assert np.array(found["images"]).shape == (10, 8, 8, 1)
    dump(found)


def test_wrong_ones_are_marked(case: Case, tmp_path: Path) -> None:
    from fedrift.figures.classes import WRONG

    found = MEASURES["predictions"](case, Options(images=40, clients=1))
    path = draw_file(found.figures["images"], tmp_path / "images.svg")
    true, rows = np.array(found.numbers["true"]), found.numbers["models"].values()
    wrong = sum(int((np.array(row["labels"]) != true).sum()) for row in rows)
    assert path.read_text(encoding="utf-8").lower().count(WRONG.lower()) >= wrong > 0


def test_inputs_that_are_no_images_are_refused(tmp_path: Path) -> None:
    case = run(tmp_path / "run", "--data", "synthetic:1,1", "--model", "logistic")
    with pytest.raises(NotMeasured, match="not images"):
        MEASURES["predictions"](case, Options())
