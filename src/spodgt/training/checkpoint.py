"""Checkpoint files: the log of one method, with its evaluations and the checkpoints of its runs.

Every run has a checkpoint of its own, whether it was interrupted or reached its end. A later call
continues interrupted runs, and ended runs if their limits have been extended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms import describe
from spodgt.record.models import MAX_MODEL_BYTES
from spodgt.record.record import Diverged
from spodgt.record.run_folder import CheckpointFile
from spodgt.runtimes.loop import Stop
from spodgt.runtimes.world import Exchanged, Run, RunCheckpoint, Tally
from spodgt.tensors import mean

if TYPE_CHECKING:
    import pandas as pd

MAX_STATE_BYTES = 2**30  # of the final states of one method that are kept for an extension


@dataclass(frozen=True)
class Ending:
    """How a run ended."""

    stop: Stop  # the limits that it reached
    diverged: bool
    averaged: bool  # the clients' models were too large: the checkpoint holds their average
    stopped: str = ""  # why the run stopped before its limits; empty if it reached them


class BestModels(NamedTuple):
    """The models of the best evaluation of a run."""

    round: int
    value: float  # of the metric
    models: Tensor  # (clients, columns), or (1, columns) their average if they are too large


@dataclass(eq=False)
class MethodLog:
    """Evaluations and checkpoints of one method; a run is identified by its number in the batch."""

    label: str
    rows: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)  # by (seed, round)
    clients: dict[int, pd.DataFrame] = field(default_factory=dict)  # last evaluation, by seed
    diverged: list[Diverged] = field(default_factory=list)
    finite_at: dict[int, int] = field(default_factory=dict)  # last round with finite models, by run
    checkpoints: dict[int, RunCheckpoint] = field(default_factory=dict)  # by run
    endings: dict[int, Ending] = field(default_factory=dict)  # by run; interrupted runs have none
    best: dict[int, BestModels] = field(default_factory=dict)  # by run, with keep="best"

    # --- single runs -----------------------------------------------------------------------------
    def is_interrupted(self, run: int) -> bool:
        """Whether the run was stopped before its end."""
        return run in self.checkpoints and run not in self.endings

    def is_finished(self, run: int, stop: Stop) -> bool:
        """Whether the run diverged, stopped early or reached the limits `stop`."""
        ending = self.endings.get(run)
        if ending is None:
            return False
        return ending.diverged or ending.stopped != "" or ending.stop == stop

    def take_checkpoint(self, run: int) -> RunCheckpoint:
        """Remove the checkpoint from which a run continues, so that its memory can be freed."""
        checkpoint = self.checkpoints.pop(run)
        self.endings.pop(run, None)
        self.finite_at[run] = min(self.finite_at.get(run, 0), checkpoint.k)
        return checkpoint

    def add_divergence(self, run: Run, number: int, k: int) -> None:
        """Note that a run, with this number in the batch, diverged by round k."""
        step_size = str(describe(run.algorithm).get("step_size"))
        finite_at = self.finite_at.get(number, 0)
        self.diverged.append(Diverged(self.label, run.seed, k, finite_at, step_size))

    def finish_run(
        self,
        run: int,
        checkpoint: RunCheckpoint,
        stop: Stop,
        *,
        diverged: bool,
        stopped: str,
        max_bytes: int,
        copy: bool,
    ) -> None:
        """Keep the final checkpoint of a run.

        Args:
            run: its number in the batch.
            checkpoint: of its last round.
            stop: the limits that it had.
            diverged: whether it diverged.
            stopped: why it stopped before its limits; empty if it reached them.
            max_bytes: see `limit_size`.
            copy: whether to copy tensors, because the memory of the whole batch would be held
                otherwise.
        """
        reduced, averaged = limit_size(checkpoint, max_bytes)
        self.checkpoints[run] = to_cpu(reduced, copy=copy)
        self.endings[run] = Ending(stop, diverged, averaged, stopped)

    def extract(self, run: int, seed: int) -> MethodLog:
        """The log of one run, in which that run has the number 0."""
        log = MethodLog(self.label)
        log.rows = {key: row for key, row in self.rows.items() if key[0] == seed}
        log.diverged = [each for each in self.diverged if each.seed == seed]
        if seed in self.clients:
            log.clients[seed] = self.clients[seed]
        if run in self.finite_at:
            log.finite_at[0] = self.finite_at[run]
        if run in self.checkpoints:
            log.checkpoints[0] = self.checkpoints[run]
        if run in self.endings:
            log.endings[0] = self.endings[run]
        if run in self.best:
            log.best[0] = self.best[run]
        return log

    def update(self, run: int, seed: int, part: MethodLog) -> None:
        """Take over the log of one run, in which that run has the number 0."""
        self.rows.update(part.rows)
        self.clients.update(part.clients)
        self.diverged = [each for each in self.diverged if each.seed != seed] + part.diverged
        self.finite_at[run] = part.finite_at.get(0, 0)
        self.checkpoints.pop(run, None)
        self.endings.pop(run, None)
        if 0 in part.checkpoints:
            self.checkpoints[run] = part.checkpoints[0]
        if 0 in part.endings:
            self.endings[run] = part.endings[0]
        if 0 in part.best:
            self.best[run] = part.best[0]

    # --- files -----------------------------------------------------------------------------------
    def to_file(
        self, notes: Mapping[str, object], running: Mapping[int, RunCheckpoint] | None = None
    ) -> CheckpointFile:
        """The log as a file.

        Args:
            notes: facts of the whole comparison, which are stored with it.
            running: checkpoints of the runs that are being computed.
        """
        import pandas as pd

        tensors: dict[str, Tensor] = {}
        runs: dict[str, dict[str, Any]] = {}
        for number, checkpoint in {**self.checkpoints, **(running or {})}.items():
            ending = self.endings.get(number)
            runs[str(number)] = {
                "k": checkpoint.k,
                "delay": checkpoint.delay,
                "ending": None if ending is None else asdict(ending),
            }
            _store(tensors, str(number), checkpoint)
        best: dict[str, dict[str, float]] = {}
        for number, kept in self.best.items():
            best[str(number)] = {"round": kept.round, "value": kept.value}
            tensors[f"{number}/best"] = kept.models
        tables: dict[str, pd.DataFrame] = {}
        if self.rows:
            tables["metrics"] = pd.DataFrame(list(self.rows.values()))
        if self.clients:
            tables["clients"] = pd.concat(self.clients.values(), ignore_index=True)
        all_notes = {
            **notes,
            "label": self.label,
            "runs": runs,
            "best": best,
            "finite_at": {str(number): k for number, k in self.finite_at.items()},
            "diverged": [asdict(each) for each in self.diverged],
        }
        return CheckpointFile(all_notes, tensors, tables)

    @staticmethod
    def from_file(file: CheckpointFile) -> MethodLog:
        """The log that `to_file` stored."""
        from spodgt.record.frames import with_old_names

        notes = file.notes
        log = MethodLog(notes["label"])
        log.finite_at = {int(number): k for number, k in notes["finite_at"].items()}
        log.diverged = [Diverged.from_dict(each) for each in notes["diverged"]]
        if "metrics" in file.tables:
            for row in with_old_names(file.tables["metrics"]).to_dict("records"):
                values = {str(name): value for name, value in row.items()}
                log.rows[int(values["seed"]), int(values["round"])] = values
        if "clients" in file.tables:
            for seed, table in with_old_names(file.tables["clients"]).groupby("seed", sort=False):
                log.clients[int(str(seed))] = table
        for number, facts in notes["runs"].items():
            log.checkpoints[int(number)] = _load(
                file.tensors, number, k=facts["k"], delay=facts["delay"]
            )
            ending = facts["ending"]
            if ending is not None:
                stop = Stop(**ending.pop("stop"))
                log.endings[int(number)] = Ending(stop, **ending)
        for number, facts in notes.get("best", {}).items():
            models = file.tensors[f"{number}/best"]
            log.best[int(number)] = BestModels(facts["round"], facts["value"], models)
        return log


def _store(tensors: dict[str, Tensor], run: str, checkpoint: RunCheckpoint) -> None:
    """Add the tensors of a checkpoint, with names that begin with the number of the run."""
    tensors[f"{run}/statistics"] = checkpoint.statistics
    for name, value in checkpoint.state.items():
        tensors[f"{run}/state/{name}"] = value
    for name, count in checkpoint.counts._asdict().items():
        tensors[f"{run}/counts/{name}"] = torch.from_numpy(count)
    for name, value in checkpoint.in_flight.items():
        tensors[f"{run}/in_flight/{name}"] = value
    if checkpoint.exchanged is not None:
        tensors[f"{run}/exchanged/x"] = checkpoint.exchanged.x
        tensors[f"{run}/exchanged/statistics"] = checkpoint.exchanged.statistics


def _load(tensors: Mapping[str, Tensor], run: str, *, k: int, delay: float) -> RunCheckpoint:
    """The checkpoint that `_store` added."""
    counts = _with_prefix(tensors, f"{run}/counts/")
    exchanged = _with_prefix(tensors, f"{run}/exchanged/")
    return RunCheckpoint(
        k=k,
        delay=delay,
        state=_with_prefix(tensors, f"{run}/state/"),
        statistics=tensors[f"{run}/statistics"],
        counts=Tally(**{name: count.numpy().copy() for name, count in counts.items()}),
        in_flight=_with_prefix(tensors, f"{run}/in_flight/"),
        exchanged=Exchanged(**exchanged) if exchanged else None,
    )


def _with_prefix(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors with names that begin with `prefix`, by the rest of the name."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


def reduced_models(models: Tensor) -> Tensor:
    """A copy of the models of all clients in main memory; their average if they are too large."""
    if models.numel() * models.element_size() > MAX_MODEL_BYTES:
        models = mean(models)[None]
    return models.detach().to("cpu", copy=True)


# --- the end of a run ----------------------------------------------------------------------------
def limit_size(checkpoint: RunCheckpoint, max_bytes: int) -> tuple[RunCheckpoint, bool]:
    """Drop what is too large to keep of a run that has ended.

    A state of more than `max_bytes` bytes is reduced to the models x, and these to their average if
    they take more than `MAX_MODEL_BYTES` bytes.

    Returns:
        The checkpoint, and whether it holds the average model only.
    """
    size = sum(tensor.numel() * tensor.element_size() for tensor in checkpoint.state.values())
    if size <= max_bytes:
        return checkpoint, False
    x = checkpoint.state["x"]
    reduced = checkpoint._replace(state={"x": x}, in_flight={}, exchanged=None)
    if x.numel() * x.element_size() <= MAX_MODEL_BYTES:
        return reduced, False
    average = mean(x)[None]
    statistics = mean(checkpoint.statistics)[None]
    return reduced._replace(state={"x": average}, statistics=statistics), True


def to_cpu(checkpoint: RunCheckpoint, *, copy: bool) -> RunCheckpoint:
    """The state in main memory; with `copy`, always in memory of its own."""
    state = {name: _to_cpu(tensor, copy) for name, tensor in checkpoint.state.items()}
    exchanged = checkpoint.exchanged
    if exchanged is not None:
        x, statistics = exchanged
        exchanged = Exchanged(_to_cpu(x, copy), _to_cpu(statistics, copy))
    return checkpoint._replace(
        state=state, statistics=_to_cpu(checkpoint.statistics, copy), exchanged=exchanged
    )


def _to_cpu(tensor: Tensor, copy: bool) -> Tensor:
    return tensor.detach().to("cpu", copy=copy)


def with_statistics(checkpoint: RunCheckpoint, field_name: str = "x") -> Tensor:
    """(clients, columns) models, followed by their running statistics if there are any."""
    models = checkpoint.state[field_name]
    if checkpoint.statistics.shape[1] == 0:
        return models
    return torch.cat([models, checkpoint.statistics.to(models)], 1)
