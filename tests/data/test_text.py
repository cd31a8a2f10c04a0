"""Text: windows, alphabets, clients, what is held out, and what users get wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fedrift.data import datasets
from fedrift.data.sources import text
from fedrift.errors import InputError

PLAY = (
    "ANNA:\nGood day, good day to you all.\n\nBERT:\nHello there, hello!\n\nANNA:\nFarewell now.\n"
)


def test_windows_predict_the_next_token_and_ignore_what_is_filled_up() -> None:
    rows = text.cut_windows(np.arange(8), 3)
    assert [row.x.tolist() for row in rows] == [[0, 1, 2], [3, 4, 5], [6, 0, 0]]
    assert [row.y.tolist() for row in rows] == [[1, 2, 3], [4, 5, 6], [7, -100, -100]]
    assert text.cut_windows(np.arange(1), 3) == []


@pytest.mark.parametrize("alphabet", ["characters", "bytes"])
def test_a_text_can_be_read_back(tmp_path: Path, alphabet: str) -> None:
    words = "Größe, naïve café – ∑ 😀\n" * 20
    (tmp_path / "a.txt").write_text(words)
    data = datasets.load(f"text:{tmp_path},alphabet={alphabet},context=7")
    assert data.is_text and data.x.shape[1] == 7 and data.classes == len(data.class_names)
    assert data.classes == (256 if alphabet == "bytes" else len(set(words)))
    kept = data.y >= 0
    whole = np.concatenate([data.x[:1, 0], data.y[kept]])
    assert words.startswith(text.decode(whole, data.class_names)[:-2])


def test_the_end_of_every_client_is_held_out(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("a" * 80 + "b" * 20)
    (tmp_path / "two.txt").write_text("c" * 160 + "d" * 40)
    data = datasets.load(f"text:{tmp_path},context=10")
    seen, unseen = (
        {data.class_names[t] for t in np.unique(v)}
        for v in (data.y[data.y >= 0], data.y_test[data.y_test >= 0])
    )
    assert (seen, unseen) == ({"a", "c"}, {"b", "d"})
    assert data.user_names == ("one.txt", "two.txt") and data.users is not None
    assert np.bincount(data.users).tolist() == [8, 16]


def test_clients_are_files_speakers_or_shards(tmp_path: Path) -> None:
    file = tmp_path / "play.txt"
    file.write_text(PLAY)
    by_speaker = datasets.load(f"text:{file},by=speakers,context=8")
    assert by_speaker.user_names == ("ANNA", "BERT")
    assert len(datasets.load(f"text:{file},shards=4,context=8").user_names) == 4
    assert text.speakers(PLAY, "")[
        "ANNA"
    ] == "\nGood day, good day to you all.\nFarewell now.".strip("\n")
    assert "".join(text.contiguous(PLAY, 7, "").values()) == PLAY


def test_python_docs_have_natural_clients_and_need_no_file() -> None:
    data = datasets.load("python-docs:context=64")
    assert len(data.user_names) > 50 and data.x.dtype == np.int64
    assert data.x.shape == data.y.shape and int(data.y.max()) < data.classes
    fewer = datasets.load("python-docs:context=64,train=100,test=50")
    assert (len(fewer.y), len(fewer.y_test)) == (100, 50)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("by=words", "by must be files, speakers or shards, not 'words'"),
        ("alphabet=greek", "alphabet must be characters or bytes, not 'greek'"),
        ("context=0", "context must be a whole number of at least 1"),
        ("by=files,shards=3", "shards is for by=shards, not for by=files"),
        ("shards=100000", "shards=100000 is more than the"),
        ("by=speakers", "has no line such as 'NAME:'"),
    ],
)
def test_bad_options_are_refused_in_one_sentence(tmp_path: Path, options: str, words: str) -> None:
    file = tmp_path / "some.txt"
    file.write_text("no speaker here\n" * 9)
    with pytest.raises(InputError, match=words.replace("(", "\\(")):
        datasets.load(f"text:{file},{options}")


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no text"):
        datasets.load(f"text:{tmp_path / 'empty'}")
    with pytest.raises(InputError, match="is not a file"):
        datasets.load(f"text:{tmp_path / 'missing.txt'}")
    (tmp_path / "short.txt").write_text("ab")
    with pytest.raises(InputError, match="too little text"):
        datasets.load(f"text:{tmp_path / 'short.txt'},shards=1")
