"""One single-threaded worker per core: longest client first, folded in client-id order."""

from __future__ import annotations

import pickle
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import send_handle
from typing import Any

import cloudpickle
from torch import Tensor

from fedrift.algorithm import Exchange, Outcome, owner_of
from fedrift.backends import context, hidden_main
from fedrift.backends.visit import Call, Chunk, Evaluator, Fold, Reply, Visitor
from fedrift.backends.worker import Ask, Evaluation, Setup, Visit, main
from fedrift.data.resident import Split
from fedrift.errors import InputError, RunError
from fedrift.flat import Vec
from fedrift.messages import Packed, pack, unpack
from fedrift.shared import Block, skeleton, tree_to_packed
from fedrift.store import Store, Table

PARKED_IN_MEMORY = 64  # replies waiting for their turn beyond this many go to a scratch file
DEATHS = 3  # workers that may die in a run before it is given up

Cost = Callable[[int, int], float]


@dataclass
class Peer:
    """A worker as the parent sees it."""

    process: BaseProcess
    pipe: Connection
    tasks: deque[tuple[str, Any]] = field(default_factory=deque)
    slots: dict[str, Block] = field(default_factory=dict)
    free: list[str] = field(default_factory=list)
    knows: int = 0
    """Number of the exchange it was told about last."""


@dataclass
class Evaluating:
    """An evaluation whose chunks are spread over the workers."""

    backend: Processes
    ticket: int
    parts: dict[int, Chunk]
    total: int

    def chunks(self) -> list[Chunk]:
        while len(self.parts) < self.total:
            self.backend.pump()
        return [self.parts[i] for i in range(self.total)]


class Processes:
    """Workers are started once per run and told of everything over their pipes."""

    def __init__(
        self,
        visitor: Visitor,
        store: Store,
        evaluator: Evaluator | None,
        workers: int,
        cost: Cost,
        method: str | None = None,
    ) -> None:
        if not isinstance(visitor.clients, Split):
            raise InputError("workers: this kind of client data cannot be shared; use workers=0")
        self.workers = workers
        self._context, self._store, self._cost = context(method), store, cost
        self._sizes = visitor.clients.sizes
        self._blocks = {name: Block() for name in ("data", "down", "evaluation")}
        self._setup = self._describe(visitor, visitor.clients, evaluator)
        self._chunks = len(evaluator) if evaluator is not None else 0
        self._evaluation: deque[Evaluation] = deque()
        self._evaluating: Evaluating | None = None
        self._exchange = 0
        self._ticket = 0
        self._ask = b""
        self._deaths = 0
        self._visits: deque[Visit] = deque()
        self._parked: dict[int, tuple[Peer, Visit, tuple[Any, ...]]] = {}
        self.peers: list[Peer] = []
        try:
            for _ in range(workers):
                self.peers.append(self._start())
        except BaseException:
            self.close()
            raise

    def _describe(self, visitor: Visitor, split: Split, evaluator: Evaluator | None) -> bytes:
        trees = {"x": split.x, "y": split.y}
        if evaluator is not None:
            trees |= {"x_test": evaluator.x, "y_test": evaluator.y}
        packed: Packed = {}
        for name, tree in trees.items():
            packed |= tree_to_packed(tree, name)
        packed["parts"], packed["ends"] = split.flat()
        setup = Setup(
            root=visitor.root,
            problem=visitor.problem,
            augment=visitor.augment,
            measure=evaluator.measure if evaluator is not None else dict,  # type: ignore[arg-type]
            keeps_outputs=evaluator.keeps_outputs if evaluator is not None else False,
            has_test=evaluator is not None,
            skeletons={name: skeleton(tree) for name, tree in trees.items()},
            where=self._blocks["data"].put(packed),
            layouts={p: t.rows.layout for p, t in self._store.tables.items()},
        )
        try:
            return cloudpickle.dumps(setup)
        except (TypeError, pickle.PicklingError, AttributeError) as error:
            raise InputError(
                f"workers: the model, loss or algorithm cannot be sent to a worker ({error}); "
                "use workers=0, or build what cannot be pickled inside the model's factory"
            ) from error

    def _start(self) -> Peer:
        ours, theirs = self._context.Pipe(duplex=True)
        process = self._context.Process(target=main, args=(theirs,), daemon=True)  # type: ignore[attr-defined]
        with hidden_main():
            process.start()
        theirs.close()
        peer = Peer(process, ours)
        for name, block in self._blocks.items():
            self._send_block(peer, "attach", name, block.descriptor)
        peer.pipe.send(("setup", self._setup))
        for path, table in self._store.tables.items():
            self._send_block(peer, "rows", path, table.rows.descriptor)
        return peer

    @staticmethod
    def _send_block(peer: Peer, kind: str, name: str, descriptor: int) -> None:
        peer.pipe.send((kind, name))
        send_handle(peer.pipe, descriptor, peer.process.pid)

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        fold = Fold(exchange.signature, exchange.weights, exchange.buffers)
        table = self._store.tables.get(owner_of(exchange.phase))
        waiting = deque(sorted(clients))
        self._visits.extend(self._prepare(exchange, clients, table))
        self._feed()
        while waiting:
            while waiting and waiting[0] in self._parked:
                self._fold(fold, exchange, table, waiting.popleft())
            if waiting:
                self.pump()
        return fold.outcome()

    def _prepare(
        self, exchange: Exchange, clients: Sequence[int], table: Table | None
    ) -> list[Visit]:
        """Write `down` once, and list the visits, longest first."""
        packed = {f"down/{p}": v for p, v in pack(exchange.down).items()}
        packed |= {f"buffers/{i}": b for i, b in enumerate(exchange.buffers)}
        for client, message in exchange.private.items():
            packed |= {f"private {client}/{p}": v for p, v in pack(message).items()}
        packed |= {f"frozen/{name}": v for name, v in exchange.frozen.items()}
        parts: dict[str, Packed] = {"down": {}, "buffers": {}, "frozen": {}}
        for path, leaf in self._blocks["down"].put(packed).items():
            part, _, name = path.partition("/")
            parts.setdefault(part, {})[name] = leaf
        call = Call(exchange.phase, exchange.round, exchange.seed, exchange.temperature)
        self._exchange += 1
        self._ask = cloudpickle.dumps(
            Ask(call, exchange.signature, parts["down"], parts["buffers"], parts["frozen"])
        )
        order = sorted(clients, key=lambda c: (-self._cost(c, exchange.round), c))
        return [
            Visit(
                client=client,
                read=table.slot(client) if table is not None else -1,
                write=table.reserve() if table is not None else -1,
                slot="",
                private=parts.get(f"private {client}"),
            )
            for client in order
        ]

    def _feed(self) -> None:
        """Keep every worker busy, and one visit ahead while there are plenty."""
        for depth in (1, 2):
            for peer in self.peers:
                if len(peer.tasks) >= depth:
                    continue
                if self._visits and (depth == 1 or len(self._visits) > len(self.peers)):
                    self._give(peer, "visit", self._visits.popleft())
                elif depth == 1 and self._evaluation:
                    self._give(peer, "evaluate", self._evaluation.popleft())

    def _give(self, peer: Peer, kind: str, task: Any) -> None:
        try:
            if kind == "visit":
                if peer.knows != self._exchange:
                    peer.pipe.send(("ask", self._ask))
                    peer.knows = self._exchange
                task = Visit(task.client, task.read, task.write, self._slot(peer), task.private)
            peer.tasks.append((kind, task))
            peer.pipe.send((kind, task))
        except (BrokenPipeError, ConnectionResetError):
            self._replace(peer)

    def _slot(self, peer: Peer) -> str:
        if not peer.free:
            scratch = None if len(peer.slots) < PARKED_IN_MEMORY else self._store.scratch
            name, block = f"slot {len(peer.slots)}", Block(folder=scratch)
            peer.slots[name] = block
            self._send_block(peer, "attach", name, block.descriptor)
            peer.free.append(name)
        return peer.free.pop()

    def pump(self) -> None:
        """Wait until a worker has something to say, and hear it."""
        self._feed()
        for pipe in wait([peer.pipe for peer in self.peers]):
            peer = next(p for p in self.peers if p.pipe is pipe)
            try:
                kind, content = peer.pipe.recv()
            except (EOFError, OSError):
                self._replace(peer)
                continue
            if kind == "error":
                raise RunError(f"a client method failed: {content[0]}\n{content[1]}")
            _, task = peer.tasks.popleft()
            if kind == "visit":
                self._parked[task.client] = (peer, task, content)
            elif self._evaluating is not None and content[0] == self._evaluating.ticket:
                self._evaluating.parts[content[1]] = content[2]
        self._feed()

    def _fold(self, fold: Fold, exchange: Exchange, table: Table | None, client: int) -> None:
        peer, task, (_, where, speaks, work, finite) = self._parked.pop(client)
        content = peer.slots[task.slot].get(where)
        buffers = tuple(v for k, v in content.items() if k.startswith("#buffer"))
        up = unpack(exchange.signature.up, content) if speaks else None
        reply = Reply(up, None, buffers, work, finite)
        if fold.add(client, int(self._sizes[client]), reply) and table is not None:
            table.keep(client, task.write)
        elif table is not None:
            table.release(task.write)
        peer.free.append(task.slot)

    def _replace(self, peer: Peer) -> None:
        """A worker died: its tasks go to others, a new one takes its place."""
        if peer not in self.peers:
            return
        self._deaths += 1
        peer.process.join(timeout=1)
        if self._deaths > DEATHS:
            doing = ", ".join(f"{k} of {getattr(t, 'client', 'test data')}" for k, t in peer.tasks)
            raise RunError(
                f"{self._deaths} workers died (the last with exit code {peer.process.exitcode}, "
                f"doing: {doing or 'nothing'}); often the machine is out of memory: try fewer "
                "workers or a smaller batch"
            )
        self.peers[self.peers.index(peer)] = self._start()
        for kind, task in peer.tasks:
            (self._visits if kind == "visit" else self._evaluation).append(task)
        peer.tasks.clear()

    def evaluate(
        self, w: Vec, buffers: Sequence[Tensor], allowed: Tensor | None, temperature: float
    ) -> Evaluating:
        """Queue the chunks of an evaluation; they fill workers that have no visit to do."""
        self._ticket += 1
        packed: Packed = {"w": w, **{f"buffer.{i}": b for i, b in enumerate(buffers)}}
        if allowed is not None:
            packed["allowed"] = allowed
        where = self._blocks["evaluation"].put(packed)
        self._evaluation.extend(
            Evaluation(self._ticket, i, where, temperature) for i in range(self._chunks)
        )
        self._evaluating = Evaluating(self, self._ticket, {}, self._chunks)
        self._feed()
        return self._evaluating

    def close(self) -> None:
        """End the workers; an interrupted one is not waited for."""
        for peer in self.peers:
            with suppress(OSError):
                peer.pipe.send(("stop", None))
            peer.pipe.close()
        for peer in self.peers:
            if peer.tasks:
                peer.process.terminate()
            peer.process.join(timeout=2)
            if peer.process.is_alive():
                peer.process.kill()
                peer.process.join()
            for block in peer.slots.values():
                block.close()
        for block in self._blocks.values():
            block.close()
        self.peers.clear()
