# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""Regression: no classes and so no accuracy; R² and the mean absolute error are measured instead.

    python examples/regression.py [--small] [--picture FILE]

Targets are (samples, 1), as the outputs are: MSELoss would compare every output with every target of a
(samples,) tensor, and spodgt refuses that.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn

import spodgt


def r2(outputs: Tensor, targets: Tensor) -> float:
    return float(1 - (outputs - targets).square().sum() / (targets - targets.mean()).square().sum())


def error(outputs: Tensor, targets: Tensor) -> float:
    return float((outputs - targets).abs().mean())


def houses(draws: torch.Generator, count: int, district: float) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 5, generator=draws) + district
    prices = 2 * inputs[:, :1] - inputs[:, 1:2] * inputs[:, 2:3] + torch.sin(2 * inputs[:, 3:4])
    return inputs, prices + 0.1 * torch.randn(count, 1, generator=draws)


def main(*, small: bool = False, picture: str | None = None) -> dict[str, float]:
    draws = torch.Generator().manual_seed(0)
    clients = [houses(draws, 150, district) for district in (-0.5, -0.2, 0.0, 0.2, 0.5)]
    torch.manual_seed(0)
    problem = spodgt.Learning(
        nn.Sequential(nn.Linear(5, 32), nn.Tanh(), nn.Linear(32, 1)),
        nn.MSELoss(),
        clients,
        test=houses(draws, 400, 0.0),
        metrics={"r2": r2, "error": (error, "down")},
    )
    result = spodgt.train(
        spodgt.SpodGTMemory(step_size=0.01),
        problem,
        spodgt.Network.ring(5),
        spodgt.Bernoulli(0.6, 0.8),
        rounds=300 if small else 3000,
        evaluations=40,
    )
    print(result.frame[["round", "loss", "r2", "error"]].iloc[::10].to_string(index=False))
    if picture:
        result.plot(picture, metric="r2", against="round")
    return {"r2": float(result.frame["r2"].iloc[-1])}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a few rounds only")
    parser.add_argument("--picture", metavar="FILE", help="draw what came out")
    main(**vars(parser.parse_args()))
