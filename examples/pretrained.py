# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""A pretrained model: it starts at the accuracy it has, and clients improve it on data it has not seen.

    python examples/pretrained.py [--small] [--picture FILE]

A network learns eight kinds of clothing centrally; clients then hold all ten. A module that is handed over
starts as it is; init="fresh" would draw it anew for every seed.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import spodgt
from spodgt.problems.data import load


def central(model: nn.Module, inputs: Tensor, targets: Tensor, epochs: int) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(epochs):
        for rows in torch.randperm(len(inputs)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs[rows]), targets[rows]).backward()  # type: ignore[no-untyped-call]
            optimizer.step()


def main(*, small: bool = False, picture: str | None = None) -> dict[str, float]:
    data = load("fashion-mnist-small")
    inputs, test = data.train.inputs.float() / 255, data.test.inputs.float() / 255
    targets = data.train.targets
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))
    known = targets < 8
    central(model, inputs[known], targets[known], 2 if small else 10)
    with torch.no_grad():
        before = float((model(test).argmax(1) == data.test.targets).double().mean())
    clients = [(inputs[i::6], targets[i::6]) for i in range(6)]
    problem = spodgt.Learning(model, nn.CrossEntropyLoss(), clients, test=(test, data.test.targets))
    result = spodgt.train(
        spodgt.SpodGTMemory(step_size=0.05),
        problem,
        spodgt.Network.directed_geometric(6, seed=1),
        spodgt.Bernoulli(0.6, 0.6),
        rounds=60 if small else 1000,
        evaluations=40,
    )
    print(f"accuracy of the pretrained model: {before:.3f}")
    print(result.frame[["round", "loss", "accuracy"]].iloc[::10].to_string(index=False))
    if picture:
        result.plot(picture, against="round")
    curve = result.frame["accuracy"]
    return {"before": before, "first": float(curve.iloc[0]), "last": float(curve.iloc[-1])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a few rounds only")
    parser.add_argument("--picture", metavar="FILE", help="draw what came out")
    main(**vars(parser.parse_args()))
