"""The stages of secure aggregation on the wire: every reply checked, every byte counted."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from fedrift.backends.codec import Refused
from fedrift.backends.roster import PAUSE
from fedrift.errors import InputError

try:
    from flwr.common.secure_aggregation.secaggplus_constants import (  # pyright: ignore[reportMissingImports]
        RECORD_KEY_CONFIGS,
        Key,
        Stage,
    )
    from flwr.compat.common import recorddict_compat  # pyright: ignore[reportMissingImports]
    from flwr.supercore.primitives.asymmetric import (  # pyright: ignore[reportMissingImports]
        bytes_to_public_key,
    )
except ImportError:
    raise InputError(
        "secure aggregation needs flwr 1.41; install it with: pip install 'fedrift[flower]'"
    ) from None

MASKED_BYTES = 8  # of one masked number
LONGEST = 4096  # bytes of a key, a share or a sealed share
LOOK = 3.0  # seconds between looks at who is still there while waiting
FORM = {  # what a reply of each stage must hold, and what its values are
    Stage.SETUP: {Key.PUBLIC_KEY_1: bytes, Key.PUBLIC_KEY_2: bytes},
    Stage.SHARE_KEYS: {Key.DESTINATION_LIST: int, Key.CIPHERTEXT_LIST: bytes},
    Stage.COLLECT_MASKED_VECTORS: {Key.MASKED_PARAMETERS: bytes},
    Stage.UNMASK: {Key.NODE_ID_LIST: int, Key.SHARE_LIST: bytes},
}


class Line:
    """A Flower grid for one masked exchange.

    Flower's workflow believes what nodes answer, and one bad answer would end the run. Here it gets
    only what has the form of its stage; whoever sends anything else has dropped out.
    """

    def __init__(
        self, grid: Any, size: int, seconds: float, refused: Callable[[int, str], None]
    ) -> None:
        self._grid, self._size, self._refused = grid, size, refused
        self._end = time.monotonic() + seconds
        self._sharing: set[int] = set()
        self._keys: set[bytes] = set()
        self.up = self.down = 0
        """Bytes of the protocol besides the masked numbers."""

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float | None = None) -> Any:
        """Ask, and wait until all have answered, left, or the exchange's time is over."""
        sent = list(messages)
        stage = str(sent[0].content.config_records[RECORD_KEY_CONFIGS][Key.STAGE])
        asked = {m.metadata.dst_node_id for m in sent}
        if stage == Stage.COLLECT_MASKED_VECTORS:
            self._sharing = asked
        self.down += sum(_bytes(m.content.config_records[RECORD_KEY_CONFIGS]) for m in sent)
        nodes = [m.metadata.dst_node_id for m in sent]
        tickets = zip(self._grid.push_messages(sent), nodes, strict=True)
        waiting = {ticket: node for ticket, node in tickets if ticket}
        good: list[Any] = []
        look = time.monotonic() + LOOK
        while waiting and time.monotonic() < self._end:
            for reply in self._grid.pull_messages(set(waiting)):
                node = waiting.pop(reply.metadata.reply_to_message_id)
                try:
                    self._check(stage, node, asked, reply)
                    good.append(reply)
                except Refused as why:
                    self._refused(node, str(why))
            if waiting and time.monotonic() >= look:
                look, here = time.monotonic() + LOOK, set(self._grid.get_node_ids())
                for ticket in [t for t, node in waiting.items() if node not in here]:
                    self._refused(waiting.pop(ticket), "it has left")
            if waiting:
                time.sleep(PAUSE)
        for node in waiting.values():
            self._refused(node, "it missed the deadline")
        return good

    def _check(self, stage: str, node: int, asked: set[int], reply: Any) -> None:
        if reply.has_error():
            reason = reply.error.reason or "no reason given"
            raise Refused(f"{reason[:200]} (code {reply.error.code})")
        content = reply.content
        if reply.metadata.src_node_id != node:
            raise Refused("the reply comes from another node")
        if any(len(record) for record in content.array_records.values()):
            raise Refused("the reply has arrays that are not masked")
        said = content.config_records.get(RECORD_KEY_CONFIGS)
        if said is None or set(said) != set(FORM[stage]):
            raise Refused(f"the reply is not one of the stage '{stage}'")
        values = {name: _items(said[name], kind, name) for name, kind in FORM[stage].items()}
        masked = stage == Stage.COLLECT_MASKED_VECTORS
        if not masked and any(len(v) > LONGEST for vs in values.values() for v in vs if _is_raw(v)):
            raise Refused(f"the reply of the stage '{stage}' has an item above {LONGEST} bytes")
        if masked:
            self._check_vector(content, values[Key.MASKED_PARAMETERS])
        elif stage == Stage.SETUP:
            self._check_keys([one for vs in values.values() for one in vs])
        else:
            self._check_shares(stage, node, asked, *values.values())
        self.up += _bytes(said) - (MASKED_BYTES * (self._size + 1) if masked else 0)

    def _check_keys(self, keys: Sequence[bytes]) -> None:
        """Keys that nobody can use would make the honest nodes fail."""
        try:
            curves = {bytes_to_public_key(key).curve.name for key in keys}
        except Exception as error:  # whatever the parser does not like
            raise Refused(f"a public key cannot be read: {type(error).__name__}") from None
        if curves != {"secp384r1"}:
            raise Refused("a public key is of another kind")
        if len(set(keys)) != 2 or self._keys & set(keys):
            raise Refused("a public key is there twice")
        self._keys |= set(keys)

    def _check_shares(
        self, stage: str, node: int, asked: set[int], nodes: Sequence[int], items: Sequence[bytes]
    ) -> None:
        wanted = asked - {node} if stage == Stage.SHARE_KEYS else self._sharing
        if sorted(nodes) != sorted(wanted) or len(items) != len(nodes):
            raise Refused("its shares are not one for each node")

    def _check_vector(self, content: Any, arrays: Sequence[bytes]) -> None:
        shapes = ((1,), (self._size,))
        if len(arrays) != len(shapes):
            raise Refused(f"the masked reply has {len(arrays)} arrays, expected are a weight and 1")
        for raw, shape in zip(arrays, shapes, strict=True):
            most = MASKED_BYTES * shape[0] + LONGEST
            if len(raw) > most:
                raise Refused(f"a masked array has {len(raw)} bytes, at most are {most}")
            try:
                array = np.load(io.BytesIO(raw), allow_pickle=False)
            except (ValueError, EOFError, OSError, KeyError, SyntaxError):
                raise Refused("a masked array cannot be read") from None
            if array.shape != shape or array.dtype != np.int64:
                said = f"{array.dtype} of shape {array.shape}"
                raise Refused(f"a masked array is {said}, expected is int64 of shape {shape}")
        try:
            recorddict_compat.recorddict_to_fitres(content, True)
        except Exception as error:  # the form of Flower's records, which it does not check
            raise Refused(f"the reply's records are incomplete: {type(error).__name__}") from None


def _items(value: Any, kind: type, name: str) -> Sequence[Any]:
    items: Sequence[Any] = value if isinstance(value, list) else [value]
    if any(type(item) is not kind for item in items):
        raise Refused(f"'{name}' is not made of {kind.__name__}")
    return items


def _is_raw(value: Any) -> bool:
    return isinstance(value, bytes)


def _bytes(record: Any) -> int:
    """Names and values of a record, as Flower carries them; numbers take eight bytes."""
    total = 0
    for name, value in record.items():
        items: Sequence[Any] = value if isinstance(value, list) else [value]
        total += len(name.encode())
        total += sum(len(v) if isinstance(v, (bytes, str)) else 8 for v in items)
    return total
