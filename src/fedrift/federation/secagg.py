"""Secure aggregation: Flower's SecAgg+ around a visit; the server learns the cohort's sum only."""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedrift.backends.backend import Fold
from fedrift.backends.codec import Refused, SummedMessage
from fedrift.core.algorithm import EvaluatedModel
from fedrift.core.evaluation import Done
from fedrift.core.exchange import Exchange, Outcome
from fedrift.core.messages import Size
from fedrift.core.phases import owner_of
from fedrift.core.site import Work
from fedrift.errors import InputError
from fedrift.federation.flower import from_records, to_records
from fedrift.federation.membership import PAUSE
from fedrift.federation.node import LARGEST, Node
from fedrift.federation.protocol import Envelope
from fedrift.federation.remote import LOOK, Remote

try:
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict  # pyright: ignore[reportMissingImports]
    from flwr.client.mod import secaggplus_mod  # pyright: ignore[reportMissingImports]
    from flwr.common import (  # pyright: ignore[reportMissingImports]
        Code,
        FitRes,
        Status,
        ndarrays_to_parameters,
        parameters_to_ndarrays,
    )
    from flwr.common.secure_aggregation.secaggplus_constants import (  # pyright: ignore[reportMissingImports]
        RECORD_KEY_CONFIGS,
        Key,
        Stage,
    )
    from flwr.compat.common import recorddict_compat  # pyright: ignore[reportMissingImports]
    from flwr.server.workflow import SecAggPlusWorkflow  # pyright: ignore[reportMissingImports]
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import (  # pyright: ignore[reportMissingImports]
        WorkflowState,
    )
    from flwr.supercore.primitives.asymmetric import (  # pyright: ignore[reportMissingImports]
        bytes_to_public_key,
    )
except ImportError:
    raise InputError(
        "secure aggregation needs flwr 1.41; install it with: pip install 'fedrift[flower]'"
    ) from None

MASKED_BYTES = 8  # of one masked number
LONGEST = 4096  # bytes of a key, a share or a sealed share
FEWEST = 3  # of two, each could subtract its own
FORM = {  # what a reply of each stage must hold, and what its values are
    Stage.SETUP: {Key.PUBLIC_KEY_1: bytes, Key.PUBLIC_KEY_2: bytes},
    Stage.SHARE_KEYS: {Key.DESTINATION_LIST: int, Key.CIPHERTEXT_LIST: bytes},
    Stage.COLLECT_MASKED_VECTORS: {Key.MASKED_PARAMETERS: bytes},
    Stage.UNMASK: {Key.NODE_ID_LIST: int, Key.SHARE_LIST: bytes},
}


class MaskedBackend:
    """A backend that asks as another does, but learns only sums."""

    workers = 0

    def __init__(self, remote: Remote, grid: Any) -> None:
        self._remote, self._grid = remote, grid

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        remote = self._remote
        weights = {
            c: int(remote.membership.sizes[c]) if exchange.weights == "samples" else 1
            for c in clients
        }
        at = {
            remote.membership.nodes[c]: c for c in sorted(clients) if c in remote.membership.nodes
        }
        message = SummedMessage(exchange.signature.up, *remote.owner(exchange))

        def refused(node: int, why: str) -> None:
            remote.forget(at[node])
            remote.note(f"round {exchange.round + 1}: client {at[node]} dropped out: {why}")

        link = SecAggLink(self._grid, message.size, remote.deadline, refused)
        version, summed = self._sum(exchange, link, at, weights)
        keys = {"keys": Size(tensors=link.up)} if link.up else {}
        sent = {"keys": Size(tensors=link.down)} if link.down else {}
        if summed is None:
            for client in at.values():
                remote.forget(client)
            remote.note(f"round {exchange.round + 1}: too few came through secure aggregation")
            return replace(Fold(exchange).outcome(), up_bytes=keys, down_bytes=sent)
        replied = tuple(sorted(at[node] for node in summed.headers))
        total = float(sum(weights[c] for c in replied))
        finite, table = bool(np.isfinite(summed.mean).all()), remote.table(exchange)
        if finite and table is not None:
            for client in replied:
                table.keep(client, version)
        masked = Size(tensors=len(replied) * MASKED_BYTES * (message.size + 1))
        return Outcome(
            up=message.message(summed.mean, total) if finite else None,
            replied=replied if finite else (),
            nonfinite=() if finite else replied,
            weight=total,
            buffers=exchange.buffers,
            work=_work(summed),
            up_bytes={"masked": masked, **keys},
            down_bytes=sent,
        )

    def _sum(
        self,
        exchange: Exchange,
        link: SecAggLink,
        at: Mapping[int, int],
        weights: Mapping[int, int],
    ) -> tuple[int, MaskedSum | None]:
        """The version of the states that the visits make, and the sum if there is one."""
        if len(at) < FEWEST:
            return -1, None
        remote, heaviest = self._remote, max(weights[c] for c in at.values())
        version, envelopes = remote.envelopes(exchange, sorted(at.values()))
        sent = {
            node: Envelope({**envelopes[c].header, "heaviest": heaviest}, envelopes[c].parts)
            for node, c in at.items()
        }
        try:
            return version, aggregate(link, sent, heaviest)
        except Exception as error:  # by a false key or share, which nobody can see in time
            remote.note(f"round {exchange.round + 1}: secure aggregation failed: {error!r:.200}")
            return version, None

    def evaluate(self, shown: EvaluatedModel) -> Done:
        return self._remote.evaluate(shown)

    def close(self) -> None:
        self._remote.close()


def _work(summed: MaskedSum) -> Work:
    """What the nodes say they did, as far as it can be."""
    work = Work()
    for header in summed.headers.values():
        counts = [header.get(name) for name in ("gradients", "forwards", "steps")]
        sane = [c if isinstance(c, int) and 0 <= c < 1 << 62 else 0 for c in counts]
        work.add(Work(sane[0], sane[1], sane[2]))
    return work


def check(remote: Remote, phases: Mapping[str, Any]) -> None:
    """Refuse, before the first round, an algorithm whose replies cannot be masked."""
    for phase, kinds in phases.items():
        owner, problem = remote.at(owner_of(phase))
        if problem.moving:
            raise InputError("secagg: running statistics of batch normalisation cannot be masked")
        try:
            SummedMessage(kinds.up, owner, problem)
        except Refused as why:
            raise InputError(
                f"secagg: '{phase}' cannot be masked: {why}; set secagg=false"
            ) from None


# The four stages, at the server (`aggregate`) and at a node (`answer`).


@dataclass(frozen=True)
class MaskedSum:
    """What the protocol gives: the weighted mean, and what each of its members said besides."""

    mean: np.ndarray
    headers: Mapping[int, Mapping[str, Any]]


def aggregate(
    link: SecAggLink, envelopes: Mapping[int, Envelope], heaviest: float
) -> MaskedSum | None:
    """Run the four stages with these nodes; None if too few came through."""
    workflow = SecAggPlusWorkflow(1.0, 0.5, max_weight=float(heaviest), clipping_range=LARGEST)
    strategy = _Strategy(list(envelopes))
    records = RecordDict(
        {"config": ConfigRecord({"current_round": 1}), "parameters": ArrayRecord([])}
    )
    context: Any = SimpleNamespace(
        state=records,
        strategy=strategy,
        client_manager=SimpleNamespace(num_available=lambda: len(envelopes)),
    )
    grid: Any = link
    state = WorkflowState()
    for stage in (workflow.setup_stage, workflow.share_keys_stage):
        if not stage(grid, context, state):
            return None
        _forget_dropouts(state)
    state.nid_to_fitins = {node: to_records(envelope) for node, envelope in envelopes.items()}
    if not workflow.collect_masked_vectors_stage(grid, context, state):
        return None
    if len(state.active_node_ids) < FEWEST:  # nobody has been asked to unmask yet
        return None
    return strategy.summed if workflow.unmask_stage(grid, context, state) else None


def _forget_dropouts(state: WorkflowState) -> None:
    """Forget who dropped out before sharing keys: there is no mask of theirs to take out, and
    Flower would ask the others for shares that they do not have."""
    here = state.sampled_node_ids = set(state.active_node_ids)
    state.nid_to_neighbours = {
        node: near & here for node, near in state.nid_to_neighbours.items() if node in here
    }


class _Strategy:
    """What Flower's workflow asks of a strategy, for one exchange."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes
        self.summed: MaskedSum | None = None

    def configure_fit(self, *_: Any) -> list[tuple[Any, Any]]:
        empty = SimpleNamespace(parameters=ndarrays_to_parameters([]), config={})
        return [(SimpleNamespace(node_id=node), empty) for node in self._nodes]

    def aggregate_fit(
        self, _: int, results: Sequence[Any], failures: Any
    ) -> tuple[None, dict[str, Any]]:
        if results:
            [mean] = parameters_to_ndarrays(results[0][1].parameters)
            headers = {proxy.node_id: dict(fit.metrics) for proxy, fit in results}
            self.summed = MaskedSum(np.asarray(mean, dtype=np.float64), headers)
        return None, {}


def answer(message: Any, context: Any, node: Callable[[], Node]) -> Any:
    """A node's reply when masking is on: every stage is Flower's, and a visit leaves masked."""

    def visit(inner: Any, _: Any) -> Any:
        records = inner.content
        envelope = from_records(
            RecordDict({k: v for k, v in records.items() if k != RECORD_KEY_CONFIGS})
        )
        vector, weight, header = node().masked(envelope)
        fit = FitRes(
            status=Status(Code.OK, ""),
            parameters=ndarrays_to_parameters([vector]),
            num_examples=weight,
            metrics=dict(header),
        )
        return SimpleNamespace(content=recorddict_compat.fitres_to_recorddict(fit, False))

    return secaggplus_mod(message, context, visit)


# The stages on the wire: every reply checked, every byte counted.


class SecAggLink:
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
        reply_record = content.config_records.get(RECORD_KEY_CONFIGS)
        if reply_record is None or set(reply_record) != set(FORM[stage]):
            raise Refused(f"the reply is not one of the stage '{stage}'")
        values = {
            name: _items(reply_record[name], kind, name) for name, kind in FORM[stage].items()
        }
        masked = stage == Stage.COLLECT_MASKED_VECTORS
        if not masked and any(len(v) > LONGEST for vs in values.values() for v in vs if _is_raw(v)):
            raise Refused(f"the reply of the stage '{stage}' has an item above {LONGEST} bytes")
        if masked:
            self._check_vector(content, values[Key.MASKED_PARAMETERS])
        elif stage == Stage.SETUP:
            self._check_keys([one for vs in values.values() for one in vs])
        else:
            self._check_shares(stage, node, asked, *values.values())
        self.up += _bytes(reply_record) - (MASKED_BYTES * (self._size + 1) if masked else 0)

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
                form = f"{array.dtype} of shape {array.shape}"
                raise Refused(f"a masked array is {form}, expected is int64 of shape {shape}")
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
