"""What `train` and `compare` return: the record, and what is only there in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from spodgt import figures
from spodgt.errors import InvalidInput
from spodgt.network.names import client_number
from spodgt.problems.protocols import HasModel
from spodgt.record.models import MODELS
from spodgt.record.record import Record
from spodgt.runtimes.world import Draw
from spodgt.tensors import mean


@dataclass(eq=False, repr=False)
class Result(Record):
    """A record with the states that were kept and the draws of every seed.

    Args:
        states: by seed, the states of the (last) method; only with `keep_states=True`.
        draws: by seed, the network, participation and problem of the run.
        models: by method and seed, the trained models (clients, columns).
    """

    states: dict[int, Any] = field(default_factory=dict)
    draws: dict[int, Draw] = field(default_factory=dict)
    models: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def model(
        self, method: str | None = None, seed: int | None = None, client: int | str = "average"
    ) -> nn.Module:
        """The user's module with a trained model in it: parameters, and running statistics if there are any.

        Args:
            method: whose model; may be left out where there is one method.
            seed: of which run; the first unless given.
            client: a client's name or number, or "average" (default) for the average of all clients'
                models.
        """
        problem, x = self._trained(method, seed, client)
        return problem.module(x)

    def state_dict(
        self, method: str | None = None, seed: int | None = None, client: int | str = "average"
    ) -> dict[str, Tensor]:
        """The tensors of a trained model by name, as `torch.nn.Module.load_state_dict` takes them.

        Args:
            method: as for `model`.
            seed: as for `model`.
            client: as for `model`.
        """
        problem, x = self._trained(method, seed, client)
        return problem.state_dict(x)

    def _trained(
        self, method: str | None, seed: int | None, client: int | str
    ) -> tuple[HasModel, Tensor]:
        names = self.algorithms
        if method is None and len(names) == 1:
            (method,) = names
        if method not in names:
            raise InvalidInput(
                f"method={method!r} is not one of this result; choose from {', '.join(names)}."
            )
        seed = next(iter(self.draws)) if seed is None else seed
        if seed not in self.draws:
            raise InvalidInput(
                f"seed={seed!r} is not one of this result; choose from {_listed(self.draws)}."
            )
        problem, models = self.draws[seed].problem, self.models.get((str(method), seed))
        if not isinstance(problem, HasModel):
            raise InvalidInput(
                f"problem must have a torch module to give a model, got {type(problem).__name__}; "
                "use spodgt.Learning."
            )
        if models is None:
            raise InvalidInput(
                f"{method} (seed {seed}) has no model: it did not reach its end; run it again."
            )
        if client == "average":
            return problem, mean(models)
        network = self.draws[seed].network
        number = client_number(client, network.names, network.clients, "client")
        if len(models) < network.clients:
            raise InvalidInput(
                f"client={client} is not there: clients' models of more than {MODELS // 2**20} MiB are not "
                'kept; use client="average".'
            )
        return problem, models[number]

    def plot(self, path: str | Path, metric: str | None = None, against: str | None = None) -> Path:
        """Draw a metric of every method, mean and one-sigma band over seeds.

        Args:
            path: the picture to write; its suffix picks the format: png, svg or pdf.
            metric: a column of `frame`; accuracy where something is classified, else the loss, unless given.
            against: "delay", "round" or "bytes", or, in virtual time, "seconds"; seconds where
                there are any, else the delay, unless given.
        """
        figures.check_suffix(path)
        metric = metric or self.primary_metric
        names = self.method_names
        figure = figures.plot_curves(self.frame, metric, against, method_names=names)
        return figures.save(figure, Path(path))

    def plot_network(self, path: str | Path, seed: int | None = None) -> Path:
        """Draw a network: links by p̂, clients by p.

        Args:
            path: the picture to write; its suffix picks the format: png, svg or pdf.
            seed: whose network; the first unless given.
        """
        figures.check_suffix(path)
        seed = next(iter(self.draws)) if seed is None else seed
        if seed not in self.draws:
            raise InvalidInput(
                f"seed={seed!r} is not one of this result; choose from {_listed(self.draws)}."
            )
        network, available = self.draws[seed].network, self.draws[seed].availability
        figure = figures.draw_network(network, available.p, available.p_hat, title=f"seed {seed}")
        return figures.save(figure, Path(path))


def _listed(seeds: Iterable[int]) -> str:
    return ", ".join(map(str, seeds))
