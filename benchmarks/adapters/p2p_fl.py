"""p2pfl: ten nodes in one process; an epoch on each, then partial averages are passed on until all agree.

Memory as the transport and no Ray are its fastest settings for models this small. An evaluation in every
round cannot be turned off: it gets a test set of one image.
"""

from __future__ import annotations

import itertools
import logging
import os
import tempfile
import time
import warnings
from functools import partial

from p2pfl.settings import Settings

Settings.general.DISABLE_RAY = True  # before anything else is imported: imports start it
Settings.general.LOG_DIR = tempfile.mkdtemp()

import lightning
import numpy as np
import torch
from datasets import Dataset, DatasetDict
from meter import begin, finish
from modules import flat, module
from p2pfl.communication.protocols.protobuff.memory import MemoryCommunicationProtocol
from p2pfl.learning.dataset.p2pfl_dataset import P2PFLDataset
from p2pfl.learning.frameworks.pytorch import lightning_learner
from p2pfl.learning.frameworks.pytorch.lightning_model import LightningModel
from p2pfl.management.logger import logger
from p2pfl.node import Node
from p2pfl.utils.utils import set_standalone_settings, wait_convergence

warnings.filterwarnings("ignore")
work, meter = begin()
set_standalone_settings()  # its own, for nodes on one machine; still shorter waits end in time-outs
Settings.gossip.MODELS_PER_ROUND = work.clients
logger.set_level("CRITICAL")
for name in ("lightning.pytorch", "lightning.fabric", "pytorch_lightning"):
    logging.getLogger(name).setLevel(logging.CRITICAL)
# Progress bars of ten threads on one terminal end in exceptions.
lightning_learner.Trainer = partial(lightning.Trainer, enable_progress_bar=False)
done = itertools.count(1)
gradients = 0


class Net(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = module(work)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=work.step_size)

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        global gradients  # noqa: PLW0603
        gradients = next(done)
        return torch.nn.functional.cross_entropy(self.layers(batch["image"]), batch["label"])

    def test_step(self, batch: dict[str, torch.Tensor], index: int) -> None: ...


def node(client: int) -> Node:
    inputs, targets = work.share(client)
    train = Dataset.from_dict({"image": inputs, "label": targets})
    data = P2PFLDataset(
        DatasetDict({"train": train, "test": train.select([0])}), batch_size=work.batch
    )
    made = Node(
        LightningModel(Net()), data, f"node-{client}", protocol=MemoryCommunicationProtocol()
    )
    made.start()
    return made


nodes = [node(i) for i in range(work.clients)]
for i in range(work.clients):
    for j in work.neighbours(i):
        if i < j:
            nodes[i].connect(nodes[j].addr)
wait_convergence(nodes, work.clients - 1, wait=60)
nodes[0].set_start_learning(rounds=10**6, epochs=1, trainset_size=work.clients)
while not gradients:
    time.sleep(0.005)
meter.start()
while True:
    time.sleep(0.02)
    models = [n.learner.get_model().get_model() for n in nodes]
    if meter.tick(gradients, lambda: np.mean([flat(m) for m in models], 0)):  # noqa: B023
        break
finish(meter, "p2pfl", "lightning", "torch")
os._exit(0)  # its threads do not end while rounds are left
