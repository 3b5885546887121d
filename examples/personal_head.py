# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""Personal heads: clients share a body and keep a last layer of their own, each with a test of its own.

    python examples/personal_head.py [--small] [--picture FILE]

Clients disagree about what the classes mean, so one model for all cannot fit all of them. With
personal="head.*" the head is never sent, and the body is trained by all.
"""

from __future__ import annotations

import argparse
from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor, nn

import spodgt
from spodgt import figures

CLIENTS, CLASSES = 6, 4


def cloud(draws: torch.Generator, count: int, client: int) -> tuple[Tensor, Tensor]:
    """Four clouds of points; client i numbers them from i on."""
    kinds = torch.randint(CLASSES, (count,), generator=draws)
    centres = 2 * torch.randn(CLASSES, 8, generator=torch.Generator().manual_seed(5))
    return centres[kinds] + torch.randn(count, 8, generator=draws), (kinds + client) % CLASSES


def main(*, small: bool = False, picture: str | None = None) -> dict[str, float]:
    draws = torch.Generator().manual_seed(0)
    clients = [cloud(draws, 80, client) for client in range(CLIENTS)]
    tests = [cloud(draws, 60, client) for client in range(CLIENTS)]
    found, curves = {}, {}
    for name, personal in (("one model for all", None), ("personal heads", "head.*")):
        torch.manual_seed(0)
        model = nn.Sequential(
            OrderedDict(body=nn.Linear(8, 16), act=nn.Tanh(), head=nn.Linear(16, CLASSES))
        )
        problem = spodgt.Learning(
            model,
            nn.CrossEntropyLoss(),
            clients,
            test=tests,
            personal=personal,
            personal_step_size=0.2,
        )
        result = spodgt.train(
            spodgt.SpodGTMemory(step_size=0.1),
            problem,
            spodgt.Network.ring(CLIENTS),
            spodgt.Bernoulli(0.7, 0.7),
            rounds=150 if small else 1000,
            evaluations=20,
        )
        found[name], curves[name] = float(result.frame["accuracy"].iloc[-1]), result.frame
        print(
            f"{name}: {found[name]:.3f} on the clients' own tests, {problem.parameters} numbers per message"
        )
    if picture:
        figure, axes = figures.new_figure(6.4, 4)
        for number, (name, frame) in enumerate(curves.items()):
            axes.plot(frame["round"], frame["accuracy"], color=figures.COLOURS[number], label=name)
        axes.set_xlabel("round")
        axes.set_ylabel("accuracy on the clients' own tests")
        axes.legend(frameon=False)
        axes.grid(alpha=0.25)
        figures.save(figure, Path(picture))
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="a few rounds only")
    parser.add_argument("--picture", metavar="FILE", help="draw what came out")
    main(**vars(parser.parse_args()))
