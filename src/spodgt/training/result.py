"""The result of `train` and `compare`: the record, and states and models in memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from torch import Tensor, nn

from spodgt import figures
from spodgt.errors import InvalidInput
from spodgt.figures import FigureStyle
from spodgt.network import Network
from spodgt.network.names import client_number
from spodgt.problems.protocols import HasModel
from spodgt.record.models import MAX_MODEL_BYTES
from spodgt.record.record import Record
from spodgt.runtimes.world import Draw
from spodgt.tensors import mean
from spodgt.validation import check_choice

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes


@dataclass(eq=False, repr=False)
class Result(Record):
    """A record, with the draws of all seeds, and states and models.

    Args:
        states: Of all rounds of the last method, by seed, with `keep_states=True`.
        draws: By seed.
        models: (clients, columns) by method and seed: at the end, or where the run was interrupted.
        best_models: The same of the best evaluations, with `keep="best"`.
    """

    states: dict[int, Any] = field(default_factory=dict)
    draws: dict[int, Draw] = field(default_factory=dict)
    models: dict[tuple[str, int], Tensor] = field(default_factory=dict)
    best_models: dict[tuple[str, int], Tensor] = field(default_factory=dict)

    def model(
        self,
        method: str | None = None,
        seed: int | None = None,
        client: int | str = "average",
        *,
        best: bool = False,
    ) -> nn.Module:
        """The module of the problem with trained parameters and running statistics.

        Args:
            method: Its label; optional if there is one method.
            seed: Of the run; the first by default.
            client: A client's name or number, or "average" (default) for the average of all
                clients.
            best: The models of the best evaluation, which `keep="best"` keeps; default: the last
                ones, of an interrupted run those of the round in which it was interrupted.
        """
        problem, x = self._trained(method, seed, client, best=best)
        return problem.module(x)

    def state_dict(
        self,
        method: str | None = None,
        seed: int | None = None,
        client: int | str = "average",
        *,
        best: bool = False,
    ) -> dict[str, Tensor]:
        """The tensors of a trained model by name, for `torch.nn.Module.load_state_dict`.

        Args:
            method: As for `model`.
            seed: As for `model`.
            client: As for `model`.
            best: As for `model`.
        """
        problem, x = self._trained(method, seed, client, best=best)
        return problem.state_dict(x)

    def _trained(
        self, method: str | None, seed: int | None, client: int | str, *, best: bool
    ) -> tuple[HasModel, Tensor]:
        """The problem of a run, and its trained model."""
        if method is None and len(self.methods) == 1:
            (method,) = self.methods
        check_choice("method", method, self.methods, "this result")
        draw = self._draw(seed)
        problem = draw.problem
        if not isinstance(problem, HasModel):
            raise InvalidInput(
                f"problem must have a torch module to give a model, got {type(problem).__name__}; "
                "use spodgt.Learning."
            )
        models = self._models_of_run(str(method), draw.seed, best=best)
        return problem, _select_model(models, draw.network, client)

    def _models_of_run(self, method: str, seed: int, *, best: bool) -> Tensor:
        """(clients, columns) the last or the best models of a run."""
        models = (self.best_models if best else self.models).get((method, seed))
        if models is not None:
            return models
        if best:
            raise InvalidInput(
                f"best=True needs the best model of {method}, which was not kept; "
                'train with keep="best".'
            )
        raise InvalidInput(
            f"{method} (seed {seed}) has no model: it was not started; run it again."
        )

    def _draw(self, seed: int | None) -> Draw:
        """The draw of a seed; the first if None."""
        if not self.draws:
            raise InvalidInput(
                "a result that was read from a folder has no modules; "
                "use spodgt export FOLDER model.safetensors."
            )
        if seed is None:
            return next(iter(self.draws.values()))
        check_choice("seed", seed, self.draws, "this result")
        return self.draws[seed]

    @overload
    def plot(
        self,
        path: str | Path,
        metric: str | None = None,
        against: str | None = None,
        *,
        ax: None = None,
        methods: Sequence[str] | None = None,
        width: FigureStyle = "screen",
    ) -> Path: ...
    @overload
    def plot(
        self,
        path: None = None,
        metric: str | None = None,
        against: str | None = None,
        *,
        ax: Axes | None = None,
        methods: Sequence[str] | None = None,
        width: FigureStyle = "screen",
    ) -> Axes: ...
    def plot(
        self,
        path: str | Path | None = None,
        metric: str | None = None,
        against: str | None = None,
        *,
        ax: Axes | None = None,
        methods: Sequence[str] | None = None,
        width: FigureStyle = "screen",
    ) -> Path | Axes:
        """Draw a metric of every method: mean over seeds, and a band of one standard deviation.

        Args:
            path: Of the picture; its suffix is the format: png, svg or pdf. It is returned. None:
                no file; the axes are returned, and a notebook shows the picture.
            metric: A column of `frame`; the primary metric by default.
            against: "delay", "round", "bytes" or, in virtual time, "seconds"; by default seconds if
                there are any, else the delay.
            ax: Axes of matplotlib to draw on, such as one of several panels; None: a new figure.
            methods: Labels of the methods to draw; all by default.
            width: "column" or "page" of a paper, or "screen".
        """
        if path is not None:
            figures.check_suffix(path)
        if width not in figures.FIGURE_STYLES:
            raise InvalidInput(f"width={width!r} is not known; use 'column', 'page' or 'screen'.")
        figure = figures.plot_curves(
            self._frame_of(methods),
            metric or self.primary_metric,
            against,
            style=width,
            method_names=self.method_names,
            evaluated_on=self.evaluated_on,
            axes=ax,
        )
        if path is not None:
            return figures.save(figure, Path(path))
        if ax is None:
            figures.show_in_notebook(figure)
        return ax or figure.axes[0]

    def _frame_of(self, methods: Sequence[str] | None) -> pd.DataFrame:
        """The evaluations of some methods, by their labels; of all if None."""
        if methods is None:
            return self.frame
        for label in methods:
            check_choice("methods", label, self.methods, "this result")
        return self.frame[self.frame["method"].isin(list(methods))]

    def plot_network(self, path: str | Path, seed: int | None = None) -> Path:
        """Draw a network, with the probabilities of clients (p) and links (p̂).

        Args:
            path: Of the picture; its suffix is the format: png, svg or pdf.
            seed: Of the network; the first by default.
        """
        figures.check_suffix(path)
        networks = self.drawn()
        if seed is None:
            seed = next(iter(networks))
        check_choice("seed", seed, networks, "this result")
        network = networks[seed]
        title = f"seed {seed}"
        figure = figures.draw_network(network, network.p, network.p_hat, title=title)
        return figures.save(figure, Path(path))


def _select_model(models: Tensor, network: Network, client: int | str) -> Tensor:
    """The model of a client, or the average model."""
    if client == "average":
        return mean(models)
    number = client_number(client, network.names, network.clients, "client")
    if len(models) < network.clients:
        raise InvalidInput(
            f"client={client} is not there: clients' models of more than "
            f'{MAX_MODEL_BYTES // 2**20} MiB are not kept; use client="average".'
        )
    return models[number]
