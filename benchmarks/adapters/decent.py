"""decent-bench: its DGD over `PyTorchCost`, which is x⁺ = W x - γ g(x) as well."""

from __future__ import annotations

import networkx as nx
import numpy as np
import torch
from decent_array import Array
from decent_array.types import Devices, Frameworks
from decent_bench.agents import Agent
from decent_bench.algorithms.p2p import DGD
from decent_bench.benchmark import configure
from decent_bench.costs import PyTorchCost
from decent_bench.networks import P2PNetwork
from meter import begin, finish
from modules import module, tensors

NEVER = 10**9
work, meter = begin()
configure(Frameworks.PYTORCH, Devices.CPU, seed=0)


def agent(client: int) -> Agent:
    data = list(zip(*tensors(work, client), strict=True))
    cost = PyTorchCost(data, module(work), torch.nn.CrossEntropyLoss(), batch_size=work.batch)
    return Agent(cost, state_snapshot_period=NEVER)


graph = nx.from_numpy_array((work.weights > 0) & ~np.eye(work.clients, dtype=bool))
network = P2PNetwork(graph, [agent(i) for i in range(work.clients)])
method = DGD(step_size=work.step_size, x0=Array(torch.from_numpy(work.start)))


class Over(Exception):
    """The time is over: a run has no other end than its last round."""


def after(k: int) -> None:
    if meter.tick(
        (k + 1) * work.clients, lambda: np.mean([a.x.value.numpy() for a in network.agents()], 0)
    ):
        raise Over


meter.start()
try:
    method.run(network, NEVER, progress_callback=after)
except Over:
    finish(meter, "decent-bench", "decent-array", "torch")
