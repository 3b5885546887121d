"""`train` one method, `compare` several: runs drawn, batched, watched, recorded, and never lost."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from spodgt.algorithms import ALGORITHMS, method
from spodgt.algorithms.checks import check
from spodgt.errors import InvalidInput
from spodgt.graphs import Recipe
from spodgt.metrics import measure
from spodgt.network import Network, as_network
from spodgt.participation import Always, Participation, as_availability
from spodgt.recorder import Result, RunDirectory, Stopped, table_to_tensor, tensor_to_table, versions
from spodgt.runtimes.loop import Marks, Moment, Stop, begin, run_rounds
from spodgt.runtimes.simulator import Run, Simulation, Tally
from spodgt.types import Algorithm, Bools, Problem

Method = Algorithm | str
_FINITE_EVERY = 16  # rounds between two looks for NaN and infinity
_CHEAP, _AFFORDABLE = 1e6, 1e9  # multiplications for a global gradient: at every look, at the last only


@dataclass(frozen=True)
class Glimpse:
    """What a progress display is told."""

    algorithm: str
    number: int  # of `total` methods
    total: int
    k: int
    delay: float  # of the run that is furthest behind
    fraction: float
    accuracy: float  # mean over runs at their last look, NaN before


Progress = Callable[[Glimpse], None]


@dataclass(frozen=True)
class Settings:
    """How to run, as opposed to what."""

    stop: Stop
    marks: Marks
    dtype: torch.dtype
    device: torch.device
    keep_states: bool = False
    gradient_norm: bool | None = None  # None: where affordable
    progress: Progress | None = None
    checkpoint_every: float = 30.0  # seconds


def train(
    algorithm: Method, problem: Problem, network: Network | Recipe, participation: Participation = Always(), **options: Any
) -> Result:
    """Train with one method. Takes the options of `compare`."""
    return compare([algorithm], problem, network, participation, **options)


def compare(
    algorithms: Sequence[Method],
    problem: Problem,
    network: Network | Recipe,
    participation: Participation = Always(),
    *,
    rounds: int | None = None,
    delay: float | None = None,
    seeds: int | Iterable[int] = 0,
    x0: Any = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
    keep_states: bool = False,
    evaluations: int = 50,
    every: int | None = None,
    gradient_norm: bool | None = None,
    weights: str = "degree",
    progress: Progress | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    checkpoint_every: float = 30.0,
    config: dict[str, Any] | None = None,
) -> Result:
    """Run every method on the same networks, participation, data and seeds, until `rounds` or `delay`.

    A fixed network is held over all seeds; recipes (graphs, participations, partitions) are drawn anew
    for each, and all seeds of a method run together. Runs are looked at about `evaluations` times, or
    every `every` rounds. `x0` is (clients, parameters) or (parameters,). With `out`, the work is kept
    in that folder and `resume=True` goes on with it, with the same numbers as an unbroken run.
    """
    seed_list = [seeds] if isinstance(seeds, int | np.integer) else list(seeds)
    methods = [method(each) for each in algorithms]
    _check(methods, seed_list, rounds, delay, evaluations, every)
    worlds = [(seed, as_network(network, seed, weights), problem.draw(seed)) for seed in seed_list]
    draws = {seed: (net, as_availability(participation, net, seed)) for seed, net, _ in worlds}
    if problem.clients != worlds[0][1].clients:
        raise InvalidInput(
            f"problem has {problem.clients} clients, but the network has {worlds[0][1].clients}; make them equal."
        )
    labels = _labels(methods)
    batches = {
        label: [_run(each, seed, net, draws[seed][1], part, x0) for seed, net, part in worlds]
        for label, each in zip(labels, methods, strict=True)
    }
    settings = Settings(
        _stop(batches, rounds, delay),
        Marks(rounds=every) if every else _marks(rounds, delay, evaluations),
        dtype,
        torch.device(device),
        keep_states,
        gradient_norm,
        progress,
        checkpoint_every,
    )
    described = config or _describe(methods, problem, network, participation, seed_list, rounds, delay, dtype)
    session = Session(batches, settings, described, None if out is None else RunDirectory(Path(out)))
    if session.directory:
        session.directory.prepare(described, session.footprint(), resume=resume)
        if resume:
            session.restore()
    session.run()
    return session.result(draws)


@dataclass(eq=False)
class Session:
    """A comparison on its way: the tables so far, and the method that is running."""

    batches: dict[str, list[Run]]
    settings: Settings
    config: dict[str, Any]
    directory: RunDirectory | None
    rows: list[dict[str, Any]] = field(default_factory=list)
    activity: list[pd.DataFrame] = field(default_factory=list)
    stopped: list[Stopped] = field(default_factory=list)
    finals: dict[str, Tensor] = field(default_factory=dict)  # average models, (runs, parameters)
    states: dict[int, Any] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    going: tuple[str, dict[str, Tensor], dict[str, Any]] | None = None  # restored, to go on with

    @property
    def fingerprint(self) -> str:
        text = json.dumps(self.config, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def footprint(self) -> int:
        """Bytes that two checkpoints may take: one in place, one beside it."""
        runs = next(iter(self.batches.values()))
        numbers = sum(run.start.numel() for run in runs) * 5 + len(self.batches) * sum(
            run.start.shape[1] for run in runs
        )
        return 2 * numbers * self.settings.dtype.itemsize + 10_000_000

    def run(self) -> None:
        try:
            for label, runs in self.batches.items():
                if label not in self.finished:
                    watch = Watch(self, label, runs)
                    run_rounds(watch.moment(), self.settings.stop, self.settings.marks, watch)
                    watch.close()
        except KeyboardInterrupt:
            if not self.directory:
                raise
        self.save(None)
        if self.directory:
            self.directory.finish(self.result({}))

    def result(self, draws: dict[int, Any]) -> Result:
        order = {label: number for number, label in enumerate(self.batches)}
        frame = pd.DataFrame(self.rows, columns=_columns(self.rows))
        frame["algorithm"] = frame["algorithm"].astype(str)
        frame = frame.sort_values(
            ["algorithm", "seed", "round"], key=lambda c: c.map(order) if c.name == "algorithm" else c, ignore_index=True
        )
        activity = pd.concat(self.activity, ignore_index=True) if self.activity else pd.DataFrame()
        done = len(self.finished) == len(self.batches)
        return Result(frame, activity, self.config, versions(), self.stopped, self.states, draws, done)

    # --- checkpoints -----------------------------------------------------------------------------
    def save(self, watch: Watch | None, moment: Moment | None = None) -> None:
        if not self.directory:
            return
        tensors = {f"final/{label}": models for label, models in self.finals.items()}
        notes: dict[str, Any] = {
            "fingerprint": self.fingerprint,
            "config": json.loads(json.dumps(self.config, default=str)),
            "finished": self.finished,
            "stopped": [dataclasses.asdict(stop) for stop in self.stopped],
        }
        if self.rows:
            tensors["table/metrics"] = table_to_tensor(pd.DataFrame(self.rows))
        if self.activity:
            tensors["table/participation"] = table_to_tensor(pd.concat(self.activity, ignore_index=True))
        if watch and moment:
            notes |= {"going": watch.label, "k": moment.k, "finite_at": watch.finite_at}
            tensors |= {f"state/{name}": value for name, value in moment.state._asdict().items()}
            tensors |= {f"final_x/{run}": value for run, value in watch.last_x.items()}
            tensors |= {f"tally/{name}": torch.from_numpy(v) for name, v in watch.tally._asdict().items()}
            tensors["delay"] = torch.from_numpy(moment.delay)
            tensors["runs"] = torch.from_numpy(moment.world.runs)
        self.directory.save(tensors, notes)

    def restore(self) -> None:
        loaded = self.directory.load() if self.directory else None
        if loaded is None:
            return
        tensors, notes = loaded
        if notes["fingerprint"] != self.fingerprint:
            raise InvalidInput(_difference(notes["config"], self.config, str(self.directory and self.directory.path)))
        self.finished = list(notes["finished"])
        self.stopped = [Stopped(**stop) for stop in notes["stopped"]]
        self.finals = {name.removeprefix("final/"): t for name, t in tensors.items() if name.startswith("final/")}
        if "table/metrics" in tensors:
            self.rows = tensor_to_table(tensors["table/metrics"]).to_dict("records")  # type: ignore[assignment]
        if "table/participation" in tensors:
            self.activity = [tensor_to_table(tensors["table/participation"])]
        if "going" in notes:
            self.going = (notes["going"], tensors, notes)


class Watch:
    """The observer of one method's batch: looks, records, checks for NaN, saves, reports."""

    def __init__(self, session: Session, label: str, runs: list[Run]) -> None:
        self.session, self.label, self.runs = session, label, runs
        self.settings = session.settings
        self.tally = Tally.zeros(runs)
        self.finite_at = 0
        self.last_x: dict[int, Tensor] = {}  # run → its average model when it ended
        self.history: dict[int, list[Any]] = {n: [] for n in range(len(runs))}
        self.accuracy = np.full(len(runs), np.nan)
        self.saved = self.shown = time.monotonic()

    def moment(self) -> Moment:
        """Round 0, or where a restored run stands."""
        options = {"dtype": self.settings.dtype, "device": self.settings.device}
        if not self.session.going or self.session.going[0] != self.label:
            return begin(Simulation(self.runs, tally=self.tally, **options))  # type: ignore[arg-type]
        _, tensors, notes = self.session.going
        self.session.going = None
        self.tally = Tally(*(tensors[f"tally/{name}"].numpy().copy() for name in Tally._fields))
        self.finite_at = notes["finite_at"]
        self.last_x = {int(n.removeprefix("final_x/")): t for n, t in tensors.items() if n.startswith("final_x/")}
        world = Simulation(self.runs, tally=self.tally, runs=tensors["runs"].numpy(), **options)  # type: ignore[arg-type]
        # The state's type is the algorithm's; round 0 of a copy that counts nothing tells it.
        shape = type(begin(Simulation(self.runs[:1], **options)).state)  # type: ignore[arg-type]
        state = shape(*(tensors[f"state/{name}"].to(self.settings.device) for name in shape._fields))
        return Moment(notes["k"], tensors["delay"].numpy(), world, state)

    def __call__(self, moment: Moment, due: Bools, last: Bools) -> Bools:
        now = time.monotonic()
        if now - self.saved >= self.settings.checkpoint_every:
            self.session.save(self, moment)
            self.saved = now
        broken = self._broken(moment, due)
        world: Any = moment.world
        if due.any() or self.settings.keep_states or broken.any():
            parts = zip(*(world.split(tensor) for tensor in moment.state), strict=True)
            for at, (run, part) in enumerate(zip(moment.world.runs, parts, strict=True)):
                state = type(moment.state)(*part)
                if due[at] and not broken[at]:
                    self._look(int(run), moment.k, moment.delay[at], state, bool(last[at]))
                if self.settings.keep_states:
                    self.history[int(run)].append(state)
                if last[at] or broken[at]:
                    self.last_x[int(run)] = state.x.mean(0)
        if self.settings.progress and (now - self.shown > 0.1 or last.all()):
            self.shown = now
            self.settings.progress(self._glimpse(moment, bool(last.all())))
        return broken

    def close(self) -> None:
        """Fold a finished method into the session."""
        session = self.session
        session.finals[self.label] = torch.stack([self.last_x[n] for n in range(len(self.runs))])
        session.activity.append(_participation(self.label, self.runs, self.tally))
        session.finished.append(self.label)
        if self.settings.keep_states:
            for n, run in enumerate(self.runs):
                shape = type(self.history[n][0])
                columns = zip(*self.history[n], strict=True)
                session.states[run.seed] = shape(*(torch.stack(column) for column in columns))
        session.save(None)

    def _look(self, number: int, k: int, delay: float, state: Any, final: bool) -> None:
        run = self.runs[number]
        problem = run.problem.to(self.settings.device, self.settings.dtype)
        wish = self.settings.gradient_norm
        gradient = (problem.work <= (_AFFORDABLE if final else _CHEAP)) if wish is None else wish
        row = measure(problem, state, gradient=gradient)
        self.accuracy[number] = row["accuracy"]
        self.session.rows.append(
            {"algorithm": self.label, "seed": run.seed, "round": k, "delay": float(delay), **row}
        )

    def _broken(self, moment: Moment, due: Bools) -> Bools:
        """Which runs have left the finite numbers."""
        broken = np.zeros(len(moment.world.runs), bool)
        if moment.k % _FINITE_EVERY and not due.any():
            return broken
        world: Any = moment.world
        for at, (run, x) in enumerate(zip(moment.world.runs, world.split(moment.state.x), strict=True)):
            if not torch.isfinite(x.sum()) and not torch.isfinite(x).all():
                broken[at] = True
                step = str(getattr(self.runs[run].algorithm, "step_size", None))
                self.session.stopped.append(
                    Stopped(self.label, self.runs[run].seed, moment.k, self.finite_at, step)
                )
        if not broken.any():
            self.finite_at = moment.k
        return broken

    def _glimpse(self, moment: Moment, over: bool) -> Glimpse:
        stop, labels = self.settings.stop, list(self.session.batches)
        behind = float(moment.delay.min())
        parts = []
        if stop.delay:
            parts.append(behind / stop.delay)
        if stop.rounds:
            parts.append(moment.k / stop.rounds)
        seen = self.accuracy[~np.isnan(self.accuracy)]
        return Glimpse(
            self.label,
            labels.index(self.label) + 1,
            len(labels),
            moment.k,
            behind,
            1.0 if over else min(1.0, max(parts, default=0.0)),
            float(seen.mean()) if len(seen) else float("nan"),
        )


# --- the pieces of compare ---------------------------------------------------------------------------
def _run(each: Algorithm, seed: int, network: Network, availability: Any, problem: Problem, x0: Any) -> Run:
    check(each, network, availability)
    fitted = each.fit(availability)
    start = problem.start(seed) if x0 is None else torch.as_tensor(x0)
    if start.shape[-1:] != (problem.parameters,) or start.shape not in (
        (problem.parameters,),
        (problem.clients, problem.parameters),
    ):
        raise InvalidInput(
            f"x0 must be ({problem.clients}, {problem.parameters}) or ({problem.parameters},), got {tuple(start.shape)}."
        )
    start = start.expand(problem.clients, problem.parameters)
    return Run(seed, fitted, network, fitted.uses(availability, network), problem, start)


def _check(
    methods: list[Algorithm], seeds: list[Any], rounds: Any, delay: Any, evaluations: Any, every: Any
) -> None:
    if not methods:
        raise InvalidInput(f"algorithms must name at least one method, got none; choose from {', '.join(ALGORITHMS)}.")
    if not seeds or not all(isinstance(seed, int | np.integer) and seed >= 0 for seed in seeds):
        raise InvalidInput(f"seeds must be whole numbers of at least 0, got {seeds!r}; use seeds=range(5).")
    if len(set(seeds)) < len(seeds):
        raise InvalidInput(f"seeds must differ from each other, got {seeds!r}; use seeds=range(5).")
    if rounds is None and delay is None:
        raise InvalidInput("rounds or delay must say when to stop, got neither; use delay=5000.")
    for name, value, whole in (
        ("rounds", rounds, True),
        ("delay", delay, False),
        ("evaluations", evaluations, True),
        ("every", every, True),
    ):
        number = isinstance(value, int if whole else (int, float)) and not isinstance(value, bool)
        if value is not None and not (number and 0 < value < float("inf")):
            kind = "a whole number" if whole else "a number"
            raise InvalidInput(f"{name} must be {kind} above 0, got {value!r}; use {name}={100 if whole else 5000}.")


def _stop(batches: dict[str, list[Run]], rounds: int | None, delay: float | None) -> Stop:
    """The end, no later than a recorded trace ends."""
    for label, runs in batches.items():
        lengths = [run.availability.length for run in runs if run.availability.length is not None]
        if lengths and rounds is not None and rounds > min(lengths):
            raise InvalidInput(
                f"rounds={rounds} is more than the {min(lengths)} rounds of the trace that {label} needs; use rounds={min(lengths)}."
            )
        if lengths:
            rounds = min(lengths) if rounds is None else rounds
    return Stop(rounds, delay)


def _marks(rounds: int | None, delay: float | None, evaluations: int) -> Marks:
    if delay is not None:
        return Marks(delay=delay / evaluations)
    return Marks(rounds=max(1, (rounds or 1) // evaluations))


def _labels(methods: list[Algorithm]) -> list[str]:
    """Names for the table; two of a kind are told apart by their fields."""
    names = [each.name for each in methods]
    labels = []
    for each in methods:
        label = each.name
        if names.count(label) > 1:
            fields = dataclasses.fields(each)  # type: ignore[arg-type]
            label += " " + ", ".join(f"{f.name}={getattr(each, f.name)}" for f in fields)
        labels.append(label)
    if len(set(labels)) < len(labels):
        twice = next(label for label in labels if labels.count(label) > 1)
        raise InvalidInput(f"algorithms must differ, but {twice!r} is there twice; drop one.")
    return labels


def _participation(label: str, runs: list[Run], tally: Tally) -> pd.DataFrame:
    """One row per client and per link of every run: its chance, and what it really did."""
    tables, client, link = [], 0, 0
    for run in runs:
        net, av = run.network, run.availability
        own = slice(client, client + net.clients)
        out = slice(link, link + net.links)
        client, link = own.stop, out.stop
        everyone = np.arange(net.clients)
        tables.append(
            pd.DataFrame(
                {
                    "algorithm": label,
                    "seed": run.seed,
                    "kind": ["client"] * net.clients + ["link"] * net.links,
                    "receiver": np.r_[everyone, net.receivers],
                    "sender": np.r_[everyone, net.senders],
                    "chance": np.r_[av.p, av.p_hat],
                    "gradients": np.r_[tally.gradients[own], np.zeros(net.links, np.int64)],
                    "messages": np.r_[np.zeros(net.clients, np.int64), tally.messages[out]],
                    "bytes": np.r_[np.zeros(net.clients, np.int64), tally.bytes[out]],
                }
            )
        )
    return pd.concat(tables, ignore_index=True)


def _columns(rows: list[dict[str, Any]]) -> list[str]:
    base = ["algorithm", "seed", "round", "delay", "loss", "accuracy", "accuracy_average", "accuracy_worst"]
    return list(dict.fromkeys(base + [name for row in rows for name in row]))


def _describe(
    methods: list[Algorithm], problem: Any, network: Any, participation: Any, seeds: list[int], rounds: Any, delay: Any, dtype: Any
) -> dict[str, Any]:
    """A record of what was run from Python; configs from files are kept as they are."""
    return {
        "methods": [str(each) for each in methods],
        "problem": f"{type(problem).__name__}({problem.clients} clients, {problem.parameters} parameters)",
        "network": str(network) if isinstance(network, Recipe) else f"Network({network.clients}, {network.links} links)",
        "participation": str(participation)[:2000],
        "seeds": seeds,
        "rounds": rounds,
        "delay": delay,
        "dtype": str(dtype),
    }


def _difference(old: Any, new: Any, where: str) -> str:
    """Name the first key in which two configurations differ."""

    def walk(a: Any, b: Any, path: str) -> tuple[str, Any, Any] | None:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in sorted(a.keys() | b.keys()):
                found = walk(a.get(key), b.get(key), f"{path}.{key}" if path else key)
                if found:
                    return found
            return None
        return None if a == b else (path, a, b)

    key, was, now = walk(old, json.loads(json.dumps(new, default=str)), "") or ("config", "other", "this")
    return f"{where} holds another run: {key} is {was!r} there and {now!r} here; use the same settings or another folder."
