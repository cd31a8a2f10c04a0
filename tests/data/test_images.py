"""Pictures on disk: class folders, csv tables, and files that are no pictures."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from fedrift.data.sources import images
from fedrift.errors import InputError
from tests.support.product import load_data


def draw(path: Path, value: int, size: tuple[int, int] = (8, 6), mode: str = "RGB") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    shade = (value, 0, 255) if mode == "RGB" else value
    Image.new(mode, size, shade).save(path)


def refused(text: str, *words: str) -> None:
    with pytest.raises(InputError) as caught:
        load_data(text)
    for word in words:
        assert word in str(caught.value)


def test_a_folder_per_class(tmp_path: Path):
    for at in range(10):
        draw(tmp_path / "cat" / f"{at}.png", at)
        draw(tmp_path / "ant" / "deep" / f"{at}.PNG", 100 + at)
    (tmp_path / "cat" / "notes.txt").write_text("no picture")
    (tmp_path / ".hidden").mkdir()
    data = load_data(f"images:{tmp_path}")
    assert data.class_names == ("ant", "cat") and data.x.shape == (16, 3, 6, 8)
    assert np.bincount(data.y_test).tolist() == [2, 2] and data.users is None
    assert (data.mean, data.std) == ((0.5,) * 3, (0.5,) * 3)
    red = (data.x[:, 0, 0, 0] * 0.5 + 0.5) * 255
    assert ((red > 50) == (data.y == 0)).all()
    assert (data.x[:, 1] == -1).all() and (data.x[:, 2] == 1).all()


def test_train_and_test_folders_and_size(tmp_path: Path):
    for half, number in (("train", 3), ("test", 2)):
        for at in range(number):
            draw(tmp_path / half / "a" / f"{at}.jpg", 200, (30 + at, 20), "L")
            draw(tmp_path / half / "b" / f"{at}.jpg", 10, (64, 64 + at), "L")
    refused(f"images:{tmp_path}", "size=PIXELS", "30×20")
    data = load_data(f"images:{tmp_path},size=16")
    assert data.x.shape == (6, 1, 16, 16) and data.x_test.shape == (4, 1, 16, 16)
    assert np.allclose((data.x[:3] * 0.5 + 0.5) * 255, 200, atol=2)
    draw(tmp_path / "test" / "c" / "0.jpg", 10, (9, 9), "L")
    refused(f"images:{tmp_path},size=16", "class 'c' has no training picture")


def test_one_coloured_picture_makes_all_coloured(tmp_path: Path):
    draw(tmp_path / "a" / "0.png", 50, mode="L")
    draw(tmp_path / "a" / "1.png", 50, mode="RGB")
    draw(tmp_path / "b" / "0.gif", 0, mode="P")
    draw(tmp_path / "b" / "1.webp", 50)
    data = load_data(f"images:{tmp_path}")
    assert data.x.shape[1] == 3 and len(data.y) + len(data.y_test) == 4


def test_the_middle_square_is_kept(tmp_path: Path):
    wide = np.zeros((10, 30, 3), np.uint8)
    wide[:, 10:20] = 255
    for at in range(4):
        (tmp_path / "a").mkdir(exist_ok=True)
        Image.fromarray(wide).save(tmp_path / "a" / f"{at}.png")
    assert (load_data(f"images:{tmp_path},size=5").x == 1).all()


def test_folder_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    refused(f"images:{tmp_path}", "no sub-folders")
    (tmp_path / "a").mkdir()
    refused(f"images:{tmp_path}", "holds no pictures", ".png")
    draw(tmp_path / "a" / "0.png", 5)
    refused(f"images:{tmp_path}", "1 sample")
    refused(f"images:{tmp_path},size=0", "size", "'0'")
    refused(f"images:{tmp_path},root=x", "no option 'root'")
    Image.new("I;16", (8, 6)).save(tmp_path / "a" / "1.png")
    refused(f"images:{tmp_path}", "1.png", "8 bits")
    monkeypatch.setattr(images, "MOST_PIXELS", 40)
    refused(f"images:{tmp_path}", "0.png", "8×6", "too many")
    monkeypatch.setattr(images, "LARGEST", 10)
    refused(f"images:{tmp_path},size=4", "too many")


def test_memory_is_estimated_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    draw(tmp_path / "a" / "0.png", 5)
    monkeypatch.setattr(images, "LARGEST", 8 * 6 * 3 * 4 - 1)
    refused(f"images:{tmp_path}", "of memory", "smaller size=")


def table(folder: Path, text: str) -> str:
    (folder / "table.csv").write_text(text)
    return f"csv:{folder / 'table.csv'}"


def test_a_table_with_users(tmp_path: Path):
    lines = ["path, Label, user, split"]
    for at in range(12):
        draw(tmp_path / "pics" / f"{at}.png", at)
        split = "test" if at >= 9 else "train"
        lines.append(f"{at}.png,{(9, 10)[at % 2]},{'' if at >= 9 else 'uvw'[at // 3]},{split}")
    text = table(tmp_path, "\ufeff" + "\n".join(lines))
    refused(text, "0.png' does not exist")
    data = load_data(f"{text},root={tmp_path / 'pics'}")
    assert data.class_names == ("9", "10") and data.y.tolist() == [0, 1] * 4 + [0]
    assert data.users is not None and data.users.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert len(data.y_test) == 3 and data.x.shape == (9, 3, 6, 8)
    thinned = load_data(f"{text},root={tmp_path / 'pics'},train=2,test=1,size=4")
    assert thinned.x.shape == (2, 3, 4, 4) and len(thinned.y_test) == 1


def test_a_table_without_users_or_split(tmp_path: Path):
    for at in range(10):
        draw(tmp_path / f"{at}.png", at)
    data = load_data(table(tmp_path, "label,path\n" + "".join(f"x,{at}.png\n" for at in range(10))))
    assert data.users is None and len(data.y_test) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ("no column 'path'",)),
        ("path,user\n", ("no column 'label'", "path, user")),
        ("path,label\n", ("no rows",)),
        ("path,label\n0.png\n", ("line 2", "no label")),
        ("path,label,user\n0.png,a,\n", ("line 2", "no user")),
        ("path,label,split\n0.png,a,valid\n", ("line 2", "'valid'")),
        ("path,label,split\n0.png,a,test\n", ("no training picture",)),
        ("path,label\n0.png,-1\n", ("label '-1'",)),
        ("path,label\n0.png,0.5\n", ("label '0.5'",)),
        ("path,label\n0.png,nan\n", ("label 'nan'",)),
        ('path,label\n"0.png,a\n', ("csv",)),
        ("path,label\n0.png," + "a" * 200_000, ("csv",)),
        ("path,label\ntable.csv\0,a\n", ("picture",)),
        ("path,label\ntable.csv,a\n", ("table.csv", "picture")),
    ],
)
def test_table_mistakes(tmp_path: Path, text: str, words: tuple[str, ...]):
    refused(table(tmp_path, text), *words, "table.csv")


@pytest.mark.timeout(60)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes here")
def test_a_pipe_is_no_picture(tmp_path: Path):
    for name in ("a", "b"):
        (tmp_path / "all" / name).mkdir(parents=True)
        draw(tmp_path / "all" / name / "0.png", 9)
    pipe = tmp_path / "all" / "a" / "pipe.png"
    os.mkfifo(pipe)
    refused(f"images:{tmp_path / 'all'}", "pipe.png", "not a plain file")
    refused(table(tmp_path, "path,label\nall/b/0.png,b\nall/a/pipe.png,a\n"), "pipe.png")


def test_a_table_that_is_no_text(tmp_path: Path):
    (tmp_path / "table.csv").write_bytes(b"path,label\n\xff\xfe\x00,1\n")
    refused(f"csv:{tmp_path / 'table.csv'}", "table.csv", "csv")
    refused(f"csv:{tmp_path / 'table.csv'},root={tmp_path / 'none'}", "root", "none")


@pytest.mark.parametrize("suffix", ["png", "jpg", "webp", "bmp", "gif", "tif", "ppm"])
def test_damaged_pictures(tmp_path: Path, suffix: str):
    draw(tmp_path / "a" / "0.png", 7)
    file = tmp_path / "a" / f"1.{suffix}"
    draw(file, 90)
    original = file.read_bytes()
    random, refusals = np.random.default_rng(0), 0
    for trial in range(60):
        damage = bytearray(original)
        if trial < 15:
            del damage[int(random.integers(0, len(damage))) :]
        for at in random.integers(0, max(1, len(damage)), trial % 5):
            if damage:
                damage[at] ^= int(random.integers(1, 256))
        file.write_bytes(bytes(damage))
        try:
            load_data(f"images:{tmp_path},size=4")
        except InputError as problem:
            refusals += 1
            assert file.name in str(problem) or "0.png" in str(problem)
    assert refusals > 0


def test_only_plain_formats_are_read(tmp_path: Path):
    """Some of Pillow's other formats start programs."""
    draw(tmp_path / "a" / "0.png", 7)
    Image.new("RGB", (8, 6)).save(tmp_path / "a" / "1.png", "PCX")
    refused(f"images:{tmp_path}", "1.png", "cannot be read as a picture")
