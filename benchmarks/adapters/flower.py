"""Flower's simulation: a server averages the models of all clients; Ray actors are the clients."""

from __future__ import annotations

import logging
import os
import sys
from functools import cache
from pathlib import Path

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from meter import Work, begin, finish
from modules import module, tensors

client_app = ClientApp()


@cache
def held(client: int) -> tuple[Work, torch.nn.Module, torch.Tensor, torch.Tensor]:
    """What an actor keeps for a client between rounds: reading the data again would be slower."""
    work = Work.load(Path(os.environ["WORK"]))
    return work, module(work), *tensors(work, client)


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work, model, inputs, targets = held(int(context.node_config["partition-id"]))
    with torch.no_grad():
        received = message.content["arrays"].to_numpy_ndarrays()
        for parameter, values in zip(model.parameters(), received, strict=True):
            parameter.copy_(torch.from_numpy(values))
    optimiser = torch.optim.SGD(model.parameters(), lr=work.step_size)
    for _ in range(work.local_steps):
        chosen = torch.randperm(len(targets))[: work.batch]
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(model(inputs[chosen]), targets[chosen]).backward()
        optimiser.step()
    arrays = ArrayRecord([parameter.detach().numpy() for parameter in model.parameters()])
    content = {"arrays": arrays, "metrics": MetricRecord({"num-examples": len(targets)})}
    return Message(RecordDict(content), reply_to=message)


class Over(Exception):
    """The time is over: a strategy has no other end than its last round."""


def serve() -> None:
    work, meter = begin()
    server_app = ServerApp()

    def after(k: int, arrays: ArrayRecord) -> None:
        """Called after every round, and before the first. The first one, which starts actors, is free."""
        if k < 2:
            meter.start()
        elif meter.tick(
            (k - 1) * work.clients * work.local_steps,
            lambda: np.concatenate([values.ravel() for values in arrays.to_numpy_ndarrays()]),
        ):
            raise Over

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=work.clients)
        start = ArrayRecord([values.copy() for values in work.arrays(work.start)])
        try:
            strategy.start(grid, start, num_rounds=10**7, evaluate_fn=after)
        except Over:
            finish(meter, "flwr", "ray", "torch")

    # By its own name: actors import the module and keep what `held` holds.
    from flower import client_app as remote

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}  # an actor on each core
    run_simulation(server_app, remote, num_supernodes=work.clients, backend_config=resources)


if __name__ == "__main__":
    logging.getLogger("flwr").setLevel(logging.CRITICAL)
    os.environ["WORK"] = sys.argv[1]
    serve()
