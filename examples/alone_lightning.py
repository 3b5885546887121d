# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt[lightning]"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""A LightningModule with automatic optimization and gradient clipping.

    python examples/alone_lightning.py                # all classes
    python examples/alone_lightning.py --shard 1/4    # only classes with remainder 1 modulo 4

`join_lightning.py` is the same script as a site of a run.
"""

from __future__ import annotations

import argparse
import logging

import lightning
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from spodgt.problems.data import datasets


class Classifier(lightning.LightningModule):
    """A perceptron with one hidden layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.layers(x), y)

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        x, y = batch
        scores = self.layers(x)
        self.log("val_loss", nn.functional.cross_entropy(scores, y))
        self.log("val_accuracy", (scores.argmax(1) == y).float().mean())

    def configure_optimizers(self) -> dict[str, object]:
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        steps = self.trainer.max_steps
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


def loaders(shard: int, shards: int) -> tuple[DataLoader, DataLoader]:
    """Batches of the classes of a shard, and the test set of all classes in one batch."""
    data = datasets.load("fashion-mnist-small")
    is_own = data.train.targets % shards == shard
    x = data.train.inputs[is_own].float().flatten(1) / 255
    test = TensorDataset(data.test.inputs.float().flatten(1) / 255, data.test.targets)
    train = TensorDataset(x, data.train.targets[is_own])
    return DataLoader(train, 32, shuffle=True), DataLoader(test, len(test))


def main(shard: str = "0/1", steps: int = 600) -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    number, shards = map(int, shard.split("/"))
    train, test = loaders(number, shards)
    trainer = lightning.Trainer(
        max_steps=steps,
        check_val_every_n_epoch=None,
        val_check_interval=min(20, steps),
        gradient_clip_val=10.0,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
    )
    model = Classifier()
    trainer.fit(model, train, test)
    score = float(trainer.validate(model, test, verbose=False)[0]["val_accuracy"])
    print(f"test accuracy {score:.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard", default="0/1", help="NUMBER/COUNT: classes with this remainder")
    parser.add_argument("--steps", type=int, default=600)
    main(**vars(parser.parse_args()))
