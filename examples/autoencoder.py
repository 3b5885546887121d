# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""An autoencoder of images, read from a torch data set with random transforms.

    python examples/autoencoder.py [--small] [--picture FILE]

Each client holds images of one kind of clothing. The input is a noisy image and the target the clean one; the
noise is drawn in `__getitem__`, by torch's global generator, which spodgt seeds by (seed, round, client).
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import spodgt
from spodgt import figures
from spodgt.problems.data import load


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Nothing is copied: samples are made when they are read."""

    def __init__(self, images: Tensor) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int) -> tuple[Tensor, Tensor]:
        clean = self.images[number].flatten() / 255
        return (clean + 0.2 * torch.randn(clean.shape)).clamp(0, 1), clean


def draw(model: nn.Module, data: Noisy, picture: str) -> None:
    """Eight test images, with noise and as the model gives them back."""
    torch.manual_seed(1)
    noisy = torch.stack([data[60 * number][0] for number in range(8)])
    with torch.no_grad():
        rows = torch.cat([noisy, model(noisy)]).reshape(2, 8, 14, 14)
    figure, axes = figures.new_figure(6.4, 2.2)
    axes.imshow(rows.permute(0, 2, 1, 3).reshape(28, 112).numpy(), cmap="gray")
    axes.axis("off")
    figures.save(figure, Path(picture))


def main(*, small: bool = False, picture: str | None = None) -> dict[str, float]:
    data = load("fashion-mnist-small")
    train = torch.nn.functional.avg_pool2d(data.train.inputs.float(), 2)
    test = torch.nn.functional.avg_pool2d(data.test.inputs.float(), 2)
    clients = [Noisy(train[data.train.targets == kind][:200]) for kind in range(5)]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(196, 32), nn.ReLU(), nn.Linear(32, 196), nn.Sigmoid())
    problem = spodgt.Learning(
        model,
        nn.MSELoss(),
        clients,
        test=Noisy(test[data.test.targets < 5]),
        batch_size=16,
        test_samples=200,
    )
    method = spodgt.method("spod-gt-memory", step_size=2.0, momentum=0.9)
    rounds = 60 if small else 600
    result = spodgt.train(
        method,
        problem,
        spodgt.Network.ring(5),
        spodgt.Bernoulli(0.8, 0.8),
        rounds=rounds,
        evaluations=40,
    )
    print(result.frame[["round", "loss"]].iloc[::10].to_string(index=False))
    assert "accuracy" not in result.frame
    if picture:
        draw(result.model(), Noisy(test[data.test.targets < 5]), picture)
    return {
        "first": float(result.frame["loss"].iloc[0]),
        "last": float(result.frame["loss"].iloc[-1]),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a few rounds only")
    parser.add_argument("--picture", metavar="FILE", help="draw what came out")
    main(**vars(parser.parse_args()))
