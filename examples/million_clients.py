# /// script
# requires-python = ">=3.11"
# dependencies = ["spodgt"]
#
# [tool.uv.sources]
# spodgt = { path = "..", editable = true }
# ///
"""A million clients on a sparse digraph: logistic regression on 8×8 images, four images a client.

    python examples/million_clients.py [--small] [--clients N] [--rounds N] [--picture FILE]

Three states of 650 numbers per client are 7.8 GB; the rest is links, one byte per pixel, and scratch.
Prints accuracy and the speed beside the memory roofline; `--small` takes 2,000 clients and 10 rounds.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

import numpy as np
import torch
from rich.progress import track

import spodgt
from spodgt import figures
from spodgt.problems.data import load
from spodgt.problems.data.samples import ClientIndices
from spodgt.problems.learning import Learning
from spodgt.problems.losses import cross_entropy
from spodgt.problems.models import linear
from spodgt.runtimes.loop import begin
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Run

EACH = 4  # images per client
SAMPLED = 500  # number of clients with evaluated models
BUFFER = 2**28  # bytes that are copied to measure the bandwidth of the memory


def tiny_images(clients: int) -> Learning:
    """Fashion-MNIST shrunk to 8×8, each image shown to many clients with its own noise."""
    small = load("fashion-mnist-small")

    def shrink(images: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.adaptive_avg_pool2d(images.float(), 8).round().to(torch.uint8)

    train, test = shrink(small.train.inputs), shrink(small.test.inputs)
    problem = Learning(
        linear((1, 8, 8), 10),
        cross_entropy,
        [(train, small.train.targets)],
        test=(test, small.test.targets),
        batch_size=EACH,
    )
    order = spodgt.rng.generator(0, "million").integers(0, len(train), clients * EACH)
    return problem.with_client_indices(ClientIndices(order, np.arange(clients + 1) * EACH))


def main(
    small: bool = False, picture: str = "", clients: int = 1_000_000, rounds: int = 60
) -> dict[str, float]:
    """Train; return the accuracy of the sampled clients after the first and the last round."""
    if small:
        clients = min(clients, 2000)
        rounds = min(rounds, 10)
    begun = time.perf_counter()
    network = local_digraph(clients)
    problem = tiny_images(clients)
    method = spodgt.SpodGTMemory(step_size=0.3)
    available = spodgt.Bernoulli(0.5, 0.5).draw(network, 0)
    world = Simulation([Run(0, method, network, available, problem, problem.start(0))])
    snapshot = begin(world)
    state = snapshot.state
    print(
        f"{clients:,} clients, {network.links:,} links ready in {time.perf_counter() - begun:.0f} s"
    )

    sample = torch.linspace(0, clients - 1, SAMPLED).long()
    seen, spent = [], []
    for k in track(range(1, rounds + 1), "rounds"):
        start = time.perf_counter()
        state = world.advance(state, range(k, k + 1))
        spent.append(time.perf_counter() - start)
        if k % 5 == 0 or k == 1:
            seen.append((k, float(problem.evaluate(state[0][sample]).metrics["accuracy"].mean())))
            print(
                f"round {k:3d}: accuracy of {SAMPLED} sampled clients {seen[-1][1]:.3f}, {spent[-1]:.2f} s"
            )

    bandwidth = memory_bandwidth()
    least = 6 * state[0].numel() * 4 / bandwidth  # every state read and written once
    share, peak = least / min(spent), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(
        f"best round {min(spent):.2f} s, {share:.0%} of the memory roofline ({bandwidth / 1e9:.1f} GB/s)"
    )
    over = peak / (3 * state[0].numel() * 4)
    print(f"most memory in use {peak / 1e9:.1f} GB, {over:.2f} times the three states")

    if picture:
        title = f"spod-gt-memory, {clients:,} clients, {network.links:,} links"
        draw(seen, title, Path(picture))
    return {"first": seen[0][1], "last": seen[-1][1]}


def memory_bandwidth() -> float:
    """Bytes per second, read and written, of the fastest of five copies."""
    source = torch.zeros(BUFFER // 4)
    target = torch.zeros_like(source)
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        target.copy_(source)
        seconds.append(time.perf_counter() - start)
    return 2 * BUFFER / min(seconds)


def draw(accuracies: list[tuple[int, float]], title: str, path: Path) -> None:
    """Draw accuracy against rounds."""
    figure, axes = figures.new_figure(6, 4)
    axes.plot(*zip(*accuracies, strict=True), marker="o", color=figures.COLOURS[0])
    axes.set_xlabel("round")
    axes.set_ylabel(f"test accuracy, mean of {SAMPLED} clients")
    axes.set_title(title, fontsize=11)
    axes.grid(alpha=0.25)
    figures.save(figure, path)


def local_digraph(clients: int) -> spodgt.Network:
    """Clients on a line, each sending to 1, 2, 4, 8 places ahead, and 1 in 1000 far away: a small world."""
    i = np.arange(clients)
    hops = [(i + hop) % clients for hop in (1, 2, 4, 8)]
    far = spodgt.rng.generator(0, "far").permutation(clients)
    few = i[::1000]
    receivers = np.concatenate([*hops, far[few]])
    senders = np.concatenate([i] * len(hops) + [few])
    return spodgt.Network.from_graph(spodgt.graphs.Graph.of(clients, receivers, senders))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--small", action="store_true", help="2,000 clients, 10 rounds")
    parser.add_argument("--picture", metavar="FILE", help="draw accuracy against rounds")
    parser.add_argument("--clients", type=int, default=1_000_000, metavar="N")
    parser.add_argument("--rounds", type=int, default=60, metavar="N")
    main(**vars(parser.parse_args()))
