"""Visits in this process through the codec: everything encoded, decoded and watched."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

from torch import Tensor

from fedrift.backends.backend import RunParts
from fedrift.backends.codec import through
from fedrift.backends.in_process import InProcess, Visit
from fedrift.backends.visit import Reply, VisitInput, Visitor
from fedrift.core.exchange import Exchange
from fedrift.core.messages import pack
from fedrift.core.phases import owner_of


class Wire:
    """Stands between server and clients, and checks that a visit writes to nothing it is given."""

    def __init__(self, visitor: Visitor) -> None:
        self._visitor = visitor

    def __call__(self, visit: Visit, exchange: Exchange, given: VisitInput) -> Reply:
        kinds, owner = exchange.signature, self._visitor.owner(owner_of(exchange.phase))
        state = self._visitor.initial(self._visitor.state_path(exchange.phase))
        sent = self._visitor.sent(exchange.phase)
        down = through(kinds.down, exchange.down, *sent, side="down", payload=exchange.payload)
        private = through(kinds.private, given.private, *owner)
        mine = through(type(state), given.mine, *owner, like=state)
        before = _digest(down, private, mine)
        reply = visit(replace(exchange, down=down), VisitInput(given.client, private, mine))
        if _digest(down, private, mine) != before:
            raise AssertionError(f"'{exchange.phase}' wrote to its message or its old state")
        up = through(kinds.up, reply.up, *owner, side="up", payload=reply.payload)
        new = through(type(state), reply.mine, *owner, like=state)
        return replace(reply, up=up, mine=new)


def _digest(*values: Any) -> bytes:
    digest = hashlib.sha256()
    for value in values:
        for path, leaf in pack(value).items():
            is_tensor = isinstance(leaf, Tensor)
            content = leaf.cpu().numpy().tobytes() if is_tensor else repr(leaf).encode()
            digest.update(path.encode() + content)
    return digest.digest()


def make(run: RunParts) -> InProcess:
    """The backend of a run."""
    wire = Wire(run.visitor)
    return InProcess(run.visitor, run.store, run.evaluator, watch=wire, meter=run.meter)
