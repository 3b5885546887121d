"""`train` one method, `compare` several, or `run` an experiment."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

import tomli_w
import torch
from rich.console import Console
from typing_extensions import Unpack

from spodgt._util.deprecation import renamed_argument
from spodgt.algorithms import describe
from spodgt.algorithms.base import Algorithm
from spodgt.engine import announce_compilation, use_engine
from spodgt.errors import DivergenceWarning, InvalidInput, StalledWarning, caller_level
from spodgt.experiment import Experiment, ExperimentOptions, ProblemRecipe, RunOptions
from spodgt.experiment.run_options import reject_unknown_options
from spodgt.experiment.toml import Table
from spodgt.experiment.user_code import code_checksums, code_files
from spodgt.network import GraphRecipe, Network
from spodgt.participation import Always, Participation
from spodgt.problems.protocols import HasEvaluationWork
from spodgt.record.run_folder import RunFolder, plain
from spodgt.runtimes.distributed.process_group import join, launched
from spodgt.runtimes.distributed.runtime import DistributedRuntime, check_runs
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.world import EventRuntime, check_run
from spodgt.runtimes.loop import EvaluationSchedule, Stop
from spodgt.runtimes.simulator import Simulator
from spodgt.runtimes.world import Run, Runtime
from spodgt.training.checkpoint import MAX_STATE_BYTES
from spodgt.training.code_copies import copy_code
from spodgt.training.comparison import Comparison
from spodgt.training.comparison_files import ComparisonFiles
from spodgt.training.executor import Executor
from spodgt.training.loggers import Logger
from spodgt.training.progress import Display, Progress, ProgressLog, create_display
from spodgt.training.result import Result
from spodgt.training.resume import identify
from spodgt.training.settings import ExecutionSettings
from spodgt.training.stopping import Callback, stop_rules
from spodgt.training.workers import count_workers, uses_one_thread
from spodgt.types import Problem

Method = Algorithm | str
ProgressOption = bool | Callable[[Progress], None] | None
_ALWAYS = Always()
_MAX_CHEAP_EVALUATION = 2e8  # multiplications: below about a tenth of a second


class ExecutionOptions(TypedDict, total=False):
    """Keyword arguments of `run` that do not change its results.

    Args:
        out: a folder for checkpoints and results; None (default): results in memory only.
        resume: continue the run in `out`, with the same numbers as an uninterrupted one. A finished
            run continues, too, if `rounds`, `epochs`, `delay` or `seconds` is larger than before.
        checkpoint_every: seconds between two checkpoints, 30 by default.
        progress: True shows a progress bar, False none; None (default): one on a terminal or in a
            notebook, elsewhere a line on standard error every 30 seconds. A function is called with
            a `Progress` about ten times a second.
        callbacks: functions that are called with every evaluation, a dict like a row of
            `result.frame`, such as `spodgt.loggers.TensorBoard("folder")`. A callback that returns
            `spodgt.STOP` stops the run of that method and seed.
        keep_states: keep the states of all rounds in `result.states[seed]`, with tensors of
            (rounds + 1, clients, parameters).
        runtime: "simulator" or "distributed"; None (default): the latter under torchrun.
    """

    out: str | Path | None
    resume: bool
    checkpoint_every: float
    progress: ProgressOption
    callbacks: Sequence[Callback]
    keep_states: bool
    runtime: str | None


class TrainOptions(ExperimentOptions, ExecutionOptions, total=False):
    """Keyword arguments of `train` and `compare`: what is run, and how.

    Args:
        workers: processes that compute independent runs, see `RunOptions`.
    """

    workers: int | None


@renamed_argument("algorithm", "method")
def train(
    method: Method,
    problem: Problem | ProblemRecipe,
    network: Network | GraphRecipe,
    participation: Participation = _ALWAYS,
    **options: Unpack[TrainOptions],
) -> Result:
    """Train with one method; all arguments but `method` are those of `compare`.

    Args:
        method: a method, or its name, such as "spod-gt".
        problem: model and data of the clients: a `Learning`, a `Quadratic`, or a recipe.
        network: which clients are linked: a `Network`, or a recipe of `spodgt.graphs`.
        participation: which clients and links are active in which round; default: all.
        options: one of the limits `rounds`, `epochs`, `delay` and `seconds`; `seeds`, `stop_when`,
            `out`, `resume`, `progress`, `callbacks`, … as for `compare`.
    """
    reject_unknown_options(options, TrainOptions.__annotations__, "train")
    return compare([method], problem, network, participation, **options)


@renamed_argument("algorithms", "methods")
def compare(
    methods: Sequence[Method],
    problem: Problem | ProblemRecipe,
    network: Network | GraphRecipe,
    participation: Participation = _ALWAYS,
    **options: Unpack[TrainOptions],
) -> Result:
    """Run every method on the same networks, participation, data and seeds.

    Args:
        methods: methods or their names, such as ["spod-gt", spodgt.method("k-gt",
            local_steps=3)].
        problem: a `Learning` or `Quadratic`, or `spodgt.problems.python("problem.py:build")`, a
            function that returns one; partitions are drawn for each seed.
        network: a fixed network for all seeds, or a recipe of `spodgt.graphs`, drawn for each seed.
        participation: which clients and links are active in which round, drawn for each seed;
            default: all.
        options: see `RunOptions`, `ExperimentOptions` and `ExecutionOptions`. The most frequent
            ones are the limits `rounds`, `epochs`, `delay` and `seconds` (of virtual time), of
            which one is required; `seeds` (3: seeds 0, 1, 2; [3]: seed 3 alone; default: seed 0);
            `every`, rounds between two evaluations; `time` for virtual time; `device` and `dtype`; `x0`,
            initial models; `out`, a folder for checkpoints and results, and `resume` to continue
            the run there; `progress` and `callbacks`.
    """
    reject_unknown_options(options, TrainOptions.__annotations__, "compare")
    execution: dict[str, Any] = {}
    described: dict[str, Any] = {}
    for name, value in options.items():
        if name in ExecutionOptions.__annotations__:
            execution[name] = value
        else:
            described[name] = value
    experiment = Experiment.of(methods, problem, network, participation, **described)
    return run(experiment, **execution)


def run(
    experiment: Experiment,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    progress: ProgressOption = None,
    callbacks: Sequence[Callback] = (),
    keep_states: bool = False,
    runtime: str | None = None,
) -> Result:
    """Run an experiment, such as `Experiment.read("experiment.toml")`.

    Args:
        experiment: what to run.
        out: a folder for checkpoints and results; None: results in memory only.
        resume: continue the run in `out`.
        checkpoint_every: seconds between two checkpoints.
        progress: True, False, None (a progress bar on a terminal or in a notebook, lines elsewhere)
            or a function.
        callbacks: functions that are called with every evaluation; one that returns `spodgt.STOP`
            stops that run.
        keep_states: keep the states of all rounds in `result.states`.
        runtime: "simulator" or "distributed"; None: the latter under torchrun.
    """
    _check_options(out, resume, checkpoint_every, keep_states, callbacks)
    display = _create_display(progress)
    with use_engine(experiment.run.engine), ExitStack() as stack:
        executor = _create_executor(
            experiment,
            runtime,
            None if out is None else RunFolder(Path(out)),
            keep_states=keep_states,
            checkpoint_every=checkpoint_every,
            callbacks=tuple(callbacks),
            progress=display.show if isinstance(display, Display) else display,
        )
        tables = plain(executor.comparison.config)
        if isinstance(display, Display):
            stack.enter_context(display)
            stack.enter_context(announce_compilation(display.announce_compilation))
        for callback in callbacks:
            if isinstance(callback, Logger) and executor.runtime.is_main:
                stack.enter_context(callback.logging(tables))
        files = code_files(experiment)
        result = executor.execute(partial(_config_text, tables, files, out), resume=resume)
    _warn(result)
    return result


def _config_text(tables: Table, files: Mapping[str, Path], out: str | Path | None) -> str:
    """The text of config.toml; the user's code that it names is copied next to it."""
    if files and out is not None:
        tables = copy_code(tables, files, Path(out))
    return tomli_w.dumps(tables)


def _create_executor(
    experiment: Experiment,
    runtime_name: str | None,
    folder: RunFolder | None,
    *,
    keep_states: bool,
    checkpoint_every: float,
    callbacks: tuple[Callback, ...],
    progress: Callable[[Progress], None] | None,
) -> Executor:
    """Draw all seeds, and choose runtime, limits and number of workers."""
    is_distributed = _is_distributed(runtime_name)
    options = experiment.run
    device = options.torch_device
    draws = {seed: experiment.draw(seed) for seed in options.seed_list}
    batches: dict[str, list[Run]] = {}
    for label, method in zip(labels(experiment.methods), experiment.methods, strict=True):
        batches[label] = [Run.of(draw, method) for draw in draws.values()]
    runtime = _create_runtime(is_distributed, device, batches, experiment.time)
    identity = code_checksums(experiment)
    if is_distributed or folder is not None:
        identity = {**identify(next(iter(batches.values()))), **identity}
    rounds = experiment.max_rounds
    schedule = _schedule(options, rounds, _evaluations(options, batches))
    comparison = Comparison(batches, draws, schedule, experiment.to_dict(), identity)
    stopping = stop_rules(
        options.stop_when,
        options.keep,
        comparison.scores,
        has_callbacks=not all(isinstance(callback, Logger) for callback in callbacks),
    )
    comparison.best_by = stopping.metric
    settings = ExecutionSettings(
        stop=_stop(batches, options, rounds),
        schedule=schedule,
        dtype=options.torch_dtype,
        device=device,
        keep_states=keep_states,
        gradient_norm=options.gradient_norm,
        progress=progress,
        callbacks=callbacks,
        stopping=stopping,
        checkpoint_every=checkpoint_every,
        max_state_bytes=0 if folder is None else MAX_STATE_BYTES // len(draws),
    )
    settings = replace(
        settings,
        workers=count_workers(options.workers, batches, runtime, settings),
        one_thread=uses_one_thread(options.workers, batches, settings),
    )
    return Executor(comparison, ComparisonFiles(comparison, folder), settings, runtime)


def _warn(result: Result) -> None:
    """Warn of diverged and stalled runs, at the line of the caller."""
    for diverged in result.diverged:
        warnings.warn(str(diverged), DivergenceWarning, stacklevel=caller_level())
    for stalled in result.stalled:
        warnings.warn(str(stalled), StalledWarning, stacklevel=caller_level())


def _check_options(
    out: object, resume: object, checkpoint_every: object, keep_states: object, callbacks: object
) -> None:
    if out is not None and not _is_path(out):
        raise InvalidInput(f"out must be the path of a folder, got {out!r}; use out='runs/mine'.")
    if not isinstance(checkpoint_every, int | float) or not checkpoint_every >= 0:
        raise InvalidInput(
            f"checkpoint_every must be seconds of at least 0, got {checkpoint_every!r}; use 30."
        )
    if resume and out is None:
        raise InvalidInput(
            "resume=True requires out, the folder of the run to continue; give out='runs/mine'."
        )
    if resume and keep_states:
        raise InvalidInput(
            "resume=True and keep_states=True exclude each other: checkpoints lack earlier states; "
            "use resume=False."
        )
    if not isinstance(callbacks, list | tuple) or not all(map(callable, callbacks)):
        raise InvalidInput(
            f"callbacks must be a list of functions, got {callbacks!r}; use callbacks=[print]."
        )


def _is_path(value: object) -> bool:
    return isinstance(value, str | Path) and str(value) != "" and "\0" not in str(value)


def _create_display(progress: object) -> Display | Callable[[Progress], None] | None:
    if progress is None:
        display = create_display(Console(file=sys.stderr))
        if isinstance(display, Display) and launched():
            return None  # bars of several processes would overwrite each other
        return display.show if isinstance(display, ProgressLog) else display
    if isinstance(progress, bool):
        return Display(Console(file=sys.stderr)) if progress else None
    if not callable(progress):
        raise InvalidInput(
            f"progress must be True, False or a function, got {progress!r}; use True."
        )
    return progress


def _create_runtime(
    is_distributed: bool,
    device: torch.device,
    batches: Mapping[str, Sequence[Run]],
    time: Time | None,
) -> Runtime:
    if time is not None:
        if is_distributed:
            raise InvalidInput(
                "virtual time runs in one process, but several were started; drop torchrun."
            )
        for runs in batches.values():
            for run in runs:
                check_run(run)
        return EventRuntime(device, time)
    if not is_distributed:
        return Simulator(device)
    check_runs(next(iter(batches.values())))
    return DistributedRuntime(join(device))


def _is_distributed(runtime: str | None) -> bool:
    if runtime not in (None, "simulator", "distributed"):
        raise InvalidInput(
            f"runtime must be simulator or distributed, got {runtime!r}; leave it out."
        )
    if runtime == "distributed" and not launched():
        raise InvalidInput(
            "runtime='distributed' needs several processes, got one; start it with torchrun."
        )
    return runtime != "simulator" and launched()


def _stop(batches: Mapping[str, Sequence[Run]], options: RunOptions, rounds: int | None) -> Stop:
    """The limits of all runs; a recorded trace limits the number of rounds."""
    shortest: int | None = None  # rounds of the shortest trace
    method = ""
    for label, runs in batches.items():
        for run in runs:
            length = run.availability.length
            if length is not None and (shortest is None or length < shortest):
                shortest = length
                method = label
    if shortest is None:
        return Stop(rounds, options.delay)
    if rounds is not None and rounds > shortest:
        raise InvalidInput(
            f"rounds={rounds} is more than the {shortest} rounds of the trace that {method} needs; "
            f"use rounds={shortest}."
        )
    return Stop(shortest if rounds is None else rounds, options.delay)


def _evaluations(options: RunOptions, batches: Mapping[str, Sequence[Run]]) -> int:
    """The approximate number of evaluations of a run; more by default where they are cheap."""
    if options.evaluations is not None:
        return options.evaluations
    problem = next(iter(batches.values()))[0].problem
    is_cheap = (
        isinstance(problem, HasEvaluationWork) and problem.evaluation_work <= _MAX_CHEAP_EVALUATION
    )
    return 50 if is_cheap else 25


def _schedule(options: RunOptions, rounds: int | None, evaluations: int) -> EvaluationSchedule:
    if options.every:
        return EvaluationSchedule(rounds=options.every)
    if options.delay is not None:
        return EvaluationSchedule(delay=options.delay / evaluations)
    return EvaluationSchedule(rounds=max(1, (rounds or 1) // evaluations))


def labels(methods: Sequence[Algorithm]) -> list[str]:
    """Labels of methods in tables: the name, and fields in which methods of a name differ."""
    found = []
    for method in methods:
        fields: dict[str, Any] = describe(method)
        same_name = [describe(other) for other in methods if other.name == method.name]
        if same_name.count(fields) > 1:
            raise InvalidInput(f"methods must differ, but {method.name} is there twice; drop one.")
        differences = []
        for key, value in fields.items():
            if any(other.get(key) != value for other in same_name):
                differences.append(f"{key}={value}")
        found.append(f"{method.name} {', '.join(differences)}".strip())
    return found
