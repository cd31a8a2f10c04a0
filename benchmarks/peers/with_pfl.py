"""pfl-research on two processes of torchrun, as in its own benchmarks.

https://apple.github.io/pfl-research/guides/simulation_distributed.html: `torchrun
--nproc_per_node`, sharded central evaluation with a larger batch, and `Dataset` in memory as the
fastest kind. https://github.com/apple/pfl-research/tree/main/benchmarks/image_classification for
the script: `SimulatedBackend`, `FederatedAveraging`, users drawn at random, SGD on both sides.
"""
# pyright: reportMissingImports=false, reportUntypedBaseClass=false

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.algorithm.scaffold import SCAFFOLD, SCAFFOLDParams
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.data.user_state import InMemoryUserStateStorage
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch import Tensor, nn

from peers import work
from peers.notes import Notes

PROCESSES = 2
NEVER = 10**6


class Net(nn.Module):
    """The row's model with the two methods that pfl asks for."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        self.train()
        return nn.functional.cross_entropy(self.inner(x), y)

    @torch.no_grad()
    def metrics(self, x: Tensor, y: Tensor) -> dict[str, Any]:
        self.eval()
        total = nn.functional.cross_entropy(self.inner(x), y, reduction="sum").item()
        return {"loss": Weighted(total, len(y))}


class Watch(TrainingProcessCallback):
    """Comes after the central evaluation, which pfl leaves out after the first round."""

    def __init__(self, notes: Notes) -> None:
        self.notes = notes

    def after_central_iteration(
        self, aggregate_metrics: Metrics, model: Any, *, central_iteration: int
    ) -> tuple[bool, Metrics]:
        known = aggregate_metrics.to_simple_dict()
        loss = known.get("Central val | loss") if central_iteration else None
        self.notes.ended(central_iteration + 1, loss)
        return False, Metrics()


def main(row: work.Work, seed: int, notes: Notes) -> bool:
    np.random.seed(seed)
    torch.manual_seed(seed)
    data = work.data(row)
    users = list(range(row.clients))
    is_scaffold = row.algorithm == "scaffold"
    # A user's state stays in one process, so its user must too: see InMemoryUserStateStorage.
    sampler = get_user_sampler("random", users, num_silos=PROCESSES if is_scaffold else None)

    def user(number: int) -> Dataset:
        return Dataset(raw_data=data.of(number, row.samples), user_id=str(number))

    module = Net(work.model(row))
    model = PyTorchModel(
        model=module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=1.0),
    )
    evaluation = NNEvalHyperParams(local_batch_size=work.EVALUATION_BATCH)
    central = Dataset(raw_data=(data.test_x, data.test_y))
    length: dict[str, Any] = {
        "central_num_iterations": row.rounds,
        "evaluation_frequency": NEVER,  # of users; the central model is evaluated every round
        "train_cohort_size": row.cohort,
        "val_cohort_size": 0,
    }
    if is_scaffold:
        algorithm: Any = SCAFFOLD()
        params: Any = SCAFFOLDParams(
            **length,
            population=row.clients,
            use_gradient_as_control_variate=False,
            user_state_storage=InMemoryUserStateStorage(),
        )
    else:
        algorithm, params = FederatedAveraging(), NNAlgorithmParams(**length)
    notes.began()
    algorithm.run(
        algorithm_params=params,
        backend=SimulatedBackend(
            training_data=FederatedDataset(user, sampler),
            val_data=None,
            postprocessors=[WeightByDatapoints()],
        ),
        model=model,
        model_train_params=NNTrainHyperParams(
            local_learning_rate=row.lr, local_num_epochs=1, local_batch_size=row.batch
        ),
        model_eval_params=evaluation,
        callbacks=[CentralEvaluationCallback(central, evaluation), Watch(notes)],
    )
    if torch.distributed.is_initialized():  # left open, its threads may abort the process at exit
        torch.distributed.destroy_process_group()
    return os.environ.get("RANK", "0") == "0"
