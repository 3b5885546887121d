# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt[peer]"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""The training loop of `alone_loop.py` as a site of a run.

    spodgt simulate examples/join_loop.py --clients 4 -- --shard {number}/{clients}

Every site trains on its own classes and is scored on all of them.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import spodgt
from spodgt.problems.data import datasets

CLASSES = 10


def load(shard: int, shards: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels of the classes of a shard, and the test set of all classes."""
    data = datasets.load("fashion-mnist-small")
    is_own = data.train.targets % shards == shard
    x = data.train.inputs[is_own].float() / 255
    test = data.test.inputs.float() / 255
    return (
        x.view(-1, 1, 28, 28),
        data.train.targets[is_own],
        test.view(-1, 1, 28, 28),
        data.test.targets,
    )


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 5, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 5, stride=2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16 * 4 * 4, CLASSES),
    )


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


def main(shard: str = "0/1", steps: int = 600) -> None:
    number, shards = map(int, shard.split("/"))
    x, y, test_x, test_y = load(number, shards)
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    with spodgt.join(
        "peers/lima",
        model,
        optimizer,
        scheduler=scheduler,
        block_steps=5,
        max_silent_blocks=2,
    ) as site:
        for step in range(1, steps + 1):
            batch = torch.randint(len(x), (32,))
            loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            if step % 20 == 0:
                score = accuracy(model, test_x, test_y)
                print(f"step {step}: loss {loss.item():.3f}, test accuracy {score:.3f}")
                site.report(loss=loss.item(), accuracy=score)
    print(f"test accuracy {accuracy(model, test_x, test_y):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard", default="0/1", help="NUMBER/COUNT: classes with this remainder")
    parser.add_argument("--steps", type=int, default=600)
    main(**vars(parser.parse_args()))
