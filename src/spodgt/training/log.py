"""What is known of one method's runs: evaluations, ends and counts; and its form in a checkpoint.

A checkpoint holds one method: the one that is running, or one that has finished. What a run was at its end is
kept, so that a later call may go on from there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from spodgt.record.folder import Checkpoint
from spodgt.record.models import MODELS
from spodgt.record.record import Diverged
from spodgt.runtimes.loop import Stop
from spodgt.runtimes.world import EXCHANGED_STATISTICS, EXCHANGED_X, Run, RunState, Saved, Tally
from spodgt.tensors import mean

if TYPE_CHECKING:
    import pandas as pd

STATES = (
    2**30
)  # bytes of the last states of one method that are kept to go on from; larger ones are not


@dataclass(frozen=True, eq=False)
class Ended:
    """One run at its end.

    Args:
        k: its last round.
        delay: when x[k] was available.
        stop: the limits that it reached.
        diverged: whether it was given up.
        averaged: whether clients' models are too large to keep, so that only their average is here.
        state: tensors of all clients by field; x alone where the others are too large to keep. Between local
            steps also `EXCHANGED_X` and `EXCHANGED_STATISTICS`, the models of the last exchange.
        statistics: (clients, columns) what clients keep beside their models.
        under_way: what else is needed to go on, by name.
    """

    k: int
    delay: float
    stop: Stop
    diverged: bool
    averaged: bool
    state: dict[str, Tensor]
    statistics: Tensor
    under_way: Mapping[str, Tensor]

    @staticmethod
    def of(
        fields: Sequence[str],
        whole: RunState,
        most: int,
        exchanged: RunState | None = None,
        *,
        copy: bool,
        **facts: Any,
    ) -> Ended:
        """Take the state of a run, x alone if it is more than `most` bytes.

        `exchanged` is the state with the models of the last exchange, where these may be others.
        """
        size = sum(tensor.numel() * tensor.element_size() for tensor in whole.state)
        x, statistics = whole.state[0], whole.statistics
        if size > most and x.numel() * x.element_size() > MODELS:
            state, statistics = {"x": mean(x)[None].cpu()}, mean(statistics)[None].cpu()
            return Ended(state=state, statistics=statistics, averaged=True, **facts)
        names = fields if size <= most else fields[:1]
        state = {name: _kept(t, copy) for name, t in zip(names, whole.state, strict=False)}
        if exchanged is not None and size <= most:
            state[EXCHANGED_X] = _kept(exchanged.state[0], copy)
            state[EXCHANGED_STATISTICS] = _kept(exchanged.statistics, copy)
        return Ended(state=state, statistics=_kept(statistics, copy), averaged=False, **facts)

    @property
    def models(self) -> Tensor:
        """(clients, columns): models with their statistics behind them."""
        return self._with_statistics(self.state["x"])

    @property
    def means(self) -> Tensor | None:
        """The same of the running means, where they were kept."""
        return self._with_statistics(self.state["mean"]) if "mean" in self.state else None

    def _with_statistics(self, x: Tensor) -> Tensor:
        return torch.cat([x, self.statistics.to(x)], 1) if self.statistics.shape[1] else x


def _kept(tensor: Tensor, copy: bool) -> Tensor:
    return tensor.detach().to("cpu", copy=copy)


@dataclass(eq=False)
class MethodLog:
    """All that is known of one method's runs; runs are told by their number in the batch."""

    label: str
    rows: dict[tuple[int, int], dict[str, Any]] = field(
        default_factory=dict
    )  # (seed, round) → evaluation
    clients: dict[int, pd.DataFrame] = field(
        default_factory=dict
    )  # seed → the last evaluation of each client
    diverged: list[Diverged] = field(default_factory=list)
    ended: dict[int, Ended] = field(default_factory=dict)
    finite_at: dict[int, int] = field(
        default_factory=dict
    )  # the last round with finite numbers, by run
    tally: Tally | None = None  # once it is finished

    def waiting(self, stop: Stop) -> list[int]:
        """Runs that ended at other limits than `stop`: they may go on."""
        return [run for run, end in self.ended.items() if end.stop != stop and not end.diverged]

    def pieces(self, stop: Stop, fields: Sequence[str]) -> list[Saved] | None:
        """Where the waiting runs stand, those of the same round together; None where that was not kept."""
        found, tally = [], self.tally
        waiting = self.waiting(stop)
        for k in sorted({self.ended[run].k for run in waiting}):
            runs = [run for run in sorted(waiting) if self.ended[run].k == k]
            ends = [self.ended[run] for run in runs]
            if tally is None or any(name not in end.state for end in ends for name in fields):
                return None
            state = {name: torch.cat([end.state[name] for end in ends]) for name in fields}
            statistics = torch.cat([end.statistics for end in ends])
            if any(EXCHANGED_X in end.state for end in ends):
                exchanged = [end.state.get(EXCHANGED_X, end.state["x"]) for end in ends]
                beside = [end.state.get(EXCHANGED_STATISTICS, end.statistics) for end in ends]
                state[EXCHANGED_X] = torch.cat(exchanged)
                state[EXCHANGED_STATISTICS] = torch.cat(beside)
            delay = np.array([end.delay for end in ends])
            under_way = [end.under_way for end in ends]
            found.append(Saved(k, delay, np.array(runs), state, statistics, tally, under_way))
        return found

    # --- single runs -----------------------------------------------------------------------------
    def of_run(self, runs: Sequence[Run], number: int) -> MethodLog:
        """The part of one run, in which that run has the number 0."""
        seed = runs[number].seed
        log = MethodLog(self.label)
        log.rows = {key: row for key, row in self.rows.items() if key[0] == seed}
        log.diverged = [each for each in self.diverged if each.seed == seed]
        if seed in self.clients:
            log.clients[seed] = self.clients[seed]
        if number in self.ended:
            log.ended[0] = self.ended[number]
        if number in self.finite_at:
            log.finite_at[0] = self.finite_at[number]
        if self.tally is not None:
            log.tally = Tally(*(counts.copy() for counts in self.tally.of_run(runs, number)))
        return log

    @staticmethod
    def join(label: str, runs: Sequence[Run], parts: Mapping[int, MethodLog]) -> MethodLog:
        """One log of the logs of single runs, by the number of the run."""
        log = MethodLog(label)
        log.tally = Tally.zeros(runs)
        for number, part in sorted(parts.items()):
            log.rows |= part.rows
            log.clients |= part.clients
            log.diverged += part.diverged
            if 0 in part.ended:
                log.ended[number] = part.ended[0]
            if 0 in part.finite_at:
                log.finite_at[number] = part.finite_at[0]
            if part.tally is not None:
                for counts, counts_of_run in zip(
                    log.tally.of_run(runs, number), part.tally, strict=True
                ):
                    counts[:] = counts_of_run
        return log

    # --- files -----------------------------------------------------------------------------------
    def checkpoint(self, facts: Mapping[str, Any], going: Saved | None = None) -> Checkpoint:
        """Everything as a checkpoint, with `facts` of the whole comparison, and where `going` runs stand."""
        import pandas as pd

        notes: dict[str, Any] = {
            **facts,
            "label": self.label,
            "finite_at": {str(run): k for run, k in self.finite_at.items()},
            "diverged": [asdict(each) for each in self.diverged],
            "ended": {
                str(run): {
                    **{key: getattr(end, key) for key in ("k", "delay", "diverged", "averaged")},
                    "stop": asdict(end.stop),
                }
                for run, end in self.ended.items()
            },
        }
        tensors: dict[str, Tensor] = {}
        for run, end in self.ended.items():
            tensors |= {f"ended/{run}/state/{name}": value for name, value in end.state.items()}
            tensors[f"ended/{run}/statistics"] = end.statistics
            tensors |= {
                f"ended/{run}/under_way/{name}": value for name, value in end.under_way.items()
            }
        tally = going.tally if going else self.tally
        if tally:
            tensors |= {f"tally/{name}": torch.from_numpy(v) for name, v in tally._asdict().items()}
        if going:
            notes["k"] = going.k
            tensors |= {f"state/{name}": value for name, value in going.state.items()}
            tensors["delay"], tensors["runs"] = (
                torch.from_numpy(going.delay),
                torch.from_numpy(going.runs),
            )
            tensors["statistics"] = going.statistics
            for run, known in enumerate(going.under_way):
                tensors |= {f"under_way/{run}/{name}": value for name, value in known.items()}
        tables = {"metrics": pd.DataFrame(list(self.rows.values()))} if self.rows else {}
        if self.clients:
            tables["clients"] = pd.concat(self.clients.values(), ignore_index=True)
        return Checkpoint(notes, tensors, tables)

    @staticmethod
    def read(found: Checkpoint) -> tuple[MethodLog, Saved | None]:
        """A log, and where its going runs stand."""
        notes, tensors = found.notes, found.tensors
        log = MethodLog(notes["label"])
        if isinstance(
            notes["finite_at"], dict
        ):  # folders of older versions have one round for all runs
            log.finite_at = {int(run): k for run, k in notes["finite_at"].items()}
        log.diverged = [Diverged(**each) for each in notes["diverged"]]
        if "metrics" in found.tables:
            for row in found.tables["metrics"].to_dict("records"):
                log.rows[int(row["seed"]), int(row["round"])] = {
                    str(name): v for name, v in row.items()
                }
        if "clients" in found.tables:
            tables = found.tables["clients"].groupby("seed", sort=False)
            log.clients = {int(str(seed)): table for seed, table in tables}
        for run, end in notes["ended"].items():
            facts = {**end, "stop": Stop(**end["stop"])}
            state, statistics = (
                named(tensors, f"ended/{run}/state/"),
                tensors[f"ended/{run}/statistics"],
            )
            under_way = named(tensors, f"ended/{run}/under_way/")
            log.ended[int(run)] = Ended(
                **facts, state=state, statistics=statistics, under_way=under_way
            )
        counts = named(tensors, "tally/")
        tally = Tally(*(counts[name].numpy().copy() for name in Tally._fields)) if counts else None
        if "k" not in notes or tally is None:
            log.tally = tally
            return log, None
        delay, runs = tensors["delay"].numpy(), tensors["runs"].numpy()
        log.tally = tally  # of what has ended; the going runs count on
        flying = [named(tensors, f"under_way/{run}/") for run in range(len(runs))]
        state, statistics = named(tensors, "state/"), tensors["statistics"]
        return log, Saved(notes["k"], delay, runs, state, statistics, tally, flying)


def named(tensors: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The tensors whose name begins so, by the rest of it."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}
