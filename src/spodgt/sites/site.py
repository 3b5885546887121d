"""A training script as one site of a run: the context manager that `spodgt.join` returns."""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.hooks import RemovableHandle

from spodgt.errors import Failed, InvalidInput
from spodgt.sites.checkpoint import Checkpoint, HasState, Notify
from spodgt.sites.connection import Connection
from spodgt.sites.correction import Correction
from spodgt.sites.exchange import ExchangeOptions
from spodgt.sites.hooks import (
    OptimizerHooks,
    check_model,
    check_parameters,
    unwrap_optimizer,
    warn_of_unknown_decay,
)
from spodgt.sites.layout import ModelRow, model_row
from spodgt.sites.lent_model import LentModel
from spodgt.sites.local_training import LocalTraining
from spodgt.sites.options import BlockOptions
from spodgt.sites.replicas import Replicas
from spodgt.sites.seeds import seed_from_environment

_guards: weakref.WeakKeyDictionary[Optimizer, RemovableHandle] = weakref.WeakKeyDictionary()
FOLDER_VARIABLE = "SPODGT_SITE"  # replaces the folder given to `join`, as in `spodgt simulate`


class Site:
    """One site of a run, used as a context manager around the training loop.

    Args:
        folder: Of the site.
        model: Trained by the script.
        optimizer: Of the script.
        options: Those of `spodgt.join`.
        saved_objects: Scheduler and gradient scaler, by name; saved beside the optimizer.
    """

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module,
        optimizer: Optimizer,
        options: BlockOptions,
        saved_objects: dict[str, HasState],
    ) -> None:
        check_model(model)
        self.folder = _folder_of_site(folder)
        self.options = options
        self.model = model
        self.optimizer = unwrap_optimizer(optimizer)
        self.row = model_row(model)
        check_parameters(self.row, self.optimizer)
        warn_of_unknown_decay(self.optimizer)
        self.replicas = Replicas.of_this_process()
        if self.replicas.count > 1 and options.block_seconds is not None:
            raise InvalidInput(
                "block_seconds would end blocks at different steps in the processes of "
                "DistributedDataParallel; use block_steps."
            )
        self.correction = Correction(self.row, options.weight, options.max_norm)
        seed_from_environment()
        self.saved_objects = {"optimizer": self.optimizer, **saved_objects}
        self._connection: Connection | None = None
        self._hooks: OptimizerHooks | None = None
        self._training: LocalTraining | None = None
        self._steps_before = 0  # made by earlier processes
        self._is_joined = False
        self._guard = _guard(self.optimizer)

    @property
    def name(self) -> str:
        """The name of the site in the manifest."""
        if self._connection is None:
            raise InvalidInput("the site is not connected; use it inside `with spodgt.join(...)`.")
        return self._connection.name

    @property
    def steps(self) -> int:
        """Optimizer steps so far, with those that earlier processes have committed."""
        made = 0 if self._hooks is None else self._hooks.steps
        return self._steps_before + made

    @property
    def exchange_seconds(self) -> float:
        """Seconds in which the training waited for exchanges."""
        return 0.0 if self._training is None else self._training.exchange_seconds

    def exchange(self) -> None:
        """End the block now, whatever its length."""
        self._running().end_block()

    @contextmanager
    def lend(self) -> Iterator[LentModel]:
        """Code inside trains a copy of the model with an optimizer of its own, as a Flower app does."""
        loan = LentModel(self.correction, self._running(), self.options)
        try:
            yield loan
        finally:
            self._steps_before += loan.take_back()

    def correct(self) -> None:
        """Correct the gradients now, before your own clipping.

        Call it once for each step, after the last backward pass. With a GradScaler, pass `scaler`
        to `spodgt.join`, or call `scaler.unscale_(optimizer)` before.
        """
        if self._hooks is None or not self._is_joined:
            raise InvalidInput("site.correct() was called outside `with spodgt.join(...)`.")
        self._hooks.correct()

    def report(self, *, loss: float | None = None, accuracy: float | None = None) -> None:
        """Set the scores that `spodgt peer status` and `watch` show, and write them to the log.

        Args:
            loss: Of the present model, on data of this site.
            accuracy: The same.
        """
        if self._connection is None:
            return  # not rank 0 of DistributedDataParallel
        loss = _to_score("loss", loss)
        accuracy = _to_score("accuracy", accuracy)
        scores = self._connection.scores
        if loss is not None:
            scores.loss = loss
        if accuracy is not None:
            scores.accuracy = accuracy
        row = {"event": "scores", "steps": self.steps, "loss": loss, "accuracy": accuracy}
        self._connection.journal.append(row)
        if not self._is_joined:
            self._connection.reporter.report(last=True)  # else the exchange does it soon

    def __enter__(self) -> Self:
        self._guard.remove()
        if self.replicas.is_peer:
            self._connection = _connect(self.folder, self.row, self.correction.dtype, self.options)
        try:
            self._begin()
        except BaseException:
            if self._connection is not None:
                self._connection.close()
            raise
        return self

    def _begin(self) -> None:
        """Continue the training of earlier processes, and correct the steps from now on."""
        steps = 0
        saved = None
        notify: Notify = _ignore
        connection = self._connection
        if connection is not None:
            notify = connection.inform
        checkpoint = Checkpoint(self.folder, self.saved_objects, notify)
        if connection is not None:
            steps = connection.node.state.gradients
            if connection.is_restored:
                saved = checkpoint.read()
        self._steps_before, saved = self.replicas.share((steps, saved))
        if saved is not None:
            checkpoint.restore(saved)
        training = LocalTraining(
            self.model,
            self.optimizer,
            self.correction,
            self.options,
            self.replicas,
            connection,
            checkpoint,
        )
        training.begin()
        self._training = training
        self._hooks = OptimizerHooks(
            self.optimizer,
            self.correction,
            training.after_step,
            training.warn,
            self.saved_objects.get("scaler"),
        )
        self._is_joined = True

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._hooks is not None
        self._hooks.remove()
        training = self._running()
        connection = self._connection
        try:
            if error is None:
                training.end_block()
            if error is None and connection is not None:
                training.save()
                connection.finish(self.options.linger_seconds)  # informs the neighbours
        finally:
            self._is_joined = False
            if connection is not None:
                connection.close()
        if error is None and connection is not None and self.steps == 0:
            warnings.warn(_describe_idle_training(self._hooks), stacklevel=2)

    def _running(self) -> LocalTraining:
        if self._training is None or not self._is_joined:
            raise InvalidInput("the site is not connected; use it inside `with spodgt.join(...)`.")
        return self._training


def _folder_of_site(folder: str | Path) -> Path:
    """The folder of the environment, if there is one, or that which was given."""
    from_environment = os.environ.get(FOLDER_VARIABLE)
    if from_environment is not None:
        return Path(from_environment)
    if not isinstance(folder, str | os.PathLike):
        raise InvalidInput(
            f"folder must be a path, got {folder!r}; give the folder of one client, such as "
            "'peers/lima'."
        )
    return Path(folder)


def _refuse_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
    raise Failed(
        "optimizer.step() was called outside `with spodgt.join(...)`, so nothing would be exchanged; "
        "put the training loop inside the with block."
    )


def _guard(optimizer: Optimizer) -> RemovableHandle:
    """Refuse steps until the with block is entered; replaces the guard of an earlier `join`."""
    earlier = _guards.get(optimizer)
    if earlier is not None:
        earlier.remove()
    handle = optimizer.register_step_pre_hook(_refuse_step)
    _guards[optimizer] = handle
    return handle


def _to_score(name: str, value: float | None) -> float | None:
    if value is None:
        return None
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise InvalidInput(
            f"{name} must be a number, got {value!r}; pass for example {name}={name}.item()."
        ) from None


def _describe_idle_training(hooks: OptimizerHooks) -> str:
    """Why a site has made no step."""
    if hooks.without_gradient:
        return (
            f"{hooks.without_gradient} steps had no gradient, so nothing was learned here; call "
            "loss.backward() on the model given to spodgt.join before optimizer.step()."
        )
    return (
        "optimizer.step() was never called on the optimizer given to spodgt.join, so nothing was "
        "learned here; pass the optimizer that the loop uses."
    )


def _connect(folder: Path, row: ModelRow, dtype: torch.dtype, options: BlockOptions) -> Connection:
    """Open the folder, continue from its state, and begin to exchange in the background."""
    connection = Connection(
        folder,
        row,
        dtype=dtype,
        initial=options.initial,
        options=ExchangeOptions(options.alpha, options.max_silent_blocks),
        durability=options.durability,
    )
    try:
        if connection.is_restored:
            row.write(connection.node.state.method.x[0])
        connection.start()
    except BaseException:
        connection.close()
        raise
    return connection


def _ignore(kind: str, text: str) -> None:
    """Events of the processes that rank 0 of DistributedDataParallel reports for."""
