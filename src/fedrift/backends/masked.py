"""Secure aggregation: Flower's SecAgg+ around a visit; the server learns the cohort's sum only."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from fedrift.algorithm import owner_of
from fedrift.backends.added import Added
from fedrift.backends.codec import Refused
from fedrift.backends.evaluation import Done
from fedrift.backends.flower import from_records, to_records
from fedrift.backends.fold import Fold
from fedrift.backends.letters import Letter
from fedrift.backends.node import LARGEST, Node
from fedrift.backends.remote import Remote
from fedrift.backends.stages import MASKED_BYTES, Line
from fedrift.errors import InputError
from fedrift.exchange import Exchange, Outcome, Shown
from fedrift.messages import Size
from fedrift.site import Work

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
    )
    from flwr.compat.common import recorddict_compat  # pyright: ignore[reportMissingImports]
    from flwr.server.workflow import SecAggPlusWorkflow  # pyright: ignore[reportMissingImports]
    from flwr.server.workflow.secure_aggregation.secaggplus_workflow import (  # pyright: ignore[reportMissingImports]
        WorkflowState,
    )
except ImportError:
    raise InputError(
        "secure aggregation needs flwr 1.41; install it with: pip install 'fedrift[flower]'"
    ) from None

FEWEST = 3  # of two, each could subtract its own


@dataclass(frozen=True)
class Summed:
    """What the protocol gives: the weighted mean, and what each of its members said besides."""

    mean: np.ndarray
    said: Mapping[int, Mapping[str, Any]]


class _Strategy:
    """What Flower's workflow asks of a strategy, for one exchange."""

    def __init__(self, nodes: Sequence[int]) -> None:
        self._nodes = nodes
        self.summed: Summed | None = None

    def configure_fit(self, *_: Any) -> list[tuple[Any, Any]]:
        empty = SimpleNamespace(parameters=ndarrays_to_parameters([]), config={})
        return [(SimpleNamespace(node_id=node), empty) for node in self._nodes]

    def aggregate_fit(
        self, _: int, results: Sequence[Any], failures: Any
    ) -> tuple[None, dict[str, Any]]:
        if results:
            [mean] = parameters_to_ndarrays(results[0][1].parameters)
            said = {proxy.node_id: dict(fit.metrics) for proxy, fit in results}
            self.summed = Summed(np.asarray(mean, dtype=np.float64), said)
        return None, {}


def aggregate(line: Line, letters: Mapping[int, Letter], heaviest: float) -> Summed | None:
    """Run the four stages with these nodes; None if too few came through."""
    workflow = SecAggPlusWorkflow(1.0, 0.5, max_weight=float(heaviest), clipping_range=LARGEST)
    strategy = _Strategy(list(letters))
    records = RecordDict(
        {"config": ConfigRecord({"current_round": 1}), "parameters": ArrayRecord([])}
    )
    context: Any = SimpleNamespace(
        state=records,
        strategy=strategy,
        client_manager=SimpleNamespace(num_available=lambda: len(letters)),
    )
    grid: Any = line
    state = WorkflowState()
    for stage in (workflow.setup_stage, workflow.share_keys_stage):
        if not stage(grid, context, state):
            return None
        _leave_behind(state)
    state.nid_to_fitins = {node: to_records(letter) for node, letter in letters.items()}
    if not workflow.collect_masked_vectors_stage(grid, context, state):
        return None
    if len(state.active_node_ids) < FEWEST:  # nobody has been asked to unmask yet
        return None
    return strategy.summed if workflow.unmask_stage(grid, context, state) else None


def _leave_behind(state: WorkflowState) -> None:
    """Forget who dropped out before sharing keys: there is no mask of theirs to take out, and
    Flower would ask the others for shares that they do not have."""
    here = state.sampled_node_ids = set(state.active_node_ids)
    state.nid_to_neighbours = {
        node: near & here for node, near in state.nid_to_neighbours.items() if node in here
    }


def answer(message: Any, context: Any, node: Callable[[], Node]) -> Any:
    """A node's reply when masking is on: every stage is Flower's, and a visit leaves masked."""

    def visit(inner: Any, _: Any) -> Any:
        records = inner.content
        letter = from_records(
            RecordDict({k: v for k, v in records.items() if k != RECORD_KEY_CONFIGS})
        )
        vector, weight, header = node().masked(letter)
        fit = FitRes(
            status=Status(Code.OK, ""),
            parameters=ndarrays_to_parameters([vector]),
            num_examples=weight,
            metrics=dict(header),
        )
        return SimpleNamespace(content=recorddict_compat.fitres_to_recorddict(fit, False))

    return secaggplus_mod(message, context, visit)


class Masked:
    """A backend that asks as another does, but learns only sums."""

    workers = 0

    def __init__(self, remote: Remote, grid: Any) -> None:
        self._remote, self._grid = remote, grid

    def deliver(self, exchange: Exchange, clients: Sequence[int]) -> Outcome:
        remote = self._remote
        weights = {
            c: int(remote.roster.sizes[c]) if exchange.weights == "samples" else 1 for c in clients
        }
        at = {remote.roster.nodes[c]: c for c in sorted(clients) if c in remote.roster.nodes}
        added = Added(exchange.signature.up, *remote.owner(exchange))

        def refused(node: int, why: str) -> None:
            remote.forget(at[node])
            remote.note(f"round {exchange.round + 1}: client {at[node]} dropped out: {why}")

        line = Line(self._grid, added.size, remote.deadline, refused)
        version, summed = self._sum(exchange, line, at, weights)
        keys = {"keys": Size(tensors=line.up)} if line.up else {}
        sent = {"keys": Size(tensors=line.down)} if line.down else {}
        if summed is None:
            for client in at.values():
                remote.forget(client)
            remote.note(f"round {exchange.round + 1}: too few came through secure aggregation")
            return replace(Fold(exchange).outcome(), up_bytes=keys, down_bytes=sent)
        replied = tuple(sorted(at[node] for node in summed.said))
        total = float(sum(weights[c] for c in replied))
        finite, table = bool(np.isfinite(summed.mean).all()), remote.table(exchange)
        if finite and table is not None:
            for client in replied:
                table.keep(client, version)
        masked = Size(tensors=len(replied) * MASKED_BYTES * (added.size + 1))
        return Outcome(
            up=added.message(summed.mean, total) if finite else None,
            replied=replied if finite else (),
            nonfinite=() if finite else replied,
            weight=total,
            buffers=exchange.buffers,
            work=_work(summed),
            up_bytes={"masked": masked, **keys},
            down_bytes=sent,
        )

    def _sum(
        self, exchange: Exchange, line: Line, at: Mapping[int, int], weights: Mapping[int, int]
    ) -> tuple[int, Summed | None]:
        """The version of the states that the visits make, and the sum if there is one."""
        if len(at) < FEWEST:
            return -1, None
        remote, heaviest = self._remote, max(weights[c] for c in at.values())
        version, letters = remote.letters(exchange, sorted(at.values()))
        sent = {
            node: Letter({**letters[c].header, "heaviest": heaviest}, letters[c].parts)
            for node, c in at.items()
        }
        try:
            return version, aggregate(line, sent, heaviest)
        except Exception as error:  # by a false key or share, which nobody can see in time
            remote.note(f"round {exchange.round + 1}: secure aggregation failed: {error!r:.200}")
            return version, None

    def evaluate(self, shown: Shown) -> Done:
        return self._remote.evaluate(shown)

    def close(self) -> None:
        self._remote.close()


def _work(summed: Summed) -> Work:
    """What the nodes say they did, as far as it can be."""
    work = Work()
    for said in summed.said.values():
        counts = [said.get(name) for name in ("gradients", "forwards", "steps")]
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
            Added(kinds.up, owner, problem)
        except Refused as why:
            raise InputError(
                f"secagg: '{phase}' cannot be masked: {why}; set secagg=false"
            ) from None
