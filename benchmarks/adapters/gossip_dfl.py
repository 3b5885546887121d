"""gossipy (PyPI: gossipy-dfl): nodes push their models to one random neighbour, who averages and steps."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

# Imported there for downloads of images, which are not needed here, and not declared as a dependency.
sys.modules["torchvision"] = ModuleType("torchvision")

import numpy as np
import torch
from gossipy import LOG
from gossipy.core import AntiEntropyProtocol, ConstantDelay, CreateModelMode, StaticP2PNetwork
from gossipy.data import DataDispatcher
from gossipy.data.handler import ClassificationDataHandler
from gossipy.model import TorchModel
from gossipy.model.handler import TorchModelHandler
from gossipy.node import GossipNode
from gossipy.simul import GossipSimulator, SimulationEventReceiver
from meter import begin, finish
from modules import flat, module

work, meter = begin()
LOG.setLevel("ERROR")


class Net(TorchModel):
    def __init__(self) -> None:
        super().__init__()
        self.layers = module(work)

    def init_weights(self) -> None:
        self.layers.load_state_dict(module(work).state_dict())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


class Count(SimulationEventReceiver):
    """Every message that arrives is one merge and one gradient."""

    done = 0

    def update_message(self, failed: bool, msg: Any = None) -> None:
        self.done += 1

    def update_timestep(self, t: int) -> None:
        models = (node.model_handler.model for node in simulator.nodes.values())
        if meter.tick(self.done, lambda: np.mean([flat(model) for model in models], 0)):
            raise KeyboardInterrupt  # which ends a simulation in order

    def update_end(self) -> None: ...


handler = ClassificationDataHandler(
    torch.from_numpy(work.inputs), torch.from_numpy(work.targets), test_size=0
)
dispatcher = DataDispatcher(handler, n=work.clients, eval_on_user=False, auto_assign=False)
dispatcher.set_assignments(
    [list(range(*work.bounds[i : i + 2])) for i in range(work.clients)], None
)
proto = TorchModelHandler(
    Net(), torch.optim.SGD, {"lr": work.step_size}, torch.nn.CrossEntropyLoss(),
    local_epochs=0, batch_size=work.batch, create_model_mode=CreateModelMode.MERGE_UPDATE,
)  # fmt: skip
topology = StaticP2PNetwork(work.clients, (work.weights > 0) & ~np.eye(work.clients, dtype=bool))
nodes = GossipNode.generate(dispatcher, topology, proto, round_len=1, sync=True)
simulator = GossipSimulator(nodes, dispatcher, 1, AntiEntropyProtocol.PUSH, delay=ConstantDelay(0))
simulator.init_nodes()
simulator.add_receiver(Count())
meter.start()
simulator.start(n_rounds=10**7)
finish(meter, "gossipy-dfl", "torch")
