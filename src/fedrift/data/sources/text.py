"""Text: windows of characters or bytes, with the next one to predict at every position.

Clients are files, speakers of a play, or contiguous shards. The last fifth of every client's text
is held out: a model is tested on what comes later, not on windows between those it has seen.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedrift.core.plain_files import read_plain
from fedrift.data.files import existing_path, reason
from fedrift.data.samples import TEST_SHARE, Samples
from fedrift.errors import InputError
from fedrift.grammar import Named, number

CONTEXT, SHARDS = 128, 10
LONGEST_CONTEXT, MOST_SHARDS = 8192, 100_000
LARGEST = 1 << 30  # bytes of one file
ALPHABETS, DIVISIONS = ("characters", "bytes"), ("files", "speakers", "shards")
IGNORED = -100  # the label of a position that holds nothing; cross-entropy passes over it
SPEAKER = re.compile(r"^([A-Z][^\n:]{0,60}):[ \t]*$", re.MULTILINE)

TEXT_OPTIONS = ("by", "shards", "alphabet", "context")
DOCS_OPTIONS = ("alphabet", "context")


def load_text(named: Named, _: Path | None) -> Samples:
    """A text file, or a folder of them."""
    if named.value is None:
        raise InputError("data set 'text' needs a path: text:FILE or text:FOLDER")
    path = existing_path(named.value, "text", folder=Path(named.value).expanduser().is_dir())
    by = _one_of(named, "by", DIVISIONS, "files" if path.is_dir() else "shards")
    if "shards" in named.options and by != "shards":
        raise InputError(f"data set 'text': shards is for by=shards, not for by={by}")
    shards = _whole(named, "shards", SHARDS, MOST_SHARDS)
    texts = _texts(path)
    if by == "speakers":
        texts = speakers("\n".join(texts.values()), str(path))
    elif by == "shards":
        texts = contiguous("\n".join(texts.values()), shards, str(path))
    return windows(named, texts)


def load_docs(named: Named, _: Path | None) -> Samples:
    """The topics of Python's own help, which every installation has: one client per topic."""
    from pydoc_data.topics import topics

    return windows(named, {str(name): str(text) for name, text in topics.items()})


def windows(named: Named, texts: Mapping[str, str]) -> Samples:
    """Windows of every client's text: the earlier part to train on, the last fifth to test on."""
    context = _whole(named, "context", CONTEXT, LONGEST_CONTEXT)
    encode = _encoder(_one_of(named, "alphabet", ALPHABETS, "characters"), texts)
    train: list[Window] = []
    test: list[Window] = []
    users: list[str] = []
    for name in sorted(texts):
        tokens = encode.tokens(texts[name])
        cut = len(tokens) - int(TEST_SHARE * len(tokens))
        earlier = cut_windows(tokens[:cut], context)
        train += earlier
        test += cut_windows(tokens[cut:], context)
        users += [name] * len(earlier)
    if not train or not test:
        raise InputError(f"data set '{named}': there is too little text for training and test")
    x, y = (np.stack(rows) for rows in zip(*train, strict=True))
    x_test, y_test = (np.stack(rows) for rows in zip(*test, strict=True))
    return Samples(x, y, encode.names, x_test, y_test, np.array(users), is_text=True)


class Window(NamedTuple):
    """Some tokens, and after each of them the next one."""

    x: np.ndarray
    y: np.ndarray


def cut_windows(tokens: np.ndarray, context: int) -> list[Window]:
    """Windows side by side; the last is filled up with positions that nobody has to predict."""
    rows: list[Window] = []
    for start in range(0, len(tokens) - 1, context):
        after = tokens[start + 1 : start + context + 1]
        x, y = np.zeros(context, np.int64), np.full(context, IGNORED, np.int64)
        x[: len(after)], y[: len(after)] = tokens[start : start + len(after)], after
        rows.append(Window(x, y))
    return rows


class Encoding(NamedTuple):
    """The alphabet of a text: what each number stands for."""

    names: tuple[str, ...]
    is_bytes: bool

    def tokens(self, text: str) -> np.ndarray:
        if self.is_bytes:
            return np.frombuffer(text.encode(errors="replace"), np.uint8).astype(np.int64)
        codes = np.frombuffer(text.encode("utf-32-le", errors="replace"), np.uint32)
        known = np.frombuffer("".join(self.names).encode("utf-32-le"), np.uint32)
        return np.searchsorted(known, codes).astype(np.int64)


def _encoder(alphabet: str, texts: Mapping[str, str]) -> Encoding:
    if alphabet == "bytes":
        return Encoding(tuple(f"{code:#04x}" for code in range(256)), is_bytes=True)
    seen: set[str] = set()
    for text in texts.values():
        seen.update(text.encode(errors="replace").decode())
    return Encoding(tuple(sorted(seen)), is_bytes=False)


def decode(tokens: np.ndarray, names: tuple[str, ...]) -> str:
    """Numbers as text again."""
    if names and names[0] == "0x00":
        return bytes(int(token) for token in tokens).decode(errors="replace")
    return "".join(names[int(token)] for token in tokens)


def speakers(text: str, where: str) -> dict[str, str]:
    """What each speaker of a play says, in its order: `NAME:` stands on a line of its own."""
    pieces = SPEAKER.split(text)[1:]
    spoken: dict[str, list[str]] = {}
    for name, speech in zip(pieces[::2], pieces[1::2], strict=True):
        spoken.setdefault(name.strip(), []).append(speech.strip("\n"))
    if not spoken:
        raise InputError(
            f"data set 'text': '{where}' has no line such as 'NAME:' that a speaker begins with; "
            "use by=files or by=shards"
        )
    return {name: "\n".join(speeches) for name, speeches in spoken.items()}


def contiguous(text: str, shards: int, where: str) -> dict[str, str]:
    """The text in so many pieces of equal length, one behind the other."""
    if shards > len(text):
        raise InputError(
            f"data set 'text': shards={shards} is more than the {len(text)} characters of '{where}'"
        )
    ends = [len(text) * i // shards for i in range(shards + 1)]
    width = len(str(shards - 1))
    return {f"shard {i:0{width}}": text[ends[i] : ends[i + 1]] for i in range(shards)}


def _texts(path: Path) -> dict[str, str]:
    files = [path]
    if path.is_dir():
        files = sorted(p for p in path.rglob("*") if p.is_file() and not p.name.startswith("."))
    texts = {str(p.relative_to(path)) if p != path else p.name: _read(p) for p in files}
    if not any(texts.values()):
        raise InputError(f"data set 'text': '{path}' holds no text")
    return texts


def _read(path: Path) -> str:
    try:
        text = read_plain(path, LARGEST).decode("utf-8", errors="replace")
        return io.StringIO(text, newline=None).read()  # lines end in one way
    except OSError as error:
        raise InputError(f"data set 'text': '{path}' cannot be read: {reason(error)}") from error


def _whole(named: Named, option: str, default: int, high: int) -> int:
    field = f"data set '{named.name}': {option}"
    return number(named.options.get(option, str(default)), field, kind=int, low=1, high=high)


def _one_of(named: Named, option: str, known: tuple[str, ...], default: str) -> str:
    text = named.options.get(option, default)
    if text not in known:
        raise InputError(
            f"data set '{named.name}': {option} must be {', '.join(known[:-1])} or {known[-1]}, "
            f"not '{text}'"
        )
    return text
