"""The files that a reader passes to follow one round of a network in the simulator."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType

import spodgt
from spodgt.problems import classification
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Draw, Run

SRC = Path(spodgt.__file__).parent


def test_a_round_of_a_network_passes_these_files() -> None:
    problem = classification("fashion-mnist-small", "cnn", clients=4, width=2)
    network = spodgt.Network.random_geometric(4, 0.9)
    availability = spodgt.Bernoulli(0.5, 0.5).draw(network, 0)
    draw = Draw(0, network, availability, problem.draw(0), problem.start(0))
    world = Simulation([Run.of(draw, spodgt.method("spod-gt"))])
    state = world.advance(world.init(), range(1, 3))  # what all rounds share is made before
    files: set[str] = set()

    def note(frame: FrameType, event: str, argument: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SRC):
            files.add(str(path.relative_to(SRC)))

    sys.setprofile(note)
    try:
        world.costs(3)
        world.advance(state, range(3, 4))
    finally:
        sys.setprofile(None)

    # and `runtimes/loop.py`, which calls both
    assert sorted(files) == [
        "algorithms/spod_gt.py",
        "kernels/links.py",
        "kernels/mixing.py",
        "problems/data/samples.py",
        "problems/gradients/loop.py",
        "problems/losses.py",
        "problems/minibatch_gradients.py",
        "random_draws.py",
        "runtimes/batch.py",
        "runtimes/batch_round.py",
        "runtimes/simulator.py",
    ]
