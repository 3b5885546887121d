"""How fast the simulator is, as ratios measured in one run: `python benchmarks/speed.py [SECTION …]`.

Against three yardsticks, on the same networks, data, participation and seeds:
  loop      what a user would write in PyTorch: a module and an optimiser per client, mixing in Python
  eager     all clients stacked in plain torch: batched products for gradients and mixing
  roofline  no machine of this speed can do better: the larger of FLOPs over measured matrix-product
            speed and bytes over measured copy bandwidth

Every figure is the best of several repeats; the spread is printed beside it.

    python benchmarks/speed.py                all sections, at most 15 minutes on two quiet cores
    python benchmarks/speed.py svm mixing     some of memory, svm, logistic, busy, methods, outside, large,
                                              networks, workers, mixing, growth, start
    python benchmarks/speed.py --page         no measurement: write the page and its picture again

Results: speed.json, README.md and growth.png in benchmarks/results (--out: another folder). The ratios are
appended to history.jsonl, which the page of the performance history draws.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import history
import numpy as np
import torch
from rich.console import Console
from rich.table import Table

import spodgt
from spodgt.algorithms.base import Algorithm, Rate, TrackingState
from spodgt.kernels.links import BatchLinks, MixingOperator
from spodgt.participation.roles import HasRoles
from spodgt.problems.gradients import Engine
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.gradients.vmap import VmapEngine
from spodgt.problems.learning import Learning
from spodgt.problems.losses import cross_entropy
from spodgt.problems.minibatch_gradients import sample_without_replacement
from spodgt.runtimes.loop import STRIDE, EvaluationSchedule, Stop, begin, run_rounds
from spodgt.runtimes.simulator import Simulation
from spodgt.runtimes.world import Draw, Run, Snapshot
from spodgt.types import Round

OUT = Path(__file__).parent / "results"
CONSOLE = Console(width=132)
LOOP_ROUNDS = 100  # of a plain loop in a slice that takes turns with the package


# --- measuring ---------------------------------------------------------------------------------------
def best(work: Callable[[], Any], repeats: int = 5, least: float = 0.3) -> tuple[float, float]:
    """Seconds per call: the best of the repeats, and how far the median lies above it."""
    work()  # warm up: compile, fill caches
    calls, once = 1, 0.0
    while once < least / repeats:
        begin_at = time.perf_counter()
        for _ in range(calls):
            work()
        once = time.perf_counter() - begin_at
        calls = calls if once >= least / repeats else calls * 2
    times = []
    for _ in range(repeats):
        begin_at = time.perf_counter()
        for _ in range(calls):
            work()
        times.append((time.perf_counter() - begin_at) / calls)
    return min(times), float(np.median(times) / min(times) - 1)


def machine() -> dict[str, Any]:
    """Matrix-product speed and copy bandwidth, now, on this machine."""
    a = torch.randn(1024, 1024)
    flops = 2 * 1024**3 / best(lambda: a @ a)[0]
    source = torch.randn(64 * 2**20 // 4)
    target = torch.empty_like(source)
    copy = (
        2 * source.numel() * 4 / best(lambda: target.copy_(source))[0]
    )  # a byte read and a byte written
    cpu = next(
        (line.split(":")[1].strip() for line in _cpuinfo() if line.startswith("model name")), ""
    )
    return {
        "cpu": cpu or platform.processor(),
        "threads": torch.get_num_threads(),
        "gemm_gflops": flops / 1e9,
        "copy_gb_per_s": copy / 1e9,
        "torch": torch.__version__,
    }


def _cpuinfo() -> list[str]:
    path = Path("/proc/cpuinfo")
    return path.read_text().splitlines() if path.exists() else []


# --- the runs ----------------------------------------------------------------------------------------
def make_runs(
    problem: Learning,
    count: int,
    chance: float,
    network: Callable[[int], spodgt.Network],
    method: Algorithm = spodgt.SpodGT(step_size=0.01),  # noqa: B008 (frozen)
) -> list[Run]:
    runs = []
    for seed in range(count):
        net, part = network(seed), problem.draw(seed)
        available = spodgt.Bernoulli(chance, chance).draw(net, seed)
        runs.append(Run(seed, method, net, available, part, part.start(seed)))
    return runs


def ours(runs: list[Run], rounds: int = 16 * STRIDE) -> Callable[[], None]:
    """Some rounds of the loop that `train` runs, without evaluations."""
    snapshot = begin(Simulation(runs))

    def run() -> None:
        nonlocal snapshot

        def observe(now: Snapshot, due: Any, last: Any) -> Any:
            nonlocal snapshot
            snapshot = now
            return np.zeros_like(last)

        run_rounds(snapshot, Stop(rounds=snapshot.k + rounds), EvaluationSchedule(), observe)

    return run


def per_round(runs: list[Run], rounds: int = 16 * STRIDE, **options: Any) -> tuple[float, float]:
    """Seconds per round, and the spread."""
    seconds, spread = best(ours(runs, rounds), **options)
    return seconds / rounds, spread


def by_turns_with_loop(
    runs: list[Run], loop: Callable[[], None], rounds: int = 16 * STRIDE
) -> tuple[float, float, float, float]:
    """Seconds per round and spread of the runs, and of a plain loop that takes turns with them."""

    def slice_of_loop() -> None:
        for _ in range(LOOP_ROUNDS):
            loop()

    seconds = alternating({"ours": ours(runs, rounds), "loop": slice_of_loop}, repeats=7)
    fast = seconds["ours"] / rounds
    slow = seconds["loop"] / LOOP_ROUNDS
    spreads = [float(np.median(times) / times.min() - 1) for times in (fast, slow)]
    return fast.min(), spreads[0], slow.min(), spreads[1]


def torch_loop(run: Run) -> Callable[[], None]:
    """One run as a user would write it: modules, optimisers, dictionaries of neighbours."""
    problem, network = run.problem, run.network
    models = [copy.deepcopy(problem.model.module) for _ in range(network.clients)]
    optimisers = [torch.optim.SGD(model.parameters(), lr=0.01) for model in models]
    loss = (
        torch.nn.CrossEntropyLoss()
        if problem.model.loss is cross_entropy
        else torch.nn.MultiMarginLoss()
    )
    inputs, targets = problem.samples.inputs, problem.samples.targets
    if targets.ndim > 1:  # a class for every character of a text
        loss = problem.model.loss

    def read(chosen: torch.Tensor) -> torch.Tensor:
        batch = inputs[chosen]
        return batch.float() / 255 if problem.samples.scales_bytes else batch

    shares = [torch.from_numpy(problem.client_indices[i]) for i in range(network.clients)]
    y = [[torch.zeros_like(p) for p in model.parameters()] for model in models]
    g = [[torch.zeros_like(p) for p in model.parameters()] for model in models]
    in_links = {i: [] for i in range(network.clients)}
    for i, j, a, b in zip(network.receivers, network.senders, network.a, network.b, strict=True):
        in_links[int(i)].append((int(j), float(a), float(b)))
    k = 0

    def round() -> None:
        nonlocal k
        k += 1
        computes = run.availability.computes(range(k, k + 1))[0]
        works = run.availability.links(range(k, k + 1))[0][0]
        with torch.no_grad():
            old_x = [[p.clone() for p in model.parameters()] for model in models]
            old_y = [[t.clone() for t in tensors] for tensors in y]
            link = 0
            for i in range(network.clients):
                for j, a, b in in_links[i]:
                    if works[link]:
                        for n, p in enumerate(models[i].parameters()):
                            p += a * (old_x[j][n] - old_x[i][n])
                            y[i][n] += b * old_y[j][n]
                            y[j][n] -= b * old_y[j][n]
                    link += 1
        for i, model in enumerate(models):
            for p, tracker in zip(model.parameters(), y[i], strict=True):
                p.grad = tracker.clone()
            optimisers[i].step()
            if computes[i]:
                chosen = shares[i][torch.randperm(len(shares[i]))[:16]]
                optimisers[i].zero_grad()
                loss(model(read(chosen)), targets[chosen]).backward()
            for n, p in enumerate(model.parameters()):
                new = p.grad.clone() if computes[i] else torch.zeros_like(p)
                y[i][n] += new - g[i][n]
                g[i][n] = new

    return round


def eager(runs: list[Run]) -> Callable[[], None]:
    """All clients of all runs stacked, in plain torch: the recursion as written, no compiled code."""
    world = Simulation(runs, compiled=False)
    x = world.held.initial_models()
    batch = world.batch
    problem, links = batch.problem, batch.links
    engine: LinearEngine = problem.model.engine
    y = torch.zeros_like(x)
    g = torch.zeros_like(x)
    k = 0

    push = MixingOperator(links, batch.weights["b"], links.senders, x.dtype, compiled=False)
    pull = MixingOperator(links, batch.weights["a"], links.receivers, x.dtype, compiled=False)

    def round() -> None:
        nonlocal x, y, g, k
        k += 1
        now = world.rounds.start(k)
        y = push(y, now.links.push)
        x = pull(x, now.links.pull) - 0.01 * y
        rows = np.flatnonzero(now.active_clients)
        new = torch.zeros_like(x)
        if len(rows):
            drawn = sample_without_replacement(
                batch.keys[rows],
                batch.client_index[rows],
                k,
                problem.client_indices.sizes[rows],
                16,
            )
            held = problem.client_indices
            chosen = torch.from_numpy(held.indices[held.offsets[rows, None] + drawn])
            inputs, targets = problem.samples.take(chosen, x.dtype)
            index = torch.from_numpy(rows)
            new[index] = engine.losses_and_gradients(x[index], inputs, targets, [])[1]
        y = y + new - g
        g = new

    return round


def roofline(runs: list[Run], chance: float, power: dict[str, Any]) -> float:
    """Seconds below which no round of these runs can be: every state read and written once."""
    clients = sum(run.network.clients for run in runs)
    links = chance * sum(run.network.links for run in runs)
    problem = runs[0].problem
    width, features = problem.parameters, problem.samples.inputs[0].numel()
    moved = (
        6 * clients * width * 4 + chance * clients * 16 * features
    )  # x, y, g in and out; pixels are bytes
    classes = problem.model.engine.classes
    flops = chance * clients * 16 * features * classes * 4 + 2 * 2 * (links + clients) * width
    return max(moved / (power["copy_gb_per_s"] * 1e9), flops / (power["gemm_gflops"] * 1e9))


def geometric(clients: int) -> Callable[[int], spodgt.Network]:
    return lambda seed: spodgt.Network.random_geometric(clients, 0.4, seed=seed)


def sparse(clients: int, degree: int = 8) -> Callable[[int], spodgt.Network]:
    return lambda seed: spodgt.Network.draw(spodgt.graphs.KRegular(clients, degree), seed=seed)


# --- sections ----------------------------------------------------------------------------------------
def small(model: str, power: dict[str, Any]) -> list[dict[str, Any]]:
    """Ten clients, 784 × 10, batch 16."""
    problem = spodgt.problems.classification(model=model, clients=10)
    rows = []
    for chance in (0.5, 1.0):
        loop = torch_loop(make_runs(problem, 1, chance, geometric(10))[0])
        for count in (1, 5, 25):
            runs = make_runs(problem, count, chance, geometric(10))
            fast, spread, slow, slow_spread = by_turns_with_loop(runs, loop)
            stacked, _ = best(eager(runs))
            limit = roofline(runs, chance, power)
            rows.append(
                {
                    "workload": f"{model}, {count} × 10 clients, {'half' if chance < 1 else 'all'} active",
                    "rounds_per_s": count / fast,
                    "spread": spread,
                    "times_loop": slow * count / fast,
                    "times_eager": stacked / fast,
                    "times_roofline": fast / limit,
                    "loop_rounds_per_s": 1 / slow,
                    "loop_spread": slow_spread,
                }
            )
    return rows


def busy(count: int = 25) -> list[dict[str, Any]]:
    """The same runs while another process keeps one core busy: a slow core should cost its share alone."""
    problem = spodgt.problems.classification(clients=10)
    runs = make_runs(problem, count, 0.5, geometric(10))
    quiet, spread = per_round(runs)
    core = min(os.sched_getaffinity(0))
    spin = f"import os; os.sched_setaffinity(0, {{{core}}})\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", spin]) as other:
        try:
            time.sleep(0.5)
            loud, loud_spread = per_round(runs)
        finally:
            other.kill()
    return [
        {
            "workload": f"svm, {count} × 10 clients, half active, one core busy",
            "rounds_per_s": count / loud,
            "spread": loud_spread,
            "of_quiet": quiet / loud,
            "quiet_spread": spread,
        }
    ]


# --- plain loops of other methods ----------------------------------------------------------------------
Vectors = list[list[torch.Tensor]]  # of every client, one per parameter of its module


class Plain:
    """What a user's loop over clients has: a module each, data, neighbours and their weights."""

    def __init__(self, run: Run) -> None:
        self.run, problem = run, run.problem
        self.model = copy.deepcopy(problem.model.module)
        self.loss = torch.nn.MultiMarginLoss()
        self.inputs, self.targets = problem.samples.inputs, problem.samples.targets
        self.clients = range(run.network.clients)
        self.shares = [torch.from_numpy(problem.client_indices[i]) for i in self.clients]
        self.ends = list(
            zip(run.network.receivers.tolist(), run.network.senders.tolist(), strict=True)
        )
        self.k = 0

    def start(self) -> Vectors:
        return [[p.detach().clone() for p in self.model.parameters()] for _ in self.clients]

    def next(self) -> None:
        self.k += 1
        rounds, availability = range(self.k, self.k + 1), self.run.availability
        self.computes = availability.computes(rounds)[0]
        self.links = availability.links(rounds).at(0)
        self.roles = (
            availability.roles(rounds).at(0) if isinstance(availability, HasRoles) else None
        )

    def grad(self, i: int, x: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad():
            for p, value in zip(self.model.parameters(), x, strict=True):
                p.copy_(value)
        chosen = self.shares[i][torch.randperm(len(self.shares[i]))[:16]]
        self.model.zero_grad()
        self.loss(self.model(self.inputs[chosen].float() / 255), self.targets[chosen]).backward()
        return [p.grad.clone() for p in self.model.parameters()]

    def grads(self, x: Vectors) -> Vectors:
        return [
            self.grad(i, x[i]) if self.computes[i] else [torch.zeros_like(t) for t in x[i]]
            for i in self.clients
        ]

    def mix(self, values: Vectors, kind: str) -> Vectors:
        network, roles = self.run.network, self.roles
        weights = getattr(network if roles is None else roles, kind)
        works = self.links.pushing if kind == "b" else self.links.pull
        mixed = [[t.clone() for t in each] for each in values]
        for (i, j), works_now, weight in zip(self.ends, works, weights, strict=True):
            if works_now:
                keeper = j if kind == "b" else i
                for n in range(len(values[i])):
                    mixed[i][n] += float(weight) * values[j][n]
                    mixed[keeper][n] -= float(weight) * values[keeper][n]
        return mixed


def each(function: Callable[..., torch.Tensor], *values: Vectors) -> Vectors:
    """A function of the same parameter of several vectors, for every client and parameter."""
    return [
        [function(*tensors) for tensors in zip(*of, strict=True)]
        for of in zip(*values, strict=True)
    ]


def plain_loops(run: Run) -> dict[str, Callable[[], None]]:
    """One round of each method as a user would write it, client by client."""
    plain, eta = Plain(run), 0.01
    plain.next()
    x, zero = plain.start(), each(torch.zeros_like, plain.start())
    g = plain.grads(x)
    state = {"x": x, "g": g, "y": g, "u": x, "h": x, "old": zero, "anchor": x, "c": zero}
    state["v"] = [[torch.ones(1)] for _ in plain.clients]

    def dsgd() -> None:
        plain.next()
        state["x"] = each(lambda a, b: a - eta * b, plain.mix(state["x"], "w"), state["g"])
        state["g"] = plain.grads(state["x"])

    def extra() -> None:
        plain.next()
        both = each(torch.add, state["x"], plain.mix(state["x"], "w"))
        step = each(
            lambda a, h, b, c: a - h - eta * (b - c), both, state["h"], state["g"], state["old"]
        )
        state.update(x=step, h=each(lambda a: a / 2, both), old=state["g"])
        state["g"] = plain.grads(state["x"])

    def push_diging() -> None:
        plain.next()
        state["u"] = plain.mix(each(lambda a, b: a - eta * b, state["u"], state["y"]), "b")
        state["v"] = plain.mix(state["v"], "b")
        state["x"] = [[t / state["v"][i][0] for t in state["u"][i]] for i in plain.clients]
        new = plain.grads(state["x"])
        state["y"] = each(lambda a, b, c: a + b - c, plain.mix(state["y"], "b"), new, state["g"])
        state["g"] = new

    def k_gt() -> None:
        plain.next()
        K = run.algorithm.local_steps
        z = each(lambda a, b, c: a - eta * (b + c), state["x"], state["g"], state["c"])
        if plain.k % K == 0:
            d = each(lambda a, b: (a - b) / K / eta, state["anchor"], z)
            state["c"] = each(lambda c, a, b: c - a + b, state["c"], d, plain.mix(d, "b"))
            z = state["anchor"] = plain.mix(
                each(lambda a, b: a - eta * K * b, state["anchor"], d), "a"
            )
        state.update(x=z, g=plain.grads(z))

    def relay() -> None:
        plain.next()
        y, x = plain.mix(state["y"], "b"), plain.mix(state["x"], "a")
        lead = plain.roles.step_weight
        state["x"] = [
            [a - eta * float(lead[i]) * b for a, b in zip(x[i], y[i], strict=True)]
            for i in plain.clients
        ]
        found = plain.grads(state["x"])
        new = [found[i] if plain.computes[i] else state["g"][i] for i in plain.clients]
        state["y"] = each(lambda a, b, c: a + b - c, y, new, state["g"])
        state["g"] = new

    return {"dsgd": dsgd, "extra": extra, "push-diging": push_diging, "k-gt": k_gt, "relay": relay}


def methods(count: int = 25) -> list[dict[str, Any]]:
    """Methods outside the Spod-GT family, each against a plain loop of its own; some with layers."""
    problem, rows = spodgt.problems.classification(clients=10), []
    layered = {
        "dsgd + momentum, schedule": {
            "momentum": 0.9,
            "step_size": spodgt.algorithms.InverseSqrt(0.01),
        }
    }
    for label in ("push-diging", "extra", "dsgd", "k-gt", "relay", *layered):
        name = label.split(" ")[0]
        method = spodgt.method(name, **layered.get(label, {}))
        clients, links = (0.5 if how == "yes" else 1.0 for how in sporadic(method))
        if name == "k-gt":
            clients = 0.5
        runs = []
        for seed in range(count):
            net, part = geometric(10)(seed), problem.draw(seed)
            available = spodgt.Bernoulli(clients, links).draw(net, seed)
            runs.append(Run.of(Draw(seed, net, available, part, part.start(seed)), method))
        loop = plain_loops(runs[0])[name]
        for number in (1, count):
            fast, spread, slow, _ = by_turns_with_loop(runs[:number], loop)
            rows.append(
                {
                    "workload": f"{label}, {number} × 10 clients",
                    "rounds_per_s": number / fast,
                    "spread": spread,
                    "times_loop": slow * number / fast,
                }
            )
    return rows


def sporadic(method: Algorithm) -> tuple[str, str]:
    return method.traits.sporadic_clients, method.traits.sporadic_links


def start() -> list[dict[str, Any]]:
    """CPU seconds of commands in a new process: with nothing compiled yet, and later."""
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for label, words in (
            ("--help", ["--help"]),
            ("first compare", ["compare", "--rounds", "100", "--seeds", "2", "--json"]),
            ("compare again", ["compare", "--rounds", "100", "--seeds", "2", "--json"]),
        ):
            before = resource.getrusage(resource.RUSAGE_CHILDREN)
            here = os.environ | {"NUMBA_CACHE_DIR": folder}
            done = subprocess.run(
                [sys.executable, "-m", "spodgt", *words],
                env=here,
                cwd=folder,
                capture_output=True,
                check=True,
            )
            after = resource.getrusage(resource.RUSAGE_CHILDREN)
            used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            rows.append({"workload": label, "cpu_s": used, "output_bytes": len(done.stdout)})
    return rows


@dataclass(frozen=True)
class Declared(Algorithm):
    """A method from outside the package, which declares the compiled step as its own."""

    name = "declared"
    traits = replace(spodgt.SpodGT.traits, source="spodgt")
    step_size: Rate = 0.01

    def init(self, x: torch.Tensor, round: Round) -> TrackingState:
        g = round.grad(x)
        return TrackingState(x, g, g)

    def step(self, state: TrackingState, round: Round) -> TrackingState:
        y = round.push(state.y)
        x = round.pull(state.x) - self.step_size * y
        g = round.grad(x)
        return TrackingState(x, y + g - state.g, g)


@dataclass(frozen=True)
class Undeclared(Declared):
    name = "undeclared"
    traits = replace(Declared.traits, compiled=None)


def outside() -> dict[str, Any]:
    """A registered method that declares the compiled step, against itself without the declaration."""
    problem = spodgt.problems.classification(clients=10)
    seconds = {}
    for method in (spodgt.register(Declared)(), spodgt.register(Undeclared)(), spodgt.SpodGT()):
        seconds[method.name], spread = per_round(make_runs(problem, 5, 0.5, geometric(10), method))
    fast = seconds["declared"]
    return {
        "workload": "a method from outside, svm, 5 × 10 clients, half active",
        "rounds_per_s": 5 / fast,
        "spread": spread,
        "times_undeclared": seconds["undeclared"] / fast,
        "times_spod_gt": seconds["spod-gt"] / fast,
    }


def large(power: dict[str, Any]) -> list[dict[str, Any]]:
    """A thousand and ten thousand clients on sparse digraphs."""
    rows = []
    for clients in (1_000, 10_000):
        problem = many_clients(clients)
        runs = make_runs(problem, 1, 0.5, sparse(clients))
        fast, spread = per_round(runs, STRIDE, repeats=3)
        stacked, _ = best(eager(runs), repeats=2)
        rows.append(
            {
                "workload": f"svm, {clients:,} clients, degree 8, half active",
                "rounds_per_s": 1 / fast,
                "spread": spread,
                "times_eager": stacked / fast,
                "times_roofline": fast / roofline(runs, 0.5, power),
            }
        )
    return rows


def many_clients(clients: int, each: int = 16, side: int = 28, classes: int = 10) -> Learning:
    """The embedded images dealt out again and again, so that any number of clients holds some."""
    from spodgt.problems.data import IID, load
    from spodgt.problems.data.datasets import Dataset, Split
    from spodgt.problems.losses import multi_margin
    from spodgt.problems.models import linear

    small = load("fashion-mnist-small")
    again = torch.from_numpy(np.resize(np.arange(len(small.train.targets)), clients * each))
    train, test = (
        Split(
            part.inputs[:, :, :: 28 // side, :: 28 // side].contiguous(),
            part.targets * classes // 10,
        )
        for part in (small.train, small.test)
    )
    # One index list, not one image per client: 10⁴ clients would otherwise hold gigabytes of pixels.
    problem = Learning.partitioned(
        linear((1, side, side), classes),
        multi_margin,
        Dataset("again", train, test, classes),
        clients=min(clients, 1000),
        partition=IID(),
    )
    from spodgt.problems.data.samples import ClientIndices

    return problem.with_client_indices(ClientIndices(again.numpy(), np.arange(clients + 1) * each))


class Recurrent(torch.nn.Module):
    """A character-level LSTM, as a user would write it."""

    def __init__(self, characters: int, width: int = 32) -> None:
        super().__init__()
        self.letter = torch.nn.Embedding(characters, width)
        self.cells = torch.nn.LSTM(width, width, batch_first=True)
        self.last = torch.nn.Linear(width, characters)

    def forward(self, codes: torch.Tensor) -> torch.Tensor:
        return self.last(self.cells(self.letter(codes.long()))[0])


def small_networks() -> dict[str, Callable[[], Learning]]:
    """Problems by what is measured; texts are those of examples/speeches.toml."""
    from spodgt.problems.data import load_texts
    from spodgt.problems.data.text_corpora import ALPHABET
    from spodgt.problems.text import Text, speeches

    classes = spodgt.problems.classification
    texts: dict[str, Any] = {"clients": 12, "batch_size": 8, "test_samples": 240}
    return {
        "cnn width 8, 10 clients, batch 16": partial(
            classes, "fashion-mnist-small", "cnn", clients=10, width=8
        ),
        "mlp, 10 clients, batch 16": partial(classes, "fashion-mnist-small", "mlp", clients=10),
        "transformer, 12 clients, batch 8": partial(speeches, **texts),
        "lstm, 12 clients, batch 8": lambda: Text.of(
            Recurrent(len(ALPHABET)), load_texts("sotu-small", 32), **texts
        ),
        "resnet18 width 16, 10 clients, batch 16": partial(
            classes, "cifar-10", "resnet18", clients=10, width=16, test_samples=1000
        ),
    }


def networks(power: dict[str, Any]) -> list[dict[str, Any]]:
    """Networks, half of the clients active: the loop of modules against vmap, by turns."""
    rows = []
    for name, make in small_networks().items():
        try:
            problem = make()
        except spodgt.errors.InvalidData as error:
            CONSOLE.print(f"skipped {name}: {error}")
            continue
        plain = problem.model.plain
        engines: dict[str, Engine] = {"now": problem.model.engine}
        if "resnet" not in name and "lstm" not in name:
            engines["vmap"] = VmapEngine(plain.module, plain.layout, plain.objective)
        steps, rounds = {}, 2 if "resnet" in name else STRIDE
        for engine_name, engine in engines.items():
            other = problem._with(problem.data, replace(problem.model, engine=engine))
            steps[engine_name] = ours(make_runs(other, 1, 0.5, geometric(problem.clients)), rounds)
        seconds = alternating(steps, repeats=5)
        now = float(seconds["now"].min()) / rounds
        x = problem.start(0) + 1e-3 * torch.randn(problem.clients, problem.parameters)
        tested, _ = best(
            partial(problem.evaluate, torch.cat([x, x.mean(0, keepdim=True)])), repeats=2
        )
        spread = float(np.median(seconds["now"])) / rounds / now - 1
        row: dict[str, Any] = {"workload": name, "rounds_per_s": 1 / now, "spread": spread}
        for yardstick in [name for name in seconds if name != "now"]:
            row[f"times_{yardstick}"] = float(np.median(seconds[yardstick] / seconds["now"]))
        row |= {"outside_kernels": outside_kernels(steps["now"]), "evaluation_rounds": tested / now}
        rows.append(row)
    return rows


def workers(seeds: int = 5, count: int = 2, rounds: int = 200) -> list[dict[str, Any]]:
    """Seeds of a network in worker processes, by turns with the loop of one run on one thread.

    Seconds of a round are the difference of a long and a short call of `train`, without their
    start. Memory is that of all processes, shared pages divided among them, above one process.
    """
    rows = []
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    for name, make in small_networks().items():
        if "resnet" in name:
            continue
        problem = make()
        network = geometric(problem.clients)(0)
        loop = torch_loop(make_runs(problem, 1, 0.5, geometric(problem.clients))[0])
        loop()

        def train(
            length: int, problem: Learning = problem, network: spodgt.Network = network
        ) -> float:
            began = time.perf_counter()
            spodgt.train(
                "spod-gt",
                problem,
                network,
                spodgt.Bernoulli(0.5, 0.5),
                rounds=length,
                seeds=range(seeds),
                workers=count,
                evaluations=2,
                progress=False,
            )
            return time.perf_counter() - began

        slow, fast = [], []
        with MemoryWatch() as watch:
            for _ in range(3):
                short = train(rounds // 5)
                fast.append((train(rounds) - short) / (rounds - rounds // 5) / seeds)
                slow.append(best(loop, repeats=1, least=2.0)[0])
        rows.append(
            {
                "workload": f"{name}, {seeds} seeds, {count} workers",
                "rounds_per_s": 1 / min(fast),
                "times_loop": min(slow) / min(fast),
                "times_loop_median": float(np.median(np.array(slow) / np.array(fast))),
                "added_mb": watch.added / 2**20,
            }
        )
    torch.set_num_threads(threads)
    return rows


class MemoryWatch:
    """Measures the memory of this process and its children (Linux), every tenth of a second.

    `added` is the largest increase over the memory at the start, in bytes.
    """

    def __enter__(self) -> MemoryWatch:
        self.ended = threading.Event()
        self.first = self._memory()
        self.added = 0
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(0.1):
            self.added = max(self.added, self._memory() - self.first)

    @staticmethod
    def _memory() -> int:
        """The proportional set sizes: a page that n processes share counts 1/n in each."""
        total = 0
        own = os.getpid()
        children = Path(f"/proc/{own}/task/{own}/children").read_text().split()
        for process in (str(own), *children):
            with contextlib.suppress(OSError):  # it may have ended
                for line in Path(f"/proc/{process}/smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total += int(line.split()[1]) * 1024
        return total


def alternating(steps: dict[str, Callable[[], None]], repeats: int = 9) -> dict[str, np.ndarray]:
    """Seconds of each, taken by turns, so that other work on the machine slows all of them alike."""
    for step in steps.values():
        step()
        step()  # compiled and warm
    found: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(repeats):
        for name, step in steps.items():
            began = time.perf_counter()
            step()
            found[name].append(time.perf_counter() - began)
    return {name: np.array(times) for name, times in found.items()}


_NO_KERNELS = (
    "view", "reshape", "transpose", "permute", "select", "slice", "split", "as_strided", "expand", "squeeze",
    "empty", "detach", "alias", "::to", "_to_copy", "contiguous", "clone", "::t", "copy_", "chunk",
)  # fmt: skip


def outside_kernels(step: Callable[[], None]) -> float:
    """The share of a round on one thread that is not spent computing numbers in kernels of torch or our own.

    Copies, views and memory count as outside, and so does the compiled exchange of models.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        began = time.perf_counter()
        step()
        wall = time.perf_counter() - began
    torch.set_num_threads(threads)
    inside = sum(
        event.self_cpu_time_total
        for event in profile.key_averages()
        if event.key.startswith("aten::")
        and not any(event.key.endswith(word) for word in _NO_KERNELS)
    )
    return 1 - inside / 1e6 / wall


def mixing(power: dict[str, Any]) -> list[dict[str, Any]]:
    """Pull and push alone, as a share of the copy bandwidth: each reads a state and writes one."""
    rows = []
    for clients, width in ((10, 10**2), (10, 10**4), (10, 10**6), (10, 10**7), (1000, 10**4)):
        net = geometric(10)(0) if clients == 10 else sparse(clients)(0)
        links = BatchLinks(1, clients, net.receivers, net.senders)
        x = torch.randn(clients, width)
        active = np.ones(net.links, bool)
        for name, weights, keeper in (
            ("pull", net.a, links.receivers),
            ("push", net.b, links.senders),
        ):
            operator = MixingOperator(links, weights, keeper, x.dtype)
            work = partial(operator, x, active)
            seconds, spread = best(work, repeats=3)
            share = 2 * x.numel() * 4 / seconds / (power["copy_gb_per_s"] * 1e9)
            rows.append(
                {
                    "workload": f"{name}, {clients:,} clients × {width:,}",
                    "seconds": seconds,
                    "spread": spread,
                    "of_copy": share,
                }
            )
    return rows


def growth(power: dict[str, Any]) -> list[dict[str, Any]]:
    """Time and memory against clients, links, parameters and runs; one axis at a time."""
    rows = []
    for clients in (125, 500, 2_000, 8_000, 12_500):
        rows.append(
            _grown("links", clients * 8, make_runs(many_clients(clients), 1, 1.0, sparse(clients)))
        )
    for degree in (2, 4, 8, 16):
        rows.append(
            _grown("degree", degree, make_runs(many_clients(2_000), 1, 1.0, sparse(2_000, degree)))
        )
    for side in (7, 14, 28):
        rows.append(
            _grown(
                "parameters",
                side * side * 10 + 10,
                make_runs(many_clients(1_000, side=side), 1, 1.0, sparse(1_000)),
            )
        )
    problem = spodgt.problems.classification(clients=10)
    for count in (1, 5, 25, 50):
        rows.append(_grown("runs", count, make_runs(problem, count, 0.5, geometric(10))))
    return rows


def _grown(axis: str, value: int, runs: list[Run]) -> dict[str, Any]:
    seconds, spread = per_round(runs, STRIDE, repeats=3)
    states = 3 * sum(run.start.numel() for run in runs) * 4
    return {
        "axis": axis,
        "value": value,
        "seconds": seconds,
        "spread": spread,
        "state_bytes": states,
    }


def memory(clients: int = 10_000) -> dict[str, Any]:
    """Peak memory of rounds above what the data and the interpreter take, over the size of the states."""
    runs = make_runs(many_clients(clients), 1, 0.5, sparse(clients))
    tiny = make_runs(many_clients(100), 1, 0.5, sparse(100))
    ours(tiny)()  # compile first, so that the compiler's memory does not count
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    base = _resident()
    step = ours(runs, STRIDE)
    for _ in range(3):
        step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    states = 3 * clients * runs[0].problem.parameters * 4
    return {
        "workload": f"memory, {clients:,} clients",
        "peak_over_states": (max(peak, before) - base) / states,
        "states_mb": states / 1e6,
    }


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


# --- output --------------------------------------------------------------------------------------------
def show(title: str, rows: list[dict[str, Any]]) -> None:
    columns = list(dict.fromkeys(key for row in rows for key in row))
    table = Table(title=title, title_justify="left")
    for column in columns:
        table.add_column(
            column.replace("_", " "), justify="left" if column in ("workload", "axis") else "right"
        )
    for row in rows:
        table.add_row(
            *(
                f"{v:.3g}" if isinstance(v, float) else str(v)
                for v in (row.get(c, "") for c in columns)
            )
        )
    CONSOLE.print(table)


_COLUMNS = {
    "times_loop": "a PyTorch loop with a module and an optimizer per client: speed over its speed",
    "times_eager": "all clients stacked in plain torch: speed over its speed",
    "times_roofline": "time over the bound by measured matrix products and copies",
    "of_copy": "share of the measured copy bandwidth",
    "of_quiet": "speed over that of the same runs on a quiet machine",
    "times_vmap": "all clients in one call of torch.func.vmap: speed over its speed",
    "times_undeclared": "the same method without the compiled step: speed over its speed",
    "times_spod_gt": "the built-in method: speed over its speed",
    "outside_kernels": "share of a round that is not spent computing numbers in kernels",
    "evaluation_rounds": "time of an evaluation, in rounds",
    "peak_over_states": "peak memory of rounds over the size of all states",
}
_TITLES = {
    "svm": "Linear SVM",
    "logistic": "Logistic regression",
    "networks": "Neural networks",
    "methods": "Other methods",
    "outside": "A method from outside the package",
    "large": "Many clients",
    "growth": "Growth with the size",
    "memory": "Memory",
    "mixing": "Mixing alone",
    "busy": "On a busy machine",
    "workers": "Worker processes",
    "start": "Start of the program",
}  # in the order of the page
_ONLY_IN_JSON = ("loop_rounds_per_s", "loop_spread", "quiet_spread", "times_loop_median")


def write_page(results: dict[str, Any], out: Path) -> None:
    """Write README.md: the tables of all sections, each with when and where it was measured."""
    known = [name for name in _TITLES if isinstance(results.get(name), list)]
    others = [
        name for name, rows in results.items() if isinstance(rows, list) and name not in known
    ]
    sections = {name: results[name] for name in (*known, *others)}
    lines = [
        "# How fast the simulator is",
        "",
        "How fast is it, compared with other ways to compute the same? "
        "Two values are compared within one run, so ratios depend less on the machine than seconds. "
        "Values are the best of several repeats; spread is the distance of the median.",
        "",
        "| column | compared with |",
        "|---|---|",
    ]
    used = {column for rows in sections.values() for row in rows for column in row}
    for column, meaning in _COLUMNS.items():
        if column in used:
            lines.append(f"| {column.replace('_', ' ')} | {meaning} |")
    for name, rows in sections.items():
        lines += ["", f"## {_TITLES.get(name, name)}", "", where(results["measured"].get(name))]
        if name == "growth":
            slope = results["slope_of_links"]
            lines += [
                "Time and memory of a round against links, links per client, parameters and runs. "
                f"Time grows with the number of links to the power {slope:.2f}.",
                "",
                "![time and memory of a round](growth.png)",
            ]
        else:
            lines += ["", *markdown_table(rows)]
    lines += ["", "All numbers are in [speed.json](speed.json). Repeat a section: "]
    lines[-1] += "`python benchmarks/speed.py svm`."
    (out / "README.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def where(facts: dict[str, Any] | None) -> str:
    """When, at which commit and on which machine a section was measured, as a sentence."""
    if facts is None:
        return "Date and commit were not recorded."
    return (
        f"Measured on {facts['date']} at commit `{facts['commit']}` (version {facts['version']}) "
        f"on {facts['cpu']}, {facts['threads']} threads, torch {facts['torch']}."
    )


def markdown_table(rows: list[dict[str, Any]]) -> list[str]:
    columns = dict.fromkeys(key for row in rows for key in row if key not in _ONLY_IN_JSON)
    lines = [f"| {' | '.join(columns).replace('_', ' ')} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = []
        for column in columns:
            cells.append(readable(row.get(column, "")))
        lines.append(f"| {' | '.join(cells)} |")
    return lines


def readable(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def draw_growth(rows: list[dict[str, Any]], out: Path) -> float:
    """Time per round against each axis, and the slope against links on a log-log scale."""
    from matplotlib.figure import Figure

    axes_names = list(dict.fromkeys(row["axis"] for row in rows))
    figure = Figure(figsize=(3.2 * len(axes_names), 3), layout="constrained")
    slope = float("nan")
    for name, axes in zip(axes_names, figure.subplots(1, len(axes_names)), strict=True):
        points = [row for row in rows if row["axis"] == name]
        value = np.array([row["value"] for row in points], float)
        seconds = np.array([row["seconds"] for row in points])
        axes.loglog(value, seconds * 1e3, "o-", color="#0072B2", label="ms per round")
        axes.loglog(
            value,
            np.array([row["state_bytes"] for row in points]) / 1e6,
            "s--",
            color="#D55E00",
            label="MB of state",
        )
        fitted = np.polyfit(np.log(value), np.log(seconds), 1)[0]
        slope = fitted if name == "links" else slope
        axes.set_title(f"slope {fitted:.2f}", fontsize=10)
        axes.set_xlabel(name)
        axes.set_xticks(value, [f"{v:,.0f}" for v in value], rotation=30)
        axes.xaxis.minorticks_off()
        axes.grid(alpha=0.25, which="both")
    figure.axes[0].legend(fontsize=8)
    figure.savefig(out / "growth.png", dpi=140)
    return slope


def main() -> None:
    makers: dict[str, Callable[[], list[dict[str, Any]]]] = {
        "memory": lambda: [memory()],
        "svm": lambda: small("svm", power),
        "logistic": lambda: small("logistic", power),
        "busy": busy,
        "methods": methods,
        "outside": lambda: [outside()],
        "large": lambda: large(power),
        "networks": lambda: networks(power),
        "workers": workers,
        "mixing": lambda: mixing(power),
        "growth": lambda: growth(power),
        "start": start,
    }
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("section", nargs="*", help=f"of {', '.join(makers)}; all if left out")
    parser.add_argument("--out", type=Path, default=OUT, help="folder of the results")
    parser.add_argument("--page", action="store_true", help="only write the page again")
    given = parser.parse_args()
    wanted = given.section or list(makers)
    if unknown := set(wanted) - set(makers):
        parser.error(f"section {min(unknown)!r} is not known; choose from {', '.join(makers)}.")
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "speed.json"
    results: dict[str, Any] = {"measured": {}}
    if path.exists():
        results = json.loads(path.read_text(encoding="utf-8"))
    if given.page:
        if "growth" in results:
            draw_growth(results["growth"], given.out)
        write_page(results, given.out)
        return
    power = machine()
    CONSOLE.print(power)
    results["machine"] = power
    for name in wanted:
        began = time.perf_counter()
        results[name] = makers[name]()
        seconds = round(time.perf_counter() - began, 1)
        results["measured"][name] = history.facts(power) | {"seconds": seconds}
        show(f"{name}, measured in {seconds:.0f} s", results[name])
        if name == "growth":
            results["slope_of_links"] = draw_growth(results[name], given.out)
        history.append(name, results[name], power, given.out / "history.jsonl")
        path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
        write_page(results, given.out)


if __name__ == "__main__":
    main()
