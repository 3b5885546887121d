"""A comparison on its way: what it has measured, what it saves, and how it is taken up again."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import signal
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from spodgt.algorithms import describe
from spodgt.compiled import finite, usable
from spodgt.errors import InvalidInput
from spodgt.record.folder import RunDirectory, table_to_tensor, tensor_to_table
from spodgt.record.metrics import Snapshot, measure
from spodgt.record.record import Diverged, versions
from spodgt.runtimes.loop import STRIDE, Marks, Moment, Stop, begin, run_rounds
from spodgt.runtimes.simulator import Run, Simulation, Tally
from spodgt.training.result import Result
from spodgt.types import Bools

_SHOW_EVERY = 0.1  # seconds between two glimpses
_SMALL = 2**22  # numbers of a state that is copied, so that it can be looked at while rounds go on
_AHEAD = 4  # looks that may be under way
_CHEAP, _AFFORDABLE = 1e6, 1e9  # multiplications for a global gradient: at every look, at the last only
_ACTIVITY = (
    "algorithm",
    "seed",
    "kind",
    "receiver",
    "sender",
    "probability",
    "gradients",
    "messages",
    "bytes",
)


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


@dataclass(eq=False)
class Session:
    """A comparison on its way: the tables so far, and the method that is running."""

    batches: dict[str, list[Run]]
    settings: Settings
    config: dict[str, Any]
    directory: RunDirectory | None
    networks: pd.DataFrame
    contents: dict[str, Any] = field(default_factory=dict)  # what the config only names
    rows: list[dict[str, Any]] = field(default_factory=list)
    activity: list[pd.DataFrame] = field(default_factory=list)
    diverged: list[Diverged] = field(default_factory=list)
    finals: dict[str, Tensor] = field(default_factory=dict)  # average models, (runs, parameters)
    states: dict[int, Any] = field(default_factory=dict)
    finished: list[str] = field(default_factory=list)
    going: tuple[str, dict[str, Tensor], dict[str, Any]] | None = None  # restored, to go on with
    patience: Patience = field(init=False)

    def __post_init__(self) -> None:
        self.patience = Patience()

    @property
    def fingerprint(self) -> str:
        text = json.dumps(self.config | self.contents, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()

    def footprint(self) -> int:
        """Bytes that two checkpoints may take: one in place, one beside it."""
        runs = next(iter(self.batches.values()))
        numbers = sum(run.start.numel() for run in runs) * 5 + len(self.batches) * sum(
            run.start.shape[1] for run in runs
        )
        return 2 * numbers * self.settings.dtype.itemsize + 10_000_000

    def run(self) -> None:
        """Run every method that is not finished; without a folder, Ctrl-C is the caller's to catch."""
        if not self.directory:
            self._go()
            return
        with self.patience:
            with contextlib.suppress(KeyboardInterrupt):  # what is saved is on disk by then
                self._go()
            self.result({}).write(self.directory.path)

    def _go(self) -> None:
        for label, runs in self.batches.items():
            if label not in self.finished:
                watch = Watch(self, label, runs)
                stride = 1 if self.settings.keep_states else STRIDE
                run_rounds(watch.moment(), self.settings.stop, self.settings.marks, watch, stride)
                watch.close()

    def result(self, draws: dict[int, Any]) -> Result:
        order = {label: number for number, label in enumerate(self.batches)}
        frame = pd.DataFrame(self.rows, columns=_columns(self.rows))
        frame["algorithm"] = frame["algorithm"].astype(str)
        frame = frame.sort_values(
            ["algorithm", "seed", "round"],
            key=lambda c: c.map(order) if c.name == "algorithm" else c,
            ignore_index=True,
        )
        activity = pd.concat(
            self.activity or [participation_table("", [], Tally.zeros([]))], ignore_index=True
        )
        done = len(self.finished) == len(self.batches)
        return Result(
            frame,
            activity,
            self.networks,
            self.config,
            versions(),
            self.diverged,
            done,
            states=self.states,
            draws=draws,
        )

    # --- checkpoints -----------------------------------------------------------------------------
    def save(self, watch: Watch | None, moment: Moment | None = None) -> None:
        if not self.directory:
            return
        tensors = {f"final/{label}": models for label, models in self.finals.items()}
        notes: dict[str, Any] = {
            "fingerprint": self.fingerprint,
            "config": json.loads(json.dumps(self.config | self.contents, default=str)),
            "finished": self.finished,
            "diverged": [dataclasses.asdict(each) for each in self.diverged],
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
            tensors["statistics"] = moment.world.statistics
        self.directory.save(tensors, notes)

    def restore(self) -> None:
        """Take up the work that the folder holds, if any."""
        assert self.directory is not None
        loaded = self.directory.load()
        if loaded is None:
            return
        tensors, notes = loaded
        ours = self.config | self.contents
        if notes["fingerprint"] != self.fingerprint:
            raise InvalidInput(_difference(notes["config"], ours, str(self.directory.path)))
        self.finished = list(notes["finished"])
        self.diverged = [Diverged(**each) for each in notes["diverged"]]
        self.finals = {
            name.removeprefix("final/"): t for name, t in tensors.items() if name.startswith("final/")
        }
        if "table/metrics" in tensors:
            self.rows = tensor_to_table(tensors["table/metrics"]).to_dict("records")  # type: ignore[assignment]
        if "table/participation" in tensors:
            self.activity = [tensor_to_table(tensors["table/participation"])]
        if "going" in notes:
            self.going = (notes["going"], tensors, notes)


class Patience:
    """Ctrl-C and SIGTERM wait for the end of the round, so that it is saved; a second one does not wait."""

    def __init__(self) -> None:
        self.over = False
        self.before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> None:
        if threading.current_thread() is threading.main_thread():  # only there do signals arrive
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self._end)

    def __exit__(self, *_: Any) -> None:
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def _end(self, *_: Any) -> None:
        if self.over:
            raise KeyboardInterrupt
        self.over = True


class Watch:
    """The observer of one method's batch: looks, records, checks for NaN, saves, reports."""

    def __init__(self, session: Session, label: str, runs: list[Run], *, beside: bool = True) -> None:
        self.session, self.label, self.runs = session, label, runs
        self.looks = Looks() if beside else None
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
        self.last_x = {
            int(n.removeprefix("final_x/")): t for n, t in tensors.items() if n.startswith("final_x/")
        }
        world = Simulation(
            self.runs,
            tally=self.tally,
            runs=tensors["runs"].numpy(),
            statistics=tensors["statistics"].to(self.settings.device),
            **options,  # type: ignore[arg-type]
        )
        # The state's type is the algorithm's; round 0 of a copy that counts nothing tells it.
        shape = type(begin(Simulation(self.runs[:1], **options)).state)  # type: ignore[arg-type]
        state = shape(*(tensors[f"state/{name}"].to(self.settings.device) for name in shape._fields))
        return Moment(notes["k"], tensors["delay"].numpy(), world, state)

    def __call__(self, moment: Moment, due: Bools, last: Bools) -> Bools:
        now, over = time.monotonic(), self.session.patience.over
        if over or now - self.saved >= self.settings.checkpoint_every:
            self._catch_up()
            self.session.save(self, moment)
            self.saved = time.monotonic()
        if over:
            raise KeyboardInterrupt
        broken = self._broken(moment, due)
        world: Any = moment.world
        wanted = due | broken | self.settings.keep_states
        if wanted.any():
            parts = [world.split(tensor) for tensor in (world.statistics, *moment.state)]
            for at in np.flatnonzero(wanted).tolist():
                run, (statistics, *part) = int(world.runs[at]), (tensor[at] for tensor in parts)
                state = type(moment.state)(*part)
                if due[at] and not broken[at]:
                    self._look(run, moment.k, moment.delay[at], (state, statistics), bool(last[at]))
                    self._catch_up(_AHEAD)
                if self.settings.keep_states:  # copies: a compiled step overwrites the state it is given
                    self.history[run].append(type(state)(*(tensor.clone() for tensor in state)))
                if last[at] or broken[at]:
                    self.last_x[run] = torch.cat([state.x.mean(0), statistics.mean(0)])
        if self.settings.progress and (now - self.shown >= _SHOW_EVERY or last.all()):
            self.shown = now
            self._catch_up(0 if last.all() else _AHEAD)  # what is shown last is what came out
            self.settings.progress(self._glimpse(moment, bool(last.all())))
        return broken

    def close(self) -> None:
        """Fold a finished method into the session."""
        self._catch_up()
        if self.looks:
            self.looks.threads.shutdown()
        session = self.session
        session.finals[self.label] = torch.stack([self.last_x[n] for n in range(len(self.runs))])
        session.activity.append(participation_table(self.label, self.runs, self.tally))
        session.finished.append(self.label)
        if self.settings.keep_states:
            for n, run in enumerate(self.runs):
                shape = type(self.history[n][0])
                columns = zip(*self.history[n], strict=True)
                session.states[run.seed] = shape(*(torch.stack(column) for column in columns))
        session.save(None)

    def _look(self, number: int, k: int, delay: float, models: Any, final: bool) -> None:
        run = self.runs[number]
        problem = run.problem.to(self.settings.device, self.settings.dtype)
        wish = self.settings.gradient_norm
        gradient = (problem.work <= (_AFFORDABLE if final else _CHEAP)) if wish is None else wish

        def look(state: Any, statistics: Tensor) -> None:
            row = measure(Snapshot.take(problem, state._fields, state, statistics, gradient=gradient))
            self.accuracy[number] = row["accuracy"]
            self.session.rows.append(
                {"algorithm": self.label, "seed": run.seed, "round": k, "delay": float(delay), **row}
            )

        state, statistics = models
        # Modules may draw random numbers or share memory with those that train; linear models do neither.
        linear = getattr(problem, "linear_data", lambda _: None)(state.x.dtype) is not None
        if self.looks and linear and usable(*state) and state.x.numel() * len(state) <= _SMALL:
            # Rounds go on with the original. numpy copies on this thread; torch would wait for a busy one.
            copies = [torch.from_numpy(tensor.numpy().copy()) for tensor in (*state, statistics)]
            self.looks.add(partial(look, type(state)(*copies[:-1]), copies[-1]))
        else:
            look(*models)

    def _catch_up(self, most: int = 0) -> None:
        """Wait until at most so many looks are under way."""
        if self.looks:
            self.looks.wait(most)

    def _broken(self, moment: Moment, due: Bools) -> Bools:
        """Which runs have left the finite numbers."""
        broken = np.zeros(len(moment.world.runs), bool)
        suspects = due if moment.k % STRIDE else np.ones_like(due)
        world: Any = moment.world
        for at, (run, x) in enumerate(zip(moment.world.runs, world.split(moment.state.x), strict=True)):
            if suspects[at] and not finite(x):
                broken[at] = True
                step = str(describe(self.runs[run].algorithm).get("step_size"))
                self.session.diverged.append(
                    Diverged(self.label, self.runs[run].seed, moment.k, self.finite_at, step)
                )
        if suspects.all() and not broken.any():
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


class Looks:
    """Looks made beside the rounds, each on one thread: nobody waits for the other half of an operation."""

    def __init__(self) -> None:
        alone = partial(torch.set_num_threads, 1)  # of the thread that says it
        self.threads = ThreadPoolExecutor(torch.get_num_threads(), "look", alone)
        self.waiting: deque[Future[None]] = deque()

    def add(self, look: Callable[[], None]) -> None:
        self.waiting.append(self.threads.submit(look))

    def wait(self, most: int) -> None:
        """Until at most so many are under way; what failed there fails here."""
        while len(self.waiting) > most:
            self.waiting.popleft().result()


# --- tables and messages ----------------------------------------------------------------------------
def participation_table(label: str, runs: list[Run], tally: Tally) -> pd.DataFrame:
    """One row per client and per link of every run: its probability, and what it really did."""
    tables, client, link = [pd.DataFrame(columns=_ACTIVITY)] if not runs else [], 0, 0
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
                    "probability": np.r_[av.p, av.p_hat],
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


def _difference(old: Any, new: Any, where: str) -> str:
    """Name the first key in which two configurations differ."""

    def walk(a: Any, b: Any, path: str) -> tuple[str, Any, Any] | None:
        if isinstance(a, dict) and isinstance(b, dict):
            for key in dict.fromkeys([*a, *b]):  # what a user sets comes before check sums
                found = walk(a.get(key), b.get(key), f"{path}.{key}" if path else key)
                if found:
                    return found
            return None
        return None if a == b else (path, a, b)

    found = walk(old, json.loads(json.dumps(new, default=str)), "")
    assert found is not None, "fingerprints are of these two"
    key, was, now = found
    differ = f"{key} is {was!r} there and {now!r} here"
    return f"{where} holds another run: {differ}; use the same settings or another folder."
