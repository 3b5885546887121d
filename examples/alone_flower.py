# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt", "flwr>=1.22"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""A Flower ClientApp, and its training alone.

    python examples/alone_flower.py                # all classes
    python examples/alone_flower.py --shard 1/4    # only classes with remainder 1 modulo 4

`flwr run` can use `app` with a server, `join_flower.py` without one.
"""

from __future__ import annotations

import argparse

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from spodgt.problems.data import datasets

app = ClientApp()


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def load(shard: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels of the classes of a shard, and the test set of all classes."""
    number, shards = map(int, shard.split("/"))
    data = datasets.load("fashion-mnist-small")
    is_own = data.train.targets % shards == number
    x = data.train.inputs[is_own].float().flatten(1) / 255
    test = data.test.inputs.float().flatten(1) / 255
    return x, data.train.targets[is_own], test, data.test.targets


def fit(model: nn.Module, x: Tensor, y: Tensor, steps: int, rate: float) -> float:
    """Local steps; returns the last loss."""
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    for _ in range(steps):
        batch = torch.randint(len(x), (32,))
        loss = nn.functional.cross_entropy(model(x[batch]), y[batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


@torch.no_grad()
def accuracy(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return float((model(x).argmax(1) == y).float().mean())


@app.train()
def train(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y, _, _ = load(str(context.node_config["shard"]))
    config = message.content["config"]
    loss = fit(model, x, y, int(config["steps"]), float(config["lr"]))
    arrays = ArrayRecord(model.state_dict())
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(x)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    model = network()
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, _, x, y = load(str(context.node_config["shard"]))
    metrics = MetricRecord({"eval_acc": accuracy(model, x, y), "num-examples": len(x)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)


def main(shard: str = "0/1", steps: int = 600) -> None:
    x, y, test_x, test_y = load(shard)
    model = network()
    fit(model, x, y, steps, rate=0.1)
    print(f"test accuracy {accuracy(model, test_x, test_y):.3f}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shard", default="0/1", help="NUMBER/COUNT: classes with this remainder")
    parser.add_argument("--steps", type=int, default=600)
    main(**vars(parser.parse_args()))
