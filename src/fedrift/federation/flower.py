"""Envelopes over Flower: records of raw arrays, and a transport that is a Flower grid."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fedrift.backends.codec import Piece, Refused
from fedrift.errors import InputError
from fedrift.federation.protocol import Envelope

try:
    from flwr.app import (  # pyright: ignore[reportMissingImports]
        Array,
        ArrayRecord,
        ConfigRecord,
        Message,
        RecordDict,
    )
except ImportError:
    raise InputError(
        "a Flower federation needs the package flwr; install it with: pip install 'fedrift[flower]'"
    ) from None

HEADER = "fedrift"
RAW = "fedrift.raw"  # how the bytes of an array are to be read
PARTS = ("down", "private", "buffers", "frozen", "up")


def to_records(envelope: Envelope) -> Any:
    """An envelope as Flower carries it."""
    records: dict[str, Any] = {HEADER: ConfigRecord(dict(envelope.header))}
    for part, pieces in envelope.parts.items():
        if pieces:
            arrays = {
                path: Array(dtype=p.dtype, shape=p.shape, stype=RAW, data=p.data)
                for path, p in pieces.items()
            }
            records[part] = ArrayRecord(arrays)
    return RecordDict(records)


def from_records(records: Any) -> Envelope:
    """The envelope in a message that nobody vouches for."""
    parts: dict[str, dict[str, Piece]] = {}
    for name, record in records.array_records.items():
        if name not in PARTS:
            raise Refused(f"part '{str(name)[:40]}' is not declared")
        parts[name] = {str(path): _piece(str(path), array) for path, array in record.items()}
    strange = set(records.config_records) - {HEADER}
    if strange or records.metric_records or HEADER not in records.config_records:
        raise Refused("the message has other records than a header and declared parts")
    return Envelope(dict(records.config_records[HEADER]), parts)


def _piece(path: str, array: Any) -> Piece:
    if array.stype != RAW:
        raise Refused(f"field '{path[:40]}' is not a raw array")
    return Piece(str(array.dtype), tuple(int(n) for n in array.shape), bytes(array.data))


class FlowerTransport:
    """The grid of a Flower server app as a transport."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> set[int]:
        return set(self._grid.get_node_ids())

    def send(self, kind: str, envelopes: Mapping[int, Envelope]) -> dict[str, int]:
        if not envelopes:
            return {}
        nodes = list(envelopes)
        messages = [
            Message(to_records(envelopes[node]), dst_node_id=node, message_type=kind)
            for node in nodes
        ]
        tickets: Iterable[str] = self._grid.push_messages(messages)
        return {t: node for t, node in zip(tickets, nodes, strict=True) if t}

    def collect(self, tickets: set[str]) -> dict[str, Envelope | str]:
        replies: dict[str, Envelope | str] = {}
        if not tickets:
            return replies
        for message in self._grid.pull_messages(tickets):
            ticket = message.metadata.reply_to_message_id
            if message.has_error():
                error = message.error
                replies[ticket] = f"{error.reason or 'no reason given'} (code {error.code})"[:300]
                continue
            try:
                replies[ticket] = from_records(message.content)
            except (Refused, TypeError, ValueError, AttributeError) as why:
                replies[ticket] = str(why)[:300]
        return replies
