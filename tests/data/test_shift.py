"""Feature shift: each client's own strength, the rest of the array untouched."""

from __future__ import annotations

import numpy as np
import pytest

from fedrift.data.shift import shift
from fedrift.errors import InputError

IMAGES = np.random.default_rng(0).standard_normal((12, 2, 7, 7)).astype(np.float32)
PARTS = (np.array([0, 3]), np.array([1, 2, 4]), np.arange(5, 12))


def test_the_original_stays_and_the_result_keeps_its_type() -> None:
    before = IMAGES.copy()
    shifted = shift("rotation:30+contrast:0.5+noise:1", IMAGES, PARTS, seed=0)
    assert np.array_equal(IMAGES, before)
    assert shifted.dtype == np.float32 and shifted.shape == IMAGES.shape
    assert shift("noise:1", np.zeros((12, 3), np.uint8), PARTS, seed=0).dtype == np.float32


def test_rotation_goes_from_minus_to_plus() -> None:
    turned = shift("rotation:90", IMAGES, PARTS, seed=0)
    for part, quarters in zip(PARTS, (-1, 0, 1), strict=True):
        expected = np.rot90(IMAGES[part], quarters, axes=(2, 3))
        assert turned[part] == pytest.approx(expected, abs=1e-5)


def test_rotation_agrees_with_scipy() -> None:
    from scipy import ndimage

    turned = shift("rotation:33", IMAGES, PARTS, seed=0)
    expected = ndimage.rotate(
        IMAGES[PARTS[2]], 33, axes=(3, 2), reshape=False, order=1, mode="nearest"
    )
    assert turned[PARTS[2]] == pytest.approx(expected, abs=1e-4)


def test_rotation_of_images_that_are_not_square() -> None:
    from scipy import ndimage

    wide = np.random.default_rng(1).standard_normal((2, 1, 4, 9))
    turned = shift("rotation:20", wide, (np.array([0]), np.array([1])), seed=0)
    for i, angle in enumerate((-20, 20)):
        expected = ndimage.rotate(wide[i, 0], angle, reshape=False, order=1, mode="nearest")
        assert turned[i, 0] == pytest.approx(expected, abs=1e-9)


def test_noise_grows_from_client_to_client() -> None:
    x = np.zeros((3000, 50))
    parts = np.split(np.arange(3000), 3)
    noisy = shift("noise:0.5", x, parts, seed=0)
    assert [noisy[part].std() for part in parts] == pytest.approx([0, 0.25, 0.5], rel=0.02)
    assert abs(np.corrcoef(noisy[parts[1]].ravel(), noisy[parts[2]].ravel())[0, 1]) < 0.02


def test_noise_depends_on_seed_and_client_only() -> None:
    x = np.zeros((4, 5))
    first = shift("noise:1", x, (np.array([0]), np.array([1, 2, 3])), seed=0)
    again = shift("noise:1", x, (np.array([2]), np.array([0, 1, 3])), seed=0)
    assert np.array_equal(first[[1, 2, 3]], again[[0, 1, 3]])
    assert not np.array_equal(first, shift("noise:1", x, (np.array([0]), np.arange(1, 4)), seed=1))


def test_contrast_keeps_the_mean_of_each_image() -> None:
    changed = shift("contrast:0.4", IMAGES, PARTS, seed=0)
    assert changed.mean(axis=(1, 2, 3)) == pytest.approx(IMAGES.mean(axis=(1, 2, 3)), abs=1e-6)
    ratio = changed.std(axis=(1, 2, 3)) / IMAGES.std(axis=(1, 2, 3))
    for part, factor in zip(PARTS, (0.6, 1, 1.4), strict=True):
        assert ratio[part] == pytest.approx(factor, rel=1e-4)


def test_several_shifts_follow_one_another() -> None:
    both = shift("contrast:0.4+rotation:30", IMAGES, PARTS, seed=0)
    steps = shift("rotation:30", shift("contrast:0.4", IMAGES, PARTS, seed=0), PARTS, seed=0)
    assert np.array_equal(both, steps)


def test_one_client_stands_in_the_middle_and_an_empty_one_is_passed_over() -> None:
    alone = shift("rotation:50+contrast:0.5", IMAGES, (np.arange(12),), seed=0)
    assert alone == pytest.approx(IMAGES, abs=1e-6)
    empty = shift("rotation:90", IMAGES, (np.array([], np.int64), np.arange(12)), seed=0)
    assert empty == pytest.approx(np.rot90(IMAGES, axes=(2, 3)), abs=1e-5)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("rotation", "needs one strength"),
        ("rotation:30,x=1", "unknown option"),
        ("rotation:30,20", "must be a number"),
        ("rotation:30,domains=1", "at least 2"),
        ("rotation:30,domains=101", "at most 100"),
        ("rotation:30,domains=2.5", "a whole number"),
        ("rotation:30,unseen=0", "say domains=D too"),
        ("rotation:30,domains=clients,unseen=0", "say domains=D too"),
        ("rotation:30,domains=3,unseen=3", "at most 2, not '3'"),
        ("rotation:30,domains=3,unseen=1|1", "twice"),
        ("rotation:30,domains=2,unseen=0|1", "leaves no domain"),
        ("rotation:30,domains=3,unseen=0,1", "joined by |"),
        ("rotation:30,domains=5,unseen=1", "4 domains are to be seen, but there are only 3"),
        ("rotation:181", "at most 180, not '181'"),
        ("contrast:1.5", "at most 1"),
        ("noise:-1", "at least 0"),
        ("noise:nan", "must be a number"),
        ("blur:1", "unknown shift 'blur'"),
        ("noise:1+", "does not start with a name"),
    ],
)
def test_bad_shifts(text, says) -> None:
    with pytest.raises(InputError) as caught:
        shift(text, IMAGES, PARTS, seed=0)
    assert says in str(caught.value)


@pytest.mark.parametrize("text", ["rotation:10", "contrast:0.1", "noise:1+rotation:1"])
def test_vectors_have_noise_only(text) -> None:
    with pytest.raises(InputError, match="is for images"):
        shift(text, np.zeros((12, 4)), PARTS, seed=0)
