"""A node: one client's data and state on its own machine; answers the server's envelopes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save

from fedrift.backends.codec import Codec, Piece, Pieces, Refused, SummedMessage, piece, tensors
from fedrift.backends.visit import Call, Reply, Visitor
from fedrift.core.exchange import Signature
from fedrift.core.isolation import borrowed_generators
from fedrift.core.phases import is_evaluation, owner_of
from fedrift.core.plain_files import replace_bytes
from fedrift.federation.protocol import (
    Envelope,
    Value,
    buffer_forms,
    declared_signature,
    digest,
    frozen_forms,
    read_header,
    report_header,
)
from fedrift.storage.shared_memory import DTYPES

LARGEST = 8.0  # value that can be masked


class Node:
    """Runs visits of one client, and keeps its state in files named by version.

    The server says which version a visit starts from and which one it makes; a round that is void,
    repeated or forgotten by a killed server therefore leaves the state it started from.
    """

    def __init__(
        self, visitor: Visitor, client: int, samples: int, experiment: str, folder: Path
    ) -> None:
        self._visitor, self._client, self._samples = visitor, client, samples
        self._experiment = experiment
        self._folder = folder / experiment / str(client)

    def about(self) -> Envelope:
        """Who this is, asked once."""
        return Envelope(
            {
                "client": self._client,
                "clients": self._visitor.problem.population,
                "samples": self._samples,
                "experiment": self._experiment,
            }
        )

    def answer(self, envelope: Envelope) -> Envelope:
        """The reply to a visit, or why it is refused."""
        try:
            return self._answer(envelope)
        except Refused as why:
            return Envelope({"refused": str(why)[:200], "client": self._client})

    def masked(self, envelope: Envelope) -> tuple[np.ndarray, int, dict[str, Value]]:
        """A visit whose reply will be masked: one vector, its weight, and what is said openly."""
        reply, kinds, header = self._visit(envelope)
        owner, problem = self._visitor.owner(owner_of(_phase(envelope)))
        if reply.up is None or not reply.is_finite or reply.buffers:
            raise Refused("this reply cannot be masked: silent, not finite, or with buffers")
        weight = self._samples if owner.weighting() == "samples" else 1
        heaviest = read_header(envelope, "heaviest", int)
        vector = SummedMessage(kinds.up, owner, problem).vector(reply.up, weight)
        if not 0 < weight <= heaviest or np.abs(vector).max() * weight > LARGEST * heaviest:
            raise Refused(f"a weight above {heaviest} or a value above {LARGEST} cannot be masked")
        return vector, weight, header

    def _answer(self, envelope: Envelope) -> Envelope:
        reply, kinds, header = self._visit(envelope)
        owner, problem = self._visitor.owner(owner_of(_phase(envelope)))
        up: Pieces = {}
        if reply.up is not None:
            up = Codec(kinds.up, owner, problem).encode(reply.up, reply.payload)
        moved = {str(i): piece(b) for i, b in enumerate(reply.buffers)}
        if read_header(envelope, "reports", int):
            header |= report_header(reply.training())
        return Envelope(header, {"up": up, "buffers": moved})

    def _visit(self, envelope: Envelope) -> tuple[Reply, Signature, dict[str, Value]]:
        if read_header(envelope, "experiment", str) != self._experiment:
            raise Refused("the server runs another experiment or another version of the app")
        if read_header(envelope, "client", int) != self._client:
            raise Refused(f"this node is client {self._client}")
        phase = read_header(envelope, "phase", str)
        kinds = declared_signature(self._visitor.root, phase, self._visitor.problem)
        path = self._visitor.state_path(phase)
        owner, problem = self._visitor.owner(owner_of(phase))
        sent = self._visitor.sent(phase)
        down = Codec(kinds.down, *sent, side="down").decode(envelope.part("down"))
        private = None
        if kinds.private is not None and envelope.part("private"):
            private = Codec(kinds.private, owner, problem).decode(envelope.part("private"))
        buffers = tensors(envelope.part("buffers"), buffer_forms(sent[1]))
        if len(buffers) != len(sent[1].moving):
            raise Refused("some of the buffers are missing")
        call = Call(
            phase,
            read_header(envelope, "round", int),
            read_header(envelope, "seed", int),
            read_header(envelope, "temperature", float),
        )
        initial = self._visitor.initial(path)
        states = None if initial is None else Codec(type(initial), owner, problem, initial)
        read, write = (read_header(envelope, name, int) for name in ("read", "write"))
        # Those that a void round or a killed server goes back to.
        kept = {read_header(envelope, name, int) for name in ("start", "saved", "before")}
        mine = initial if states is None or read < 0 else states.decode(self._read(path, read))
        with borrowed_generators():  # what is drawn for masks must not be known from the run's seed
            reply = self._visitor.visit(
                call,
                self._client,
                down,
                private,
                mine,
                tuple(buffers[str(i)] for i in range(len(buffers))),
                tensors(self._frozen(envelope), frozen_forms(problem)),
            )
        if states is not None:
            if reply.is_finite and not is_evaluation(phase):
                self._write(self._file(path, write), states.encode(reply.mine))
            self._forget(path, {read, write, *kept})
        header: dict[str, Value] = {
            "client": self._client,
            "write": write,
            "speaks": int(reply.up is not None),
            "finite": int(reply.is_finite),
            "gradients": reply.work.gradients,
            "forwards": reply.work.forwards,
            "steps": reply.work.steps,
        }
        return reply, kinds, header

    def _file(self, path: str, version: int | str) -> Path:
        return self._folder / (path or "root") / f"{version}.safetensors"

    def _read(self, path: str, version: int) -> Pieces:
        file = self._file(path, version)
        if not file.exists():
            raise Refused(f"the state of client {self._client} that the server knows is lost here")
        return self._load(file)

    @staticmethod
    def _load(file: Path) -> Pieces:
        try:
            return {name: piece(value) for name, value in load(file.read_bytes()).items()}
        except (SafetensorError, OSError) as error:
            raise Refused(f"'{file.name}' cannot be read here: {error}") from None

    @staticmethod
    def _write(file: Path, pieces: Pieces) -> None:
        file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        replace_bytes(file, save({name: _raw(one) for name, one in pieces.items()}))

    def _forget(self, path: str, needed: set[int]) -> None:
        names = {f"{version}.safetensors" for version in needed}
        for file in self._file(path, 0).parent.glob("*.safetensors"):
            if file.name not in names:
                file.unlink(missing_ok=True)

    def _frozen(self, envelope: Envelope) -> Pieces:
        """What the run has frozen: sent once, then known by its hash."""
        name, given = read_header(envelope, "frozen", str), dict(envelope.part("frozen"))
        if not name:
            return {}
        if not re.fullmatch("[0-9a-f]{16}", name):
            raise Refused("header 'frozen' is no hash")
        file = self._file("frozen", name)
        if given:
            if digest(given) != name:
                raise Refused("the frozen parameters are not those of their hash")
            tensors(given, frozen_forms(self._visitor.owner(owner_of(_phase(envelope)))[1]))
            self._write(file, given)
            return given
        if not file.exists():
            raise Refused("the frozen parameters are not known here; send them again")
        return self._load(file)


def _phase(envelope: Envelope) -> str:
    return read_header(envelope, "phase", str)


def _raw(one: Piece) -> Any:
    flat: Any = torch.frombuffer(bytearray(one.data), dtype=DTYPES[one.dtype]) if one.data else None
    return torch.empty(one.shape, dtype=DTYPES[one.dtype]) if flat is None else flat.view(one.shape)
