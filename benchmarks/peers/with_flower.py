"""Flower's simulation on Ray: an app as in its PyTorch quickstart, one core per client.

https://flower.ai/docs/framework/tutorial-quickstart-pytorch.html: a `ClientApp` that loads the
arrays into the model, trains with a `DataLoader` and replies; a `ServerApp` with the strategy
`FedAvg` and a central `evaluate_fn`.
https://flower.ai/docs/framework/how-to-run-simulations.html: `num_cpus` of `client_resources`
decides how many clients run at once; with 1, each core has an actor of its own.
"""
# pyright: reportMissingImports=false, reportUntypedFunctionDecorator=false

from __future__ import annotations

from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import DataLoader, TensorDataset

from peers import work
from peers.notes import Notes

client_app = ClientApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    said: Any = message.content
    row = work.ROWS[said["config"]["row"]]
    x, y = work.data(row).of(int(context.node_config["partition-id"]), row.samples)
    loader = DataLoader(TensorDataset(x, y), batch_size=row.batch, shuffle=True)
    module = work.model(row)
    module.load_state_dict(said["arrays"].to_torch_state_dict())
    module.train()
    sgd = torch.optim.SGD(module.parameters(), lr=said["config"]["lr"])
    for some_x, some_y in loader:
        sgd.zero_grad()
        torch.nn.functional.cross_entropy(module(some_x), some_y).backward()
        sgd.step()
    reply: dict[str, Any] = {
        "arrays": ArrayRecord(module.state_dict()),
        "metrics": MetricRecord({"num-examples": len(y)}),
    }
    return Message(content=RecordDict(reply), reply_to=message)


def main(row: work.Work, seed: int, notes: Notes) -> bool:
    server_app = ServerApp()

    @server_app.main()
    def serve(grid: Grid, context: Context) -> None:
        data, module = work.data(row), work.model(row)

        def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
            module.load_state_dict(arrays.to_torch_state_dict())
            loss = work.evaluate(module, data.test_x, data.test_y)
            if round:
                notes.ended(round, loss)
            return MetricRecord({"loss": loss})

        strategy = FedAvg(
            fraction_train=row.cohort / row.clients,
            fraction_evaluate=0.0,
            min_available_nodes=row.clients,
        )
        notes.began()
        strategy.start(
            grid=grid,
            initial_arrays=ArrayRecord(module.state_dict()),
            num_rounds=row.rounds,
            train_config=ConfigRecord({"row": row.row, "lr": row.lr}),
            evaluate_fn=evaluate,
        )

    run_simulation(
        server_app,
        client_app,
        num_supernodes=row.clients,
        backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}},
    )
    return True
