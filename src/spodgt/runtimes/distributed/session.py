"""A comparison in several processes: all of them run the rounds, rank 0 measures, writes and reports.

Processes meet only where the simulator would look, save or check for NaN; nothing is agreed upon in
other rounds. At a look every process evaluates its own models, and rank 0 gathers what it needs to fill
the same tables. A checkpoint holds the whole state in the order of clients, so a run may be taken up by
another number of processes, or by the simulator.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from typing import Any

import numpy as np
import torch
from torch import Tensor

from spodgt.compiled import finite
from spodgt.errors import Failed, InvalidInput, SpodgtError
from spodgt.record.folder import table_to_tensor, tensor_to_table
from spodgt.record.record import Diverged, versions
from spodgt.runtimes.distributed.group import Group, restarted
from spodgt.runtimes.distributed.messages import Mail
from spodgt.runtimes.distributed.world import Distributed
from spodgt.runtimes.loop import STRIDE, Moment, begin, run_rounds
from spodgt.runtimes.simulator import Run, Simulation, Tally
from spodgt.training.result import Result
from spodgt.training.session import Patience, Session, Watch
from spodgt.types import Bools, Evaluation, Ints, Problem

_CPU = torch.device("cpu")


class DistributedSession(Session):
    """A session of which every process has one; only that of rank 0 has a folder and fills the tables."""

    group: Group
    signals: Patience
    kept: bool  # rank 0 has a folder

    def carry_out(self, group: Group, draws: dict[int, Any], *, resume: bool) -> Result:
        """Run everything, and give every process the same result; only rank 0 has the states, if kept."""
        self.group, self.signals, self.kept = group, Patience(), self.directory is not None
        self._check_alike()
        error: SpodgtError | None = None
        with contextlib.ExitStack() as stack, group.answering():
            if group.rank:
                self.directory = None
            if self.directory:
                try:
                    going_on = resume or restarted()
                    ours = self.directory.prepared(self.config, self.footprint(), resume=going_on)
                    stack.enter_context(ours)
                    self.restore()
                except SpodgtError as problem:
                    error = problem
            invalid = isinstance(error, InvalidInput)
            word = group.share({"error": error and str(error), "invalid": invalid, "done": self.finished})
            if word["error"]:
                raise error or (InvalidInput if word["invalid"] else Failed)(word["error"])
            self.finished = word["done"]
            self.run()
            return self._shared(draws)

    def _check_alike(self) -> None:
        """Processes with other settings or versions would wait for each other in vain."""
        ours = {"settings": self.fingerprint, **versions()}
        theirs = self.group.share(ours)
        differ = [name for name, value in ours.items() if theirs.get(name) != value]
        odd = torch.zeros(self.group.size, dtype=torch.int64)
        odd[self.group.rank] = len(differ)
        odd = self.group.sum(odd)
        if odd.any():
            what = ", ".join(differ) or "settings or versions"
            raise InvalidInput(
                f"all processes must be alike, but rank {int(odd.argmax())} has other {what} than rank 0; "
                "use the same files and versions on all hosts."
            )

    def run(self) -> None:
        """As in one process; a signal to any of them ends all, after what there is has been saved."""
        if not self.kept:
            self._go()
            return
        with self.signals:
            with contextlib.suppress(KeyboardInterrupt):
                self._go()
            if self.directory:
                self.result({}).write(self.directory.path)

    def _go(self) -> None:
        for label, runs in self.batches.items():
            if label not in self.finished:
                follow = Follow(self, label, runs)
                stride = 1 if self.settings.keep_states else STRIDE
                run_rounds(follow.moment(), self.settings.stop, self.settings.marks, follow, stride)
                follow.close()

    def _shared(self, draws: dict[int, Any]) -> Result:
        here = self.result(draws)
        notes = self.group.share(
            {"diverged": [dataclasses.asdict(each) for each in here.diverged], "complete": here.complete}
        )
        tables = [
            tensor_to_table(self.group.share_bytes(table_to_tensor(table).numpy().tobytes()))
            for table in (here.frame, here.participation)
        ]
        if self.group.rank == 0:
            return here
        diverged = [Diverged(**each) for each in notes["diverged"]]
        frame, activity = tables
        return Result(
            frame,
            activity,
            self.networks,
            self.config,
            versions(),
            diverged,
            notes["complete"],
            draws=draws,
        )


class Follow:
    """The observer of one method's batch in one process."""

    def __init__(self, session: DistributedSession, label: str, runs: list[Run]) -> None:
        self.session, self.label, self.runs, self.group = session, label, runs, session.group
        self.settings = session.settings
        self.tally = Tally.zeros(runs)  # what happened in this block
        self.mail = Mail(self.group)
        self.saved = time.monotonic()
        self.watch = Watch(session, label, runs, beside=False) if self.group.rank == 0 else None
        self.problems = [Shared(run.problem, self.group.device, self.settings.dtype) for run in runs]

    def moment(self) -> Moment:
        """Round 0, or where a restored run stands."""
        going, watch = self.session.going, self.watch
        whole = watch.moment() if watch and going and going[0] == self.label else None
        if watch:  # it looks at gathered states, and saves when all have agreed to
            runs = zip(self.runs, self.problems, strict=True)
            watch.runs = [dataclasses.replace(run, problem=problem) for run, problem in runs]
            watch.settings = dataclasses.replace(self.settings, device=_CPU, checkpoint_every=float("inf"))
            self.tally = watch.tally if whole else self.tally
        head = self.group.share(
            whole and {"k": whole.k, "delay": whole.delay.tolist(), "runs": whole.world.runs.tolist()}
        )
        fresh = begin(self._world(None, self.tally if head is None else Tally.zeros(self.runs)))
        if head is None:
            return fresh
        world = self._world(np.asarray(head["runs"]), self.tally)
        owner = world.block.owner
        fields = []
        for name, like in fresh.state._asdict().items():  # round 0 tells what a state looks like
            rows = like.new_empty(len(world.block.own), *like.shape[1:], device=_CPU)
            parts = None
            if whole:
                full = getattr(whole.state, name).cpu()
                parts = [full[np.flatnonzero(owner == rank)] for rank in range(self.group.size)]
            fields.append(self.group.scatter(parts, rows).to(self.group.device))
        return Moment(head["k"], np.asarray(head["delay"]), world, type(fresh.state)(*fields))

    def _world(self, live: Ints | None, tally: Tally) -> Distributed:
        dtype = self.settings.dtype
        return Distributed(self.runs, self.group, dtype=dtype, runs=live, tally=tally, mail=self.mail)

    def __call__(self, moment: Moment, due: Bools, last: Bools) -> Bools:
        count, look = len(moment.world.runs), bool(due.any()) or self.settings.keep_states
        if not look and moment.k % STRIDE:
            return np.zeros(count, bool)
        odd, save, over = self._meet(moment)
        whole = None
        if save:
            whole = self._gather(moment, np.ones(count, bool))
            self._save(whole)
        if over:
            self.mail.drain()
            raise KeyboardInterrupt
        if look or odd.any():
            wanted = np.ones(count, bool) if self.settings.keep_states else due | odd
            whole = whole or self._gather(moment, wanted)
            self._evaluate(moment, due & ~odd, whole)
            broken = self.watch(whole, due, last).tolist() if self.watch else None
            return np.asarray(self.group.share(broken), bool)
        if self.watch:
            self._report(self.watch, moment)
        return odd

    def close(self) -> None:
        """Fold a finished method into the session."""
        self.mail.drain()
        tally = self._whole_tally()
        if self.watch:
            self.watch.tally = tally
            self.watch.close()
        else:
            self.session.finished.append(self.label)

    # --- meetings --------------------------------------------------------------------------------
    def _meet(self, moment: Moment) -> tuple[Bools, bool, bool]:
        """The runs with numbers that are not finite, whether to save, and whether to stop: for all alike."""
        world: Any = moment.world
        models = world.split(moment.state.x)
        odd = [not finite(x) for x in models]
        waited = time.monotonic() - self.saved >= self.settings.checkpoint_every
        save = self.group.rank == 0 and self.session.kept and waited
        flags = self.group.sum(torch.tensor([*odd, save, self.session.signals.over], dtype=torch.int64)) > 0
        over = bool(flags[-1])
        return flags[:-2].numpy(), bool(flags[-2]) or (over and self.session.kept), over

    def _gather(self, moment: Moment, runs: Bools) -> Moment:
        """The moment of the whole batch on rank 0, with the rows of some runs and zeros for the others."""
        world: Any = moment.world
        chosen = np.repeat(runs, world.sizes)
        places = [np.flatnonzero(chosen & (world.block.owner == rank)) for rank in range(self.group.size)]
        mine = torch.from_numpy(world.block.row[places[self.group.rank]]).to(self.group.device)
        fields = [self._rows(tensor, mine, places, len(chosen)) for tensor in moment.state]
        whole = Simulation(self.runs, dtype=self.settings.dtype, runs=world.runs, fuse=False)
        return Moment(moment.k, moment.delay, whole, type(moment.state)(*fields))

    def _rows(self, tensor: Tensor, mine: Tensor, places: list[Ints], clients: int) -> Tensor | None:
        parts = self.group.gather(tensor[mine], [len(place) for place in places])
        if parts is None:
            return None
        full = torch.zeros(clients, *tensor.shape[1:], dtype=tensor.dtype)
        for place, part in zip(places, parts, strict=True):
            full[torch.from_numpy(place)] = part
        return full

    def _evaluate(self, moment: Moment, runs: Bools, whole: Moment) -> None:
        """Every process evaluates its own models; rank 0 gets the answers."""
        world: Any = moment.world
        for at in np.flatnonzero(runs):
            run = int(world.runs[at])
            quality = self.problems[run].evaluate(world.split(moment.state.x)[at])
            here = torch.stack([quality.loss, quality.accuracy], 1)
            owner = np.split(world.block.owner, np.cumsum(world.sizes)[:-1])[at]
            counts = [int((owner == rank).sum()) for rank in range(self.group.size)]
            parts = self.group.gather(here, counts)
            if parts is not None:  # blocks follow each other in the order of clients
                everyone = torch.cat(parts)
                x = whole.world.split(whole.state.x)[at]  # type: ignore[attr-defined]
                self.problems[run].known = (x, Evaluation(everyone[:, 0], everyone[:, 1]))

    def _save(self, whole: Moment) -> None:
        tally, self.saved = self._whole_tally(), time.monotonic()
        if self.watch:
            self.watch.tally = tally
            self.session.save(self.watch, whole)
            self.saved = time.monotonic()

    def _whole_tally(self) -> Tally:
        return Tally(*(self.group.sum(torch.from_numpy(count.copy())).numpy() for count in self.tally))

    def _report(self, watch: Watch, moment: Moment) -> None:
        watch.finite_at, now = moment.k, time.monotonic()
        if watch.settings.progress and now - watch.shown > 0.1:
            watch.shown = now
            watch.settings.progress(watch._glimpse(moment, False))


class Shared:
    """A problem on this process's device that knows what other processes have evaluated already."""

    def __init__(self, problem: Problem, device: torch.device, dtype: torch.dtype) -> None:
        self._problem, self._device = problem.to(device, dtype), device
        self.known: tuple[Tensor, Evaluation] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._problem, name)

    def to(self, device: torch.device, dtype: torch.dtype) -> Shared:
        return self

    def evaluate(self, x: Tensor) -> Evaluation:
        if self.known is None or not torch.equal(x[: len(self.known[0])].cpu(), self.known[0]):
            loss, accuracy = self._problem.evaluate(x.to(self._device))
            return Evaluation(loss.cpu(), accuracy.cpu())
        models, done = self.known
        self.known = None
        rest = self.evaluate(x[len(models) :])
        return Evaluation(*(torch.cat([a.to(b), b]) for a, b in zip(done, rest, strict=True)))

    def full(self, x: Tensor, rows: Ints) -> tuple[Tensor, Tensor]:
        losses, grads = self._problem.full(x.to(self._device), rows)
        return losses.cpu(), grads.cpu()
