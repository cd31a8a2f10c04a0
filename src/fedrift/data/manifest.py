"""A partition in a file: JSON with its scheme, seed, indices and the hashes that guard them.

Keys: `format` ("fedrift-partition"), `version` (1), `scheme`, `seed`, `clients`, `samples`,
`labels_sha256`, `parts_sha256`, `parts` (one list of sample indices per client).
"""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedrift.core.plain_files import read_plain, write_file
from fedrift.data.assignment import Ints, Partition
from fedrift.errors import InputError

FORMAT = "fedrift-partition"
VERSION = 1
KEYS = (
    "format",
    "version",
    "scheme",
    "seed",
    "clients",
    "samples",
    "labels_sha256",
    "parts_sha256",
    "parts",
)
ROOM = 1 << 20  # bytes for everything but the indices
ROOM_PER_SAMPLE = 64  # bytes: an index, its comma, and the indentation another tool may add
LONGEST_SCHEME = 10_000  # characters, as in the grammar


class _Refused(Exception):
    """Why the content cannot be used; `load` adds which file it was."""


def labels_digest(y: npt.ArrayLike) -> str:
    """sha256 of the targets: whole numbers as little-endian int64, others as they are."""
    targets = np.asarray(y)
    kind = "<i8" if targets.dtype.kind in "iub" else targets.dtype.newbyteorder("<").str
    whole = hashlib.sha256(f"{kind}{targets.shape}".encode())
    whole.update(np.ascontiguousarray(targets, kind).tobytes())
    return whole.hexdigest()


def save(partition: Partition, y: npt.ArrayLike, path: str | Path) -> Path:
    """Writes the partition of data with targets `y`: whole or not at all."""
    samples = len(np.asarray(y))
    if samples != partition.samples:
        raise InputError(
            f"y has {samples} samples, but the partition {partition.samples}; "
            "give the targets it was made from"
        )
    head = {
        "format": FORMAT,
        "version": VERSION,
        "scheme": partition.name,
        "seed": int(partition.seed),
        "clients": partition.clients,
        "samples": partition.samples,
        "labels_sha256": labels_digest(y),
        "parts_sha256": partition.digest,
    }
    # One client per line: small, and two files can be compared line by line.
    lines = ",\n".join(json.dumps(part.tolist(), separators=(",", ":")) for part in partition.parts)
    text = json.dumps(head, indent=1).removesuffix("\n}")
    return _write(Path(path), f'{text},\n "parts": [\n{lines}\n ]\n}}\n')


def _write(path: Path, text: str) -> Path:
    write_file(path, text)
    return path


def load(path: str | Path, y: npt.ArrayLike) -> Partition:
    """Reads a manifest for data with targets `y`; the file is not trusted in anything."""
    path, targets = Path(path), np.asarray(y)
    try:
        content = _read(path, ROOM + ROOM_PER_SAMPLE * len(targets))
        return _checked(content, targets)
    except _Refused as refused:
        raise InputError(f"manifest '{path}': {refused}") from None


def _read(path: Path, most: int) -> Any:
    try:
        raw = read_plain(path, most)
    except FileNotFoundError:
        raise _Refused("no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a path with a zero byte
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            raise _Refused(
                f"over {most:,} bytes, too large for these data; was it made for them?"
            ) from None
        raise _Refused(f"cannot be read ({error})") from None
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise _Refused(f"not valid JSON ({error}); make it anew") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    content = dict(pairs)
    if len(content) < len(pairs):
        raise ValueError("a key stands twice")
    return content


def _checked(content: Any, targets: npt.NDArray[np.generic]) -> Partition:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise _Refused(f"this is no partition manifest; 'format' must be '{FORMAT}'")
    if type(content.get("version")) is not int or content["version"] != VERSION:
        raise _Refused(f"its version is not known; this program reads version {VERSION}")
    if wrong := sorted(set(KEYS) ^ set(content)):
        why = "missing" if wrong[0] in KEYS else "not known"
        raise _Refused(f"key {wrong[0][:40]!r} is {why}")
    _check_head(content, targets)
    parts = _parts(content["parts"], content["clients"], len(targets))
    partition = Partition(content["scheme"], parts, content["seed"])
    if content["parts_sha256"] != partition.digest:
        raise _Refused("parts_sha256 does not fit the parts: changed or damaged; make it anew")
    return partition


def _check_head(content: dict[str, Any], targets: npt.NDArray[np.generic]) -> None:
    scheme = content["scheme"]
    if not isinstance(scheme, str) or len(scheme) > LONGEST_SCHEME or not scheme.isprintable():
        raise _Refused("scheme must be one line of text")
    for key, low in (("seed", 0), ("clients", 1), ("samples", 1)):
        # type(), not isinstance, here and below: true and false are ints too.
        if type(content[key]) is not int or content[key] < low:
            raise _Refused(f"{key} must be a whole number of at least {low}")
    if content["samples"] != len(targets):
        raise _Refused(f"made for {content['samples']} samples, but the data have {len(targets)}")
    if content["labels_sha256"] != labels_digest(targets):
        raise _Refused("labels_sha256 does not fit: made for other labels or another order")


def _parts(content: Any, clients: int, samples: int) -> tuple[Ints, ...]:
    if not isinstance(content, list) or len(content) != clients:
        raise _Refused(f"parts must be a list of {clients} lists, one per client")
    seen = np.zeros(samples, bool)
    parts: list[Ints] = []
    for client, part in enumerate(content):
        if not isinstance(part, list) or not all(type(index) is int for index in part):
            raise _Refused(f"part of client {client} must be a list of whole numbers")
        if part and (min(part) < 0 or max(part) >= samples):
            raise _Refused(f"part of client {client} has an index outside 0 to {samples - 1}")
        indices = np.unique(np.array(part, np.int64))
        if len(indices) < len(part) or seen[indices].any():
            raise _Refused(f"part of client {client} has a sample that is already given away")
        seen[indices] = True
        parts.append(indices)
    if not seen.all():
        raise _Refused(f"sample {int(seen.argmin())} belongs to no client; every sample needs one")
    return tuple(parts)
