"""A run as its workers are told of it: where its data are, and everything else pickled."""

from __future__ import annotations

from typing import Any

import cloudpickle

from fedrift.backends.evaluation import Evaluator
from fedrift.backends.orders import Setup
from fedrift.backends.pool import Pool
from fedrift.backends.visit import Visitor
from fedrift.data.resident import Split
from fedrift.shared import Block, skeleton, tree_to_packed
from fedrift.store import Store


def described(
    visitor: Visitor,
    split: Split,
    evaluator: Evaluator | None,
    store: Store,
    pool: Pool,
    blocks: dict[str, Block],
    name: str,
) -> bytes:
    """The run as every worker is told of it."""
    trees = {"x": split.x, "y": split.y}
    if evaluator is not None:
        trees |= {"x_test": evaluator.x, "y_test": evaluator.y}
    where = {n: pool.share(n, tree, tree_to_packed(tree, n)) for n, tree in trees.items()}
    parts, ends = split.flat()
    mine = blocks[f"{name} split"].put({"parts": parts, "ends": ends})
    where |= {n: (f"{name} split", {n: mine[n]}) for n in ("parts", "ends")}
    setup = Setup(
        root=visitor.root,
        problem=visitor.problem,
        augment=visitor.augment,
        measure=evaluator.measure if evaluator is not None else _nothing,
        keeps_outputs=evaluator.keeps_outputs if evaluator is not None else False,
        has_test=evaluator is not None,
        skeletons={n: skeleton(tree) for n, tree in trees.items()} | {"parts": None, "ends": None},
        where=where,
        layouts={p: t.rows.layout for p, t in store.tables.items()},
        make=split.make,
        site=visitor.site,
    )
    return cloudpickle.dumps(setup)


def _nothing(*_: Any) -> dict[str, Any]:
    return {}
