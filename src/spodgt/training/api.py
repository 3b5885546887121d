"""`train` one method, `compare` several: runs drawn, batched, watched, recorded, and never lost."""

from __future__ import annotations

import operator
import zlib
from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms import describe, method
from spodgt.algorithms.base import Algorithm
from spodgt.algorithms.checks import check
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.network import Network, as_network
from spodgt.network.recipes import Recipe
from spodgt.participation import Always, Participation, as_availability
from spodgt.record.folder import RunDirectory
from spodgt.record.record import networks_table
from spodgt.runtimes.loop import Marks, Stop
from spodgt.runtimes.simulator import Run
from spodgt.training.result import Result
from spodgt.training.session import Glimpse, Progress, Session, Settings
from spodgt.types import Availability, Problem

__all__ = ["Glimpse", "Method", "Progress", "compare", "run", "train"]

Method = Algorithm | str
_ALWAYS = Always()
_TRIED = 2**22  # chances that are tried to tell one participation from another


def train(
    algorithm: Method,
    problem: Problem,
    network: Network | Recipe,
    participation: Participation = _ALWAYS,
    **options: Any,
) -> Result:
    """Train with one method. Takes the options of `compare`."""
    return compare([algorithm], problem, network, participation, **options)


def compare(
    algorithms: Sequence[Method],
    problem: Problem,
    network: Network | Recipe,
    participation: Participation = _ALWAYS,
    *,
    rounds: int | None = None,
    delay: float | None = None,
    seeds: int | Iterable[int] = 0,
    x0: Any = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    keep_states: bool = False,
    evaluations: int = 25,
    every: int | None = None,
    gradient_norm: bool | None = None,
    weights: str = "degree",
    progress: Progress | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    config: dict[str, Any] | None = None,
    runtime: str | None = None,
) -> Result:
    """Run every method on the same networks, participation, data and seeds, until `rounds` or `delay`.

    A fixed network is held over all seeds; recipes (graphs, participations, partitions) are drawn anew
    for each, and all seeds of a method run together. Runs are looked at about `evaluations` times, or
    every `every` rounds. `x0` is (clients, parameters) or (parameters,). With `out`, the work is kept
    in that folder and `resume=True` goes on with it, with the same numbers as an unbroken run. Under
    `torchrun` the processes share the clients; `runtime="simulator"` lets each of them do all by itself.
    """
    given: Any = [algorithms] if isinstance(algorithms, str | Algorithm) else algorithms
    if not isinstance(given, Iterable):
        raise InvalidInput(
            f'algorithms must be a list of methods, got {type(given).__name__}; use ["spod-gt"].'
        )
    methods = [method(each) for each in given]
    seed_list = _seeds(seeds)
    if not methods:
        raise InvalidInput('algorithms must name at least one method, got none; use ["spod-gt"].')
    if rounds is None and delay is None:
        raise InvalidInput("rounds or delay must say when to stop, got neither; use delay=5000.")
    _check_numbers(rounds=rounds, delay=delay, evaluations=evaluations, every=every)
    if not isinstance(checkpoint_every, int | float) or not checkpoint_every >= 0:
        raise InvalidInput(
            f"checkpoint_every must be seconds of at least 0, got {checkpoint_every!r}; use 30."
        )
    if resume and (out is None or keep_states):
        why = "keep_states=True: its first states are gone" if out else "no out: nothing was kept"
        raise InvalidInput(f"resume=True cannot go with {why}; use resume=False.")
    place = _device(device, dtype)
    if not callable(getattr(problem, "grad", None)):
        raise InvalidInput(
            f"problem must be a spodgt.Learning or spodgt.Quadratic, got {type(problem).__name__}; "
            "use spodgt.problems.fashion_mnist_svm()."
        )
    worlds = [(seed, as_network(network, seed, weights), problem.draw(seed)) for seed in seed_list]
    if problem.clients != worlds[0][1].clients:
        raise InvalidInput(
            f"problem has {problem.clients} clients, but the network has {worlds[0][1].clients}; "
            "use the same number for both."
        )
    draws = {seed: (net, as_availability(participation, net, seed)) for seed, net, _ in worlds}
    batches = {
        label: [_run(seed, each, net, draws[seed][1], (part, x0)) for seed, net, part in worlds]
        for label, each in zip(_labels(methods), methods, strict=True)
    }
    settings = Settings(
        _stop(batches, rounds, delay),
        Marks(rounds=every) if every else _marks(rounds, delay, evaluations),
        dtype,
        place,
        keep_states,
        gradient_norm,
        progress,
        checkpoint_every,
    )
    runs = next(iter(batches.values()))
    described = config or {
        "methods": [describe(each) for each in methods],
        "seeds": seed_list,
        "rounds": rounds,
        "delay": delay,
        "evaluations": evaluations,
        "every": every,
        "dtype": str(dtype),
        **_describe(problem, network, participation, runs),
    }
    directory = None if out is None else RunDirectory(Path(out))
    contents = _contents(runs) if directory or _distributed(runtime) else {}
    networks = networks_table((seed, *pair) for seed, pair in draws.items())
    if _distributed(runtime):
        from spodgt.runtimes.distributed.group import join
        from spodgt.runtimes.distributed.session import DistributedSession

        together = DistributedSession(batches, settings, described, directory, networks, contents)
        return together.carry_out(join(place), draws, resume=resume)
    session = Session(batches, settings, described, directory, networks, contents)
    if session.directory is None:
        session.run()
        return session.result(draws)
    with session.directory.prepared(described, session.footprint(), resume=resume):
        session.restore()
        session.run()
    return session.result(draws)


def run(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    progress: Progress | None = None,
    keep_states: bool = False,
    runtime: str | None = None,
) -> Result:
    """Run an experiment; see `compare` for the options."""
    options = experiment.run
    return compare(
        experiment.methods,
        experiment.undivided,
        experiment.network,
        experiment.participation,
        rounds=options.rounds,
        delay=options.delay,
        seeds=options.seed_list,
        x0=experiment.x0,
        dtype=options.torch_dtype,
        device=options.device,
        keep_states=keep_states,
        evaluations=options.evaluations,
        every=options.every,
        gradient_norm=options.gradient_norm,
        weights=experiment.weights,
        progress=progress,
        out=out,
        resume=resume,
        checkpoint_every=checkpoint_every,
        config=experiment.to_dict(),
        runtime=runtime,
    )


# --- the pieces of compare ---------------------------------------------------------------------------
def _distributed(runtime: str | None) -> bool:
    if runtime not in (None, "simulator", "distributed"):
        raise InvalidInput(f"runtime must be simulator or distributed, got {runtime!r}; leave it out.")
    from spodgt.runtimes.distributed.group import launched

    if runtime == "distributed" and not launched():
        raise InvalidInput("runtime='distributed' needs several processes, got one; start it with torchrun.")
    return runtime != "simulator" and launched()


def _run(seed: int, each: Algorithm, network: Network, world: Availability, work: tuple[Problem, Any]) -> Run:
    check(each, network, world)
    fitted, (problem, x0) = each.fit(world), work
    start = problem.start(seed) if x0 is None else _start(x0, problem)
    start = start.expand(problem.clients, problem.parameters)
    return Run(seed, fitted, fitted.weighs(network), fitted.uses(world, network), problem, start)


def _start(x0: Any, problem: Problem) -> Tensor:
    m, n = problem.clients, problem.parameters
    try:
        start = x0 if isinstance(x0, Tensor) else torch.from_numpy(np.array(x0, np.float64))
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(f"x0 must be numbers, got {x0!r:.60}; use torch.zeros({n}).") from None
    if start.shape not in ((n,), (m, n)):
        raise InvalidInput(
            f"x0 must be ({m}, {n}) or ({n},), got {tuple(start.shape)}; use torch.zeros({m}, {n})."
        )
    if not torch.isfinite(start).all():
        raise InvalidInput("x0 must be finite, got NaN or infinity; check how it was made.")
    return start


def _seeds(seeds: Any) -> list[int]:
    try:
        given = [seeds] if isinstance(seeds, Integral) else list(seeds)
        numbers = [-1 if isinstance(seed, bool) else operator.index(seed) for seed in given]
    except TypeError:
        given, numbers = seeds, []
    if not numbers or min(numbers) < 0:
        raise InvalidInput(f"seeds must be whole numbers of at least 0, got {given!r}; use seeds=range(5).")
    if len(set(numbers)) < len(numbers):
        raise InvalidInput(f"seeds must differ from each other, got {numbers!r}; use seeds=range(5).")
    return numbers


def _device(device: str | torch.device, dtype: Any) -> torch.device:
    """The device, tried out."""
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise InvalidInput(f"dtype must be torch.float32 or torch.float64, got {dtype!r}.")
    try:
        place = torch.device(device)
        torch.zeros(1, dtype=dtype, device=place).item()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        reason = str(error).strip().splitlines()[0].rstrip(".")
        raise InvalidInput(f"device={str(device)!r} cannot be used: {reason}; use cpu.") from None
    return place


def _check_numbers(**options: Any) -> None:
    """Whole numbers and numbers above 0, or None where the option may be left out."""
    for name, value in options.items():
        wanted, kind = (Real, "a number") if name == "delay" else (Integral, "a whole number")
        example = {"delay": 5000, "evaluations": 25}.get(name, 100)
        number: Any = 0 if isinstance(value, bool) or not isinstance(value, wanted) else value
        if value is not None and not 0 < number < float("inf"):
            raise InvalidInput(f"{name} must be {kind} above 0, got {value!r}; use {name}={example}.")


def _stop(batches: dict[str, list[Run]], rounds: int | None, delay: float | None) -> Stop:
    """The end, no later than a recorded trace ends."""
    lengths = {
        run.availability.length: label
        for label, runs in batches.items()
        for run in runs
        if run.availability.length is not None
    }
    if not lengths:
        return Stop(rounds, delay)
    most = min(lengths)
    if rounds is not None and rounds > most:
        raise InvalidInput(
            f"rounds={rounds} is more than the {most} rounds of the trace that {lengths[most]} needs; "
            f"use rounds={most}."
        )
    return Stop(most if rounds is None else rounds, delay)


def _marks(rounds: int | None, delay: float | None, evaluations: int) -> Marks:
    if delay is not None:
        return Marks(delay=delay / evaluations)
    return Marks(rounds=max(1, (rounds or 1) // evaluations))


def _labels(methods: list[Algorithm]) -> list[str]:
    """Names for the table; two of a name are told apart by the fields in which they differ."""
    labels = []
    for each in methods:
        same = [describe(other) for other in methods if other.name == each.name]
        own = describe(each)
        differ = [key for key in own if any(other.get(key) != own[key] for other in same)]
        labels.append(" ".join([each.name, ", ".join(f"{key}={own[key]}" for key in differ)]).strip())
        if same.count(own) > 1:
            raise InvalidInput(f"algorithms must differ, but {each.name} is there twice; drop one.")
    return labels


def _describe(problem: Any, network: Any, participation: Any, runs: list[Run]) -> dict[str, Any]:
    """A record of what was run from Python, enough to tell another run; configs are kept as they are."""
    net, worlds = runs[0].network, [run.availability for run in runs]
    fixed = f"Network({net.clients} clients, {net.links} links)"
    return {
        "problem": f"{type(problem).__name__}({problem.clients} clients, {problem.parameters} parameters)",
        "network": str(network) if isinstance(network, Recipe) else fixed,
        "participation": type(participation).__name__,
        "links": _links(runs),
        "chances": _digest(*(array for world in worlds for array in (world.p, world.p_hat))),
        "start": _digest(*(run.start for run in runs)),
    }


def _contents(runs: list[Run]) -> dict[str, Any]:
    """What a config only names: the data, the network in a file, who was there in a trace."""
    told = [run.problem.identity for run in runs if hasattr(run.problem, "identity")]
    numbers = {id(array): array for _, arrays in told for array in arrays}  # seeds share most of them
    happens = []
    for world in (run.availability for run in runs):
        most = world.length if world.length is not None else _TRIED // (len(world.p) + len(world.p_hat))
        span = range(1, 1 + (most if world.length is not None else min(max(most, 1), 256)))
        happens += [world.computes(span), world.links(span).pull, world.links(span).pushing]
    return {
        "links": _links(runs),
        "problem's settings": told[0][0] if told else {},
        "data": _digest(*numbers.values()),
        "who takes part": _digest(*happens),
    }


def _links(runs: list[Run]) -> str:
    nets = [run.network for run in runs]
    return _digest(*(array for net in nets for array in (net.receivers, net.senders, net.a, net.b)))


def _digest(*arrays: Any) -> str:
    total = 0
    for array in arrays:
        if isinstance(array, torch.Tensor):  # of any kind, on any device; numpy knows fewer
            array = array.detach().cpu().contiguous().flatten().view(torch.uint8) if array.numel() else []
        total = zlib.crc32(np.ascontiguousarray(array).tobytes(), total)
    return f"{total:08x}"
