"""`train` one method, `compare` several, or `run` an experiment: drawn, batched, observed, recorded."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import tomli_w
import torch
from numpy.typing import ArrayLike
from rich.console import Console
from torch import Tensor

from spodgt.algorithms import describe
from spodgt.algorithms.base import Algorithm
from spodgt.engine import announce_compilation, use_engine
from spodgt.errors import DivergenceWarning, InvalidInput, StalledWarning
from spodgt.experiment import Experiment, ProblemRecipe, RunOptions
from spodgt.network import Network, Recipe
from spodgt.participation import Always, Participation
from spodgt.record.folder import RunFolder, plain
from spodgt.runtimes.distributed.process_group import join, launched
from spodgt.runtimes.distributed.runtime import DistributedRuntime, check_runs
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.world import EventRuntime, check_run
from spodgt.runtimes.loop import EvaluationSchedule, Stop
from spodgt.runtimes.simulator import Simulator
from spodgt.runtimes.world import Run, Runtime
from spodgt.training.checkpoint import MAX_STATE_BYTES
from spodgt.training.executor import Executor
from spodgt.training.loggers import Logger
from spodgt.training.progress import Display, Progress, interactive_console
from spodgt.training.result import Result
from spodgt.training.resume import identify
from spodgt.training.settings import ExecutionSettings
from spodgt.training.workers import count_workers
from spodgt.types import Problem

Method = Algorithm | str
_ALWAYS = Always()


def train(
    algorithm: Method,
    problem: Problem | ProblemRecipe,
    network: Network | Recipe,
    participation: Participation = _ALWAYS,
    *,
    rounds: int | None = None,
    delay: float | None = None,
    seconds: float | None = None,
    time: Time | None = None,
    seeds: int | Iterable[int] = (0,),
    x0: Tensor | ArrayLike | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    autocast: str | None = None,
    keep_states: bool = False,
    evaluations: int = 25,
    every: int | None = None,
    gradient_norm: bool | None = None,
    weights: str | None = None,
    progress: bool | Callable[[Progress], None] | None = None,
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    runtime: str | None = None,
    engine: str = "auto",
    workers: int | None = None,
) -> Result:
    """Train with one method; all arguments but `algorithm` are those of `compare`.

    Args:
        algorithm: a method, or its name.
    """
    options = {name: value for name, value in locals().items() if name != "algorithm"}
    return compare([algorithm], **options)


def compare(
    algorithms: Sequence[Method],
    problem: Problem | ProblemRecipe,
    network: Network | Recipe,
    participation: Participation = _ALWAYS,
    *,
    rounds: int | None = None,
    delay: float | None = None,
    seconds: float | None = None,
    time: Time | None = None,
    seeds: int | Iterable[int] = (0,),
    x0: Tensor | ArrayLike | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    autocast: str | None = None,
    keep_states: bool = False,
    evaluations: int = 25,
    every: int | None = None,
    gradient_norm: bool | None = None,
    weights: str | None = None,
    progress: bool | Callable[[Progress], None] | None = None,
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    runtime: str | None = None,
    engine: str = "auto",
    workers: int | None = None,
) -> Result:
    """Run every method on the same networks, participation, data and seeds, until `rounds` or `delay`.

    Args:
        algorithms: methods or their names, such as ["spod-gt", spodgt.method("k-gt", local_steps=3)].
        problem: a `Learning` or `Quadratic`, or `spodgt.problems.python("problem.py:build")`, a function that
            makes one; partitions are drawn anew for each seed.
        network: a fixed network, held over all seeds, or a recipe of `spodgt.graphs`, drawn for each.
        participation: who takes part in which round; drawn for each seed. Always, unless given.
        rounds: stop after so many rounds. At least one of `rounds`, `delay` and `seconds` is needed.
        delay: stop before this delay, in units of one gradient of a client that always computes.
        seconds: stop after so many seconds of virtual time.
        time: how long gradients and messages take, `spodgt.Time(compute=0.02, latency=0.1)`: then clients go
            on with what has arrived, and results have virtual seconds. None: rounds without seconds.
        seeds: how many (3: seeds 0, 1, 2), or a list of which ([3]: seed 3 alone); seed 0 unless given. All
            seeds of a method run together.
        x0: initial models, (parameters,) or (clients, parameters); the problem's own unless given.
        dtype: torch.float32 or torch.float64.
        device: where models are trained, such as "cpu" or "cuda".
        autocast: "bf16" computes forward passes of gradients in bfloat16 where `torch.autocast` says so;
            models and evaluations stay in float32. None (default) does not.
        keep_states: keep all states in `result.states[seed]`, (rounds + 1, clients, parameters) each.
        evaluations: about how many times a run is evaluated.
        every: evaluate every so many rounds instead.
        gradient_norm: compute the global training loss and gradient; None does where it is affordable.
        weights: the rule for weights of drawn networks, "degree" (the default) or "random".
        progress: True shows a progress bar, False none, None (default) one where somebody watches: on a
            terminal or in a notebook. A function is called with a `Progress` about ten times a second.
        callbacks: functions that are called with every evaluation, a dict like a row of `result.frame`, such
            as `spodgt.loggers.TensorBoard("folder")`.
        out: a folder for checkpoints and results; None keeps them in memory only.
        resume: go on with the run in `out`, with the same numbers as an unbroken one. A finished run goes on,
            too, if `rounds` or `delay` is larger than before.
        checkpoint_every: seconds between two checkpoints.
        runtime: "simulator" or "distributed"; None takes the latter under torchrun.
        engine: "auto" (default) uses compiled loops where they apply; "plain" runs `step` and the model
            as they are written, in PyTorch. The environment variable SPODGT_ENGINE=plain does the same for
            all runs.
        workers: processes that compute independent runs (methods × seeds), with one torch thread each;
            results do not depend on their number. None (default): one per core if there are several runs of
            a network on a CPU that take more than a few seconds, else 1: all runs in this process. What
            workers print is in the folder `workers` of `out`.
    """
    experiment = Experiment.of(
        algorithms, problem, network, participation, rounds=rounds, delay=delay, seconds=seconds,
        time=time, seeds=seeds, x0=x0,
        dtype=dtype, device=device, autocast=autocast, evaluations=evaluations, every=every,
        gradient_norm=gradient_norm, weights=weights, engine=engine, workers=workers,
    )  # fmt: skip
    return run(
        experiment, out=out, resume=resume, checkpoint_every=checkpoint_every, progress=progress,
        callbacks=callbacks, keep_states=keep_states, runtime=runtime,
    )  # fmt: skip


def run(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    progress: bool | Callable[[Progress], None] | None = None,
    callbacks: Sequence[Callable[[dict[str, Any]], None]] = (),
    keep_states: bool = False,
    runtime: str | None = None,
) -> Result:
    """Run an experiment, such as `Experiment.read("experiment.toml")`.

    Args:
        experiment: what to run.
        out: a folder for checkpoints and results; None keeps them in memory only.
        resume: go on with the run in `out`.
        checkpoint_every: seconds between two checkpoints.
        progress: True, False, None (where somebody watches) or a function, as for `compare`.
        callbacks: functions that are called with every evaluation, as for `compare`.
        keep_states: keep all states in `result.states`.
        runtime: "simulator" or "distributed"; None takes the latter under torchrun.
    """
    _check(out, resume, checkpoint_every, keep_states)
    with use_engine(experiment.run.engine):
        result = _run(
            experiment, out, resume, checkpoint_every, progress, callbacks, keep_states, runtime
        )
    _warn(result)
    return result


def _run(
    experiment: Experiment,
    out: str | Path | None,
    resume: bool,
    checkpoint_every: float,
    progress: bool | Callable[[Progress], None] | None,
    callbacks: Sequence[Callable[[dict[str, Any]], None]],
    keep_states: bool,
    runtime: str | None,
) -> Result:
    distributed, options = _distributed(runtime), experiment.run
    device = options.torch_device
    draws = {seed: experiment.draw(seed) for seed in options.seed_list}
    batches = {
        label: [Run.of(draw, method) for draw in draws.values()]
        for label, method in zip(labels(experiment.methods), experiment.methods, strict=True)
    }
    _check_callbacks(callbacks)
    bar = _bar(progress)
    where = _runtime(distributed, device, batches, experiment.time)
    stop = _stop(batches, options, experiment.rounds)
    settings = ExecutionSettings(
        stop=stop,
        schedule=_schedule(options, experiment.rounds),
        dtype=options.torch_dtype,
        device=device,
        keep_states=keep_states,
        gradient_norm=options.gradient_norm,
        progress=bar.show if isinstance(bar, Display) else bar,
        callbacks=tuple(callbacks),
        checkpoint_every=checkpoint_every,
        max_state_bytes=0 if out is None else MAX_STATE_BYTES // len(draws),
    )
    workers = count_workers(options.workers, batches, where, settings)
    settings = replace(settings, workers=workers)
    tables = experiment.to_dict()
    known = identify(next(iter(batches.values()))) if distributed or out is not None else {}
    known |= experiment.sources
    folder = None if out is None else RunFolder(Path(out))
    executor = Executor(batches, draws, settings, where, tables, known, folder)
    with ExitStack() as stack:
        if isinstance(bar, Display):
            stack.enter_context(bar)
            stack.enter_context(announce_compilation(bar.announce_compilation))
        for each in callbacks if where.is_main else ():
            if isinstance(each, Logger):
                stack.enter_context(each.logging(plain(tables)))
        return executor.execute(lambda: tomli_w.dumps(plain(tables)), resume=resume)


def _warn(result: Result) -> None:
    """Warn of runs that diverged and of runs whose models do not move, at the line that called `train`."""
    for diverged in result.diverged:
        warnings.warn(str(diverged), DivergenceWarning, stacklevel=4)
    for stalled in result.stalled:
        warnings.warn(str(stalled), StalledWarning, stacklevel=4)


def _check_callbacks(callbacks: object) -> None:
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise InvalidInput(
            f"callbacks must be a list of functions, got {callbacks!r}; use callbacks=[print]."
        )


def _bar(progress: object) -> Display | Callable[[Progress], None] | None:
    if progress is None:
        console = interactive_console()
        return Display(console) if console and not launched() else None
    if isinstance(progress, bool):
        return Display(Console(file=sys.stderr)) if progress else None
    if not callable(progress):
        raise InvalidInput(
            f"progress must be True, False or a function, got {progress!r}; use True."
        )
    return progress


def _check(out: object, resume: object, checkpoint_every: object, keep_states: object) -> None:
    if out is not None and (not isinstance(out, str | Path) or not str(out) or "\0" in str(out)):
        raise InvalidInput(f"out must be the path of a folder, got {out!r}; use out='runs/mine'.")
    for name, flag in (("resume", resume), ("keep_states", keep_states)):
        if not isinstance(flag, bool):
            raise InvalidInput(f"{name} must be True or False, got {flag!r}; use {name}=True.")
    if not isinstance(checkpoint_every, int | float) or not checkpoint_every >= 0:
        raise InvalidInput(
            f"checkpoint_every must be seconds of at least 0, got {checkpoint_every!r}; use 30."
        )
    if resume and (out is None or keep_states):
        why = "keep_states=True: its first states are gone" if out else "no out: nothing was kept"
        raise InvalidInput(f"resume=True cannot go with {why}; use resume=False.")


def _runtime(
    distributed: bool, device: torch.device, batches: Mapping[str, Sequence[Run]], time: Time | None
) -> Runtime:
    if time is not None:
        if distributed:
            raise InvalidInput(
                "virtual time runs in one process, but several were started; drop torchrun."
            )
        for run in (run for runs in batches.values() for run in runs):
            check_run(run)
        return EventRuntime(device, time=time)
    if not distributed:
        return Simulator(device)
    check_runs(next(iter(batches.values())))
    return DistributedRuntime(join(device))


def _distributed(runtime: str | None) -> bool:
    if runtime not in (None, "simulator", "distributed"):
        raise InvalidInput(
            f"runtime must be simulator or distributed, got {runtime!r}; leave it out."
        )
    if runtime == "distributed" and not launched():
        raise InvalidInput(
            "runtime='distributed' needs several processes, got one; start it with torchrun."
        )
    return runtime != "simulator" and launched()


def _stop(batches: dict[str, list[Run]], options: RunOptions, rounds: int | None) -> Stop:
    """The end, no later than a recorded trace ends."""
    lengths = {
        run.availability.length: label
        for label, runs in batches.items()
        for run in runs
        if run.availability.length is not None
    }
    if not lengths:
        return Stop(rounds, options.delay)
    most = min(lengths)
    if rounds is not None and rounds > most:
        raise InvalidInput(
            f"rounds={rounds} is more than the {most} rounds of the trace that {lengths[most]} needs; "
            f"use rounds={most}."
        )
    return Stop(most if rounds is None else rounds, options.delay)


def _schedule(options: RunOptions, rounds: int | None) -> EvaluationSchedule:
    if options.every:
        return EvaluationSchedule(rounds=options.every)
    if options.delay is not None:
        return EvaluationSchedule(delay=options.delay / options.evaluations)
    return EvaluationSchedule(rounds=max(1, (rounds or 1) // options.evaluations))


def labels(methods: Sequence[Algorithm]) -> list[str]:
    """Names for the table; two of a name are told apart by the fields in which they differ."""
    found = []
    for each in methods:
        same: list[dict[str, Any]] = [
            describe(other) for other in methods if other.name == each.name
        ]
        own = describe(each)
        differ = [key for key in own if any(other.get(key) != own[key] for other in same)]
        found.append(
            " ".join([each.name, ", ".join(f"{key}={own[key]}" for key in differ)]).strip()
        )
        if same.count(own) > 1:
            raise InvalidInput(f"algorithms must differ, but {each.name} is there twice; drop one.")
    return found
