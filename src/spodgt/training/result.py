"""What `train` and `compare` return: the record, and what is only there in memory."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spodgt import figures
from spodgt.errors import InvalidInput
from spodgt.record.record import Record
from spodgt.runtimes.world import Draw


@dataclass(eq=False)
class Result(Record):
    """A record with the states that were kept and the draws of every seed."""

    states: dict[int, Any] = field(default_factory=dict)  # of the (last) method, with keep_states=True
    draws: dict[int, Draw] = field(default_factory=dict)  # by seed

    def plot(self, path: str | Path, metric: str | None = None, against: str = "delay") -> Path:
        """Draw a metric of every method, mean and one-sigma band over seeds.

        Args:
            path: the picture to write; its suffix picks the format: png, svg or pdf.
            metric: a column of `frame`; accuracy where something is classified, else the loss, unless given.
            against: "delay" or "round".
        """
        figures.check_suffix(path)
        return figures.save(figures.curves(self.frame, metric or self.judged, against), Path(path))

    def plot_network(self, path: str | Path, seed: int | None = None) -> Path:
        """Draw a network: links by p̂, clients by p.

        Args:
            path: the picture to write; its suffix picks the format: png, svg or pdf.
            seed: whose network; the first unless given.
        """
        figures.check_suffix(path)
        seed = next(iter(self.draws)) if seed is None else seed
        if seed not in self.draws:
            known = ", ".join(map(str, self.draws))
            raise InvalidInput(f"seed={seed!r} is not one of this result; choose from {known}.")
        network, available = self.draws[seed].network, self.draws[seed].availability
        figure = figures.network(network, available.p, available.p_hat, title=f"seed {seed}")
        return figures.save(figure, Path(path))
