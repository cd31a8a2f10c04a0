"""Run folders that a stranger forged, and such that a disk or a person has damaged.

A forger knows what the files mean: values, keys, lines and tensors are exchanged for others, hashes
made to fit, links and pipes put in place of files. Damage does not: bytes, files and whole ends of
files. Every reader then has the folder; what each may not do is in `trial.flaws`, and nobody may
take for right what is not: `verify` and `resume`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.stress.hostile.originals import Original, loaded, read
from tests.stress.hostile.trial import (
    Ended,
    Place,
    command,
    differing,
    flaws,
    seen,
    started,
)

DEEP: Any = 0
for _ in range(300):
    DEEP = [DEEP]
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2**31, 2**63, 10**30, -(10**30), 10**400, 0.5, -0.0),
    *(1e308, float("nan"), float("inf"), -float("inf"), "", "x", "nan", "done", "a" * 5000),
    *("\x1b[31mred\x07", "\ud800", "\u202eabc", "<script>alert(1)</script>", "../beside/victim"),
    *([], [[]], [0], [-1, 10**12], [None], list(range(500)), {}, {"x": 1}, {"": []}, DEEP),
)
CODE = ("evil:Class", "swa(evil:Class)", "ray:127.0.0.1:9", "huggingface:x", "evil:load")
SPEC_VALUES = (
    *("-1", "0", "1e400", "nan", "10000000000", '"x"', "[]", "{}", "true", '""', '"\\u001b[31m"'),
    *("1979-05-27", '"' + "a" * 5000 + '"', "500", "[[0, 1], [2]]", "0.5"),
)
READERS = ("load", "report", "verify", "merge", "analyse", "resume")
"""In this order: the last two write into the folder, the others nothing; `load` is also `watch`."""
READ_ONLY = READERS[:4]
TURNS = {"report": 3, "verify": 4, "merge": 2, "analyse": 1, "resume": 5}
"""Everything is loaded and watched; of the others two read a folder, this often."""
Change = Callable[[random.Random, Path], None]


# Damage.


def files_of(folder: Path) -> list[Path]:
    return sorted(p for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def _some(r: random.Random, folder: Path) -> Path:
    found = files_of(folder)
    return r.choice(found) if found else folder / "spec.toml"


def _content(path: Path) -> bytes:
    return path.read_bytes() if path.is_file() else b""


def flipped(r: random.Random, folder: Path) -> None:
    """Some bits are others."""
    path = _some(r, folder)
    content = bytearray(_content(path))
    for _ in range(r.choice((1, 1, 2, 20))):
        if content:
            content[r.randrange(len(content))] ^= 1 << r.randrange(8)
    path.write_bytes(content)


def replaced(r: random.Random, folder: Path) -> None:
    """Some bytes are others, gone, or new."""
    path = _some(r, folder)
    content = bytearray(_content(path))
    at = r.randrange(len(content) + 1)
    content[at : at + r.choice((0, 1, 8, 100))] = r.randbytes(r.choice((0, 1, 8, 100)))
    path.write_bytes(content)


def cut_short(r: random.Random, folder: Path) -> None:
    path = _some(r, folder)
    content = _content(path)
    path.write_bytes(content[: r.choice((0, r.randrange(len(content) + 1), len(content) - 1))])


def zeroed(r: random.Random, folder: Path) -> None:
    """A block of zeros, as some file systems leave after a crash."""
    path = _some(r, folder)
    content = bytearray(_content(path))
    at = r.randrange(len(content) + 1)
    end = min(len(content), at + r.choice((16, 512, 1 << 20)))
    content[at:end] = bytes(end - at)
    path.write_bytes(content)


def lengthened(r: random.Random, folder: Path) -> None:
    path = _some(r, folder)
    with path.open("ab") as file:
        file.write(r.choice((b"\0" * 100, b"\n", b"{", r.randbytes(50), _content(path))))


def removed(r: random.Random, folder: Path) -> None:
    _some(r, folder).unlink(missing_ok=True)


def exchanged(r: random.Random, folder: Path) -> None:
    """One file is in the place of another."""
    one, other = _some(r, folder), _some(r, folder)
    if one.exists() and other.exists():
        other.write_bytes(_content(one))


def mixed_up(r: random.Random, folder: Path) -> None:
    """A line is lost, doubled, or in another place."""
    path = r.choice([p for p in files_of(folder) if p.suffix in (".jsonl", ".toml")] or [folder])
    lines = _content(path).splitlines(keepends=True)
    if lines:
        line = lines[r.randrange(len(lines))]
        if r.random() < 0.6:
            lines.remove(line)
        if r.random() < 0.6:
            lines.insert(r.randrange(len(lines) + 1), line)
        path.write_bytes(b"".join(lines))


DAMAGES: tuple[Change, ...] = (
    *(flipped, replaced, cut_short, zeroed, lengthened, removed, exchanged, mixed_up),
)


# Forgery.


def _put(r: random.Random, tree: Any) -> Any:
    """The tree with one value exchanged, taken away or added somewhere in it."""
    if isinstance(tree, dict) and tree and r.random() < 0.85:
        key = r.choice(list(tree))
        chance = r.random()
        if chance < 0.15:
            return {k: v for k, v in tree.items() if k != key}
        if chance < 0.25:
            return tree | {str(r.choice(VALUES[10:]))[:50]: tree[key]}
        return tree | {key: _put(r, tree[key])}
    if isinstance(tree, list) and tree and r.random() < 0.6:
        at = r.randrange(len(tree))
        return [*tree[:at], _put(r, tree[at]), *tree[at + 1 :]]
    if isinstance(tree, (int, float)) and not isinstance(tree, bool) and r.random() < 0.4:
        return r.choice((tree + 1, -tree, tree * 2, tree / 2 + 0.01, 1 - tree))
    return r.choice(VALUES)


def _named(r: random.Random, folder: Path, suffix: str) -> Path | None:
    found = [p for p in files_of(folder) if p.suffix == suffix]
    return r.choice(found) if found else None


def record(r: random.Random, folder: Path) -> None:
    """A value of summary.json, env.json, clients.json or an analysis."""
    if path := _named(r, folder, ".json"):
        path.write_text(_dumped(_put(r, json.loads(path.read_text()))))


def _dumped(value: Any) -> str:
    return json.dumps(value, allow_nan=True)


def line(r: random.Random, folder: Path) -> None:
    """A value of one of the lines, or the order or number of lines."""
    path = _named(r, folder, ".jsonl")
    if path is None:
        return
    rows = [json.loads(text) for text in path.read_text().splitlines()]
    if rows:
        at = r.randrange(len(rows))
        chance = r.random()
        if chance < 0.7:
            rows[at] = _put(r, rows[at])
        elif chance < 0.8:
            rows.append(rows[at])
        elif chance < 0.9:
            rows.pop(at)
        else:
            rows = [*rows, *({**rows[-1], "round": n} for n in range(4, 400))]
    path.write_text("".join(f"{_dumped(row)}\n" for row in rows))


def settings(r: random.Random, folder: Path) -> None:
    """A setting of the spec, of the origin or of the comparison."""
    path = _named(r, folder, ".toml")
    if path is None:
        return
    lines = path.read_text().splitlines()
    at = r.randrange(len(lines))
    key, is_setting, _ = lines[at].partition(" = ")
    chance = r.random()
    if chance < 0.15:
        lines.pop(at)
    elif chance < 0.25:
        lines.insert(at, f"{r.choice(('unknown', 'out', key))} = {r.choice(SPEC_VALUES)}")
    elif chance < 0.5:
        name = r.choice(("algorithm", "data", "model", "loss", "backend", "track"))
        kept = [text for text in lines if not text.startswith(f"{name} =")]
        lines = [f'{name} = "{r.choice(CODE)}"', *kept]
    elif is_setting:
        lines[at] = f"{key} = {r.choice(SPEC_VALUES)}"
    path.write_text("\n".join(lines) + "\n")


DTYPES = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "I64", "I8", "U8", "BOOL", "X")


def header(r: random.Random, folder: Path) -> None:
    """What a file of tensors says of itself."""
    path = _named(r, folder, ".safetensors")
    if path is None:
        return
    content = path.read_bytes()
    (size,) = struct.unpack("<Q", content[:8])
    said = json.loads(content[8 : 8 + size])
    name = r.choice(list(said))
    match r.randrange(6):
        case 0 if "dtype" in said[name]:
            said[name]["dtype"] = r.choice(DTYPES)
        case 1 if "shape" in said[name]:
            said[name]["shape"] = r.choice(([], [0], [10**15], [-1], [2, 2, 2], [1] * 70))
        case 2 if "data_offsets" in said[name]:
            said[name]["data_offsets"] = r.choice(([0, 0], [0, 2**60], [5, 1], [-4, 4]))
        case 3:
            said[r.choice(("../x", "\x1b[31m", "a" * 500, ""))] = said.pop(name)
        case 4:
            said["__metadata__"] = r.choice(({}, {"fedrift": "{}"}, {"fedrift": "x", "sha256": ""}))
        case _:
            said = _put(r, said)
    new = _dumped(said).encode()
    lies = r.choice((len(new), len(new), len(new), 2**62, 0, 3))
    path.write_bytes(struct.pack("<Q", lies) + new + content[8 + size :])


def tensors(r: random.Random, folder: Path) -> None:
    """Numbers of a model or a checkpoint; the hash of a checkpoint is made to fit."""
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    path = _named(r, folder, ".safetensors")
    if path is None:
        return
    with safe_open(path, framework="pt") as file:
        metadata = dict(file.metadata() or {})
        held = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    name = r.choice(list(held))
    new = held[name].clone()
    match r.randrange(5):
        case 0:
            new = new.to(r.choice((torch.bfloat16, torch.float16, torch.float64, torch.int32)))
        case 1:
            new = torch.cat([new.reshape(-1), new.reshape(-1)])
        case 2 if new.numel():
            new.view(-1)[r.randrange(new.numel())] = r.choice((7, -1, 2**31))
        case 3 if new.is_floating_point():
            new = torch.full_like(new, r.choice((float("nan"), float("inf"), 1e38)))
        case _:
            held.pop(name)
    held = held if name not in held else held | {name: new}
    if "fedrift" in metadata:
        if r.random() < 0.4:
            metadata["fedrift"] = _dumped(_put(r, json.loads(metadata["fedrift"])))
        metadata["sha256"] = _fitting(metadata["fedrift"], held)
    save_file(held, path, metadata or None)


def _fitting(head: str, held: dict[str, Any]) -> str:
    """The hash that a checkpoint with this content has."""
    import torch

    digest = hashlib.sha256(head.encode())
    for name in sorted(held):
        tensor = held[name]
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def states(r: random.Random, folder: Path) -> None:
    """What clients have kept."""
    if path := _named(r, folder, ".rows"):
        content = bytearray(path.read_bytes())
        match r.randrange(3):
            case 0 if content:
                at = r.randrange(len(content))
                content[at : at + 64] = struct.pack("<16f", *[r.choice((0.0, 1e30))] * 16)
            case 1:
                content = content[: len(content) // 2]
            case _:
                content += bytes(4096)
        path.write_bytes(content)


def special(r: random.Random, folder: Path) -> None:
    """A link, a pipe, a device, a folder, a second name or a huge file in place of a file."""
    names = [
        *("spec.toml", "origin.toml", "summary.json", "rounds.jsonl", "ledger.jsonl", "env.json"),
        *("model.safetensors", "checkpoint.safetensors", "clients.json", "client_rounds.jsonl"),
        *("analysis", "clients", "clients/root.rows", ".x.tmp", "analysis/classes.json"),
    ]
    path = folder / r.choice(names)
    beside = next(p.parent for p in folder.parents if p.name == "work") / "beside"
    content = _content(path) if path.is_file() else b""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    match r.randrange(8):
        case 0:
            os.mkfifo(path)
        case 1:
            path.symlink_to("/dev/zero")
        case 2:
            path.symlink_to(beside / "victim")
        case 3:
            path.symlink_to(beside / "folder")
        case 4:
            path.mkdir()
        case 5:
            with path.open("wb") as file:
                file.truncate(1 << 42)
        case 6:
            path.symlink_to("nowhere")
        case _:
            (beside / "victim").write_bytes(content)
            os.link(beside / "victim", path)


FORGERIES: tuple[Change, ...] = (
    *(record, record, line, line, settings, settings, header, tensors, tensors, states, special),
)
KINDS = {"forged": FORGERIES, "damaged": DAMAGES}


def changes(kind: str, seed: int, number: int) -> list[tuple[Change, str]]:
    """What is done to the folder: each change, and the seed it draws from."""
    r = random.Random(f"{kind} {seed} {number}")
    count = r.choice((1, 1, 1, 2, 3))
    return [(r.choice(KINDS[kind]), f"{kind} {seed} {number} {i}") for i in range(count)]


SPOILED = (OSError, ValueError, KeyError, TypeError, RecursionError, MemoryError, struct.error)


def changed(folder: Path, what: Sequence[tuple[Change, str]]) -> None:
    for change, seed in what:
        try:
            change(random.Random(seed), folder)
        except SPOILED:
            continue  # what an earlier change has left cannot be changed like this
        except Exception as error:
            if type(error).__name__ not in ("SafetensorError", "RuntimeError"):
                raise


# Readers.


def acted(reader: str, name: str, other: str) -> Callable[[], int]:
    match reader:
        case "load":
            return loaded(name)
        case "report":
            return command(["report", name, "--out", "page.html"])
        case "verify":
            return command(["verify", name, "--workers", "0", "--quiet"])
        case "merge":
            return command(["merge", name, other])
        case "analyse":
            return command(["analyse", name, "--what", "classes", "--images", "50", "--quiet"])
        case _:
            return command(["resume", name, "--workers", "0", "--json"])


def judged(
    original: Original,
    kind: str,
    what: Sequence[tuple[Change, str]],
    originals: Path,
    root: Path,
    readers: Sequence[str] = READERS,
) -> list[str]:
    """What is wrong with how readers took a folder; each as `reader: flaw`."""
    place = Place(root)
    try:
        shutil.copytree(originals / original.name, place.work / original.name)
        shutil.copytree(originals / "done", place.work / "other")
        changed(place.work / original.run, what)
        place.settle()
        found: list[str] = []
        for reader in readers:
            before = seen(place.work)
            ended = started(place, acted(reader, original.run, "other")).ended()
            if ended.code is None:  # on a busy machine: once more
                ended = started(place, acted(reader, original.run, "other")).ended()
            flawed = flaws(ended) + place.trespass()
            new = [n for n in differing(before, seen(place.work)) if n != "page.html"]
            if reader in READ_ONLY and new:
                flawed.append(f"written: '{new[0]}' of what is only read")
            if reader == "verify" and ended.code == 0:
                flawed += _passed(place, original, ended)
            if reader == "resume" and ended.code == 0:
                flawed += _gone_on(place, original, kind, ended)
            found += [f"{reader}: {one}" for one in flawed]
        return found
    finally:
        place.remove()


def _passed(place: Place, original: Original, ended: Ended) -> list[str]:
    """What `verify` has called right must be what it was, in all files that it has looked at."""
    now = started(place, loaded(original.run)).ended()
    if now.code != 0:
        return ["wrong result: verified, but it cannot be read"]
    before, after = original.hashes, json.loads(now.out)
    if before["spec.toml"] != after["spec.toml"]:
        return []  # another run, and a right one
    unseen = (ended.out + ended.errors).partition("not at ")[2]
    here = [name for name in before if (place.work / original.run / name).exists()]
    other = [n for n in here if before[n] != after[n] and n not in unseen]
    return [f"wrong result: verified, but {name} is another" for name in other]


def _gone_on(place: Place, original: Original, kind: str, ended: Ended) -> list[str]:
    """A run that went on ends as it would have, or `verify` finds that it does not."""
    try:
        mark = json.loads(ended.out)["fingerprint"]
    except (ValueError, KeyError, TypeError):
        return ["wrong result: no fingerprint is printed"]
    if mark == original.fingerprint:
        return []
    if kind == "forged":  # who can make hashes fit can make another run; it does not verify
        again = started(place, acted("verify", original.run, "")).ended()
        if again.code != 0:
            return [f"then verify: {one}" for one in flaws(again)]
        now = started(place, loaded(original.run)).ended().out
        if json.loads(now)["spec.toml"] != original.hashes["spec.toml"]:
            return []
    return [f"wrong result: {mark} in place of {original.fingerprint}"]


def chosen(kind: str, seed: int, number: int) -> list[str]:
    """Who reads a folder."""
    r = random.Random(f"readers of {kind} {seed} {number}")
    first, second = r.choices(list(TURNS), list(TURNS.values()), k=2)
    return [name for name in READERS if name in ("load", first, second)]


def case(kind: str, seed: int, number: int, originals: Path, scratch: Path) -> dict[str, Any]:
    """One folder and its readers; with what reproduces a flaw."""
    known = read(originals)
    original = known[sorted(known)[number % len(known)]]
    what, readers = changes(kind, seed, number), chosen(kind, seed, number)
    found = judged(original, kind, what, originals, scratch / f"{kind}-{number}", readers)
    shown = what
    if found and len(what) > 1:
        reader = found[0].partition(":")[0]
        for i, one in enumerate(what):
            small = [one]
            if judged(original, kind, small, originals, scratch / f"{kind}-{number}-{i}", [reader]):
                shown = small
                break
    how = ", ".join(change.__name__ for change, _ in shown)
    counts = {f"by {name}": 1 for name in readers} | {"by watch": 1}
    return {"flaws": found, "shown": f"{original.name} with: {how}", "counts": counts}
