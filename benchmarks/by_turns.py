"""Two versions of the package by turns: rounds per second of the one divided by those of the other.

python benchmarks/by_turns.py OLD [--workloads svm-half-1,cnn] [--slices 7] [--threads 1]

OLD is a checkout of the other version, such as one of `git worktree add`. Each version runs in a
process of its own. The processes compute short slices by turns, so that other work on the machine
slows both alike. The best and the median of the ratios are printed, by wall and by processor time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent.parent
SLICE = 1.0  # seconds of a slice, about
LINEAR = ("dsgd", "extra", "push-diging", "k-gt", "relay")
NETWORKS = ("mlp", "cnn", "transformer", "lstm")


# --- the workloads, in the process of one version ------------------------------------------------
def workloads() -> dict[str, Callable[[], Callable[[int], None]]]:
    """Functions by name that make a workload: a function that computes so many rounds."""
    makers: dict[str, Callable[[], Callable[[int], None]]] = {}
    for share, chance in (("half", 0.5), ("all", 1.0)):
        for count in (1, 25):
            makers[f"svm-{share}-{count}"] = lambda c=chance, n=count: _svm("spod-gt", c, n)
    for name in LINEAR:
        makers[f"{name}-1"] = lambda name=name: _svm(name, None, 1)
        makers[f"{name}-25"] = lambda name=name: _svm(name, None, 25)
    makers["clients-10000"] = _many_clients
    makers["virtual-equal"] = lambda: _virtual({"kind": "constant", "value": 1.0}, 0.0)
    makers["virtual-lognormal"] = lambda: _virtual(
        {"kind": "lognormal", "median": 1.0, "sigma": 0.5}, 0.2
    )
    for name in NETWORKS:
        makers[name] = lambda name=name: _network(name)
    return makers


def _runs(name: str, problem: Any, chance: float | None, count: int, network: Any) -> list[Any]:
    """Runs of a method; chance None: half active where the method allows it."""
    import spodgt
    from spodgt.runtimes.world import Draw, Run

    method = spodgt.method(name)
    chances = [chance, chance]
    if chance is None:
        traits = method.traits
        chances = [
            0.5 if x == "yes" else 1.0 for x in (traits.sporadic_clients, traits.sporadic_links)
        ]
    runs = []
    for seed in range(count):
        drawn = network(seed)
        part = problem.draw(seed)
        available = spodgt.Bernoulli(*chances).draw(drawn, seed)
        runs.append(Run.of(Draw(seed, drawn, available, part, part.start(seed)), method))
    return runs


def _geometric(clients: int) -> Callable[[int], Any]:
    import spodgt

    return lambda seed: spodgt.Network.random_geometric(clients, 0.4, seed=seed)


def _simulate(runs: list[Any]) -> Callable[[int], None]:
    """Rounds of the training loop, without evaluations."""
    from spodgt.runtimes.loop import EvaluationSchedule, Stop, begin, run_rounds
    from spodgt.runtimes.simulator import Simulation

    snapshot = begin(Simulation(runs))

    def observe(now: Any, due: Any, last: Any) -> Any:
        nonlocal snapshot
        snapshot = now
        return np.zeros_like(last)

    def compute(rounds: int) -> None:
        run_rounds(snapshot, Stop(rounds=snapshot.k + rounds), EvaluationSchedule(), observe)

    return compute


def _svm(name: str, chance: float | None, count: int) -> Callable[[int], None]:
    import spodgt

    problem = spodgt.problems.classification(clients=10)
    return _simulate(_runs(name, problem, chance, count, _geometric(10)))


def _many_clients(clients: int = 10_000, samples: int = 16) -> Callable[[int], None]:
    import networkx
    import torch

    import spodgt

    generator = torch.Generator().manual_seed(0)
    data = []
    for _ in range(clients):
        images = torch.randint(256, (samples, 784), generator=generator, dtype=torch.uint8)
        data.append((images, torch.randint(10, (samples,), generator=generator)))
    problem = spodgt.Learning(
        torch.nn.Linear(784, 10), torch.nn.MultiMarginLoss(), data, batch_size=8
    )
    graph = networkx.random_regular_graph(8, clients, seed=0).to_directed()
    network = spodgt.Network.from_networkx(graph)
    return _simulate(_runs("spod-gt", problem, 0.5, 1, lambda seed: network))


def _virtual(duration: dict[str, Any], latency: float) -> Callable[[int], None]:
    import spodgt

    problem = spodgt.problems.classification(clients=10)
    runs = _runs("spod-gt-memory", problem, 0.5, 1, _geometric(10))
    try:
        from spodgt.runtimes.events.world import EventWorld
    except ModuleNotFoundError:  # before 0.3
        from spodgt.runtimes.virtual.world import VirtualWorld as EventWorld
    world = EventWorld(runs, spodgt.Time(duration, latency=latency))
    state = world.init()
    k = 0

    def compute(rounds: int) -> None:
        nonlocal state, k
        end = k + rounds
        while k < end:
            count = min(16, len(world.costs(k + 1)), end - k)
            state = world.advance(state, range(k + 1, k + 1 + count))
            k += count

    return compute


def _network(name: str) -> Callable[[int], None]:
    import torch

    import spodgt

    texts: dict[str, Any] = {"clients": 12, "batch_size": 8, "test_samples": 240}
    if name == "transformer":
        from spodgt.problems.text import speeches

        problem = speeches(**texts)
    elif name == "lstm":
        from spodgt.problems.data import load_texts
        from spodgt.problems.data.text_corpora import ALPHABET
        from spodgt.problems.text import Text

        class Recurrent(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.embedding = torch.nn.Embedding(len(ALPHABET), 32)
                self.cells = torch.nn.LSTM(32, 32, batch_first=True)
                self.last = torch.nn.Linear(32, len(ALPHABET))

            def forward(self, codes: torch.Tensor) -> torch.Tensor:
                scores: torch.Tensor = self.last(self.cells(self.embedding(codes.long()))[0])
                return scores

        problem = Text.of(Recurrent(), load_texts("sotu-small", 32), **texts)
    else:
        options = {"width": 8} if name == "cnn" else {}
        problem = spodgt.problems.classification("fashion-mnist-small", name, clients=10, **options)
    return _simulate(_runs("spod-gt", problem, 0.5, 1, _geometric(problem.clients)))


def serve(name: str, threads: int) -> None:
    """Compute slices of a workload: a line with a number of rounds in, seconds out."""
    import torch

    torch.set_num_threads(threads)
    compute = workloads()[name]()
    print(json.dumps("ready"), flush=True)
    for line in sys.stdin:
        wall = time.perf_counter()
        cpu = time.process_time()
        compute(int(line))
        seconds = [time.perf_counter() - wall, time.process_time() - cpu]
        print(json.dumps(seconds), flush=True)


# --- the comparison --------------------------------------------------------------------------------
class Version:
    """A process that computes a workload with one version of the package."""

    def __init__(self, root: Path, name: str, threads: int) -> None:
        command = [sys.executable, __file__, str(root), "--serve", name, "--threads", str(threads)]
        environment = os.environ | {"PYTHONPATH": str(root / "src")}
        self.process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()

    def compute(self, rounds: int) -> np.ndarray:
        """(2,) seconds of wall and of processor time."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{rounds}\n")
        self.process.stdin.flush()
        return np.array(self._read())

    def _read(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"the process of {self.process.args} ended; see its error above")
        return json.loads(line)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def compare(name: str, old_root: Path, slices: int, threads: int) -> str:
    """One line: the ratios of a workload."""
    old = Version(old_root, name, threads)
    new = Version(HERE, name, threads)
    rounds = 16
    while old.compute(rounds)[0] < SLICE / 2:
        rounds *= 2
    new.compute(rounds)
    seconds = np.array([[old.compute(rounds), new.compute(rounds)] for _ in range(slices)])
    old.close()
    new.close()
    best = seconds.min(0)  # (version, clock)
    ratios = np.median(seconds[:, 0] / seconds[:, 1], 0)
    return (
        f"{name:18} {rounds / best[0, 0]:9.1f} {rounds / best[1, 0]:9.1f} rounds/s   new/old: "
        f"best wall {best[0, 0] / best[1, 0]:.3f}, cpu {best[0, 1] / best[1, 1]:.3f}; "
        f"median wall {ratios[0]:.3f}, cpu {ratios[1]:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("old", type=Path, help="a checkout of the other version")
    parser.add_argument("--workloads", default="svm-half-1,svm-half-25,mlp,cnn")
    parser.add_argument("--slices", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--serve", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(options.serve, options.threads)
        return
    names = list(workloads()) if options.workloads == "all" else options.workloads.split(",")
    for name in names:
        print(compare(name, options.old.resolve(), options.slices, options.threads), flush=True)


if __name__ == "__main__":
    main()
