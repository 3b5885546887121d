"""A training script as one site of a run: blocks of local steps, exchanged in the background."""

from __future__ import annotations

import os
import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol

import torch
from torch import nn
from torch.optim import Optimizer
from typing_extensions import Self

from spodgt.errors import Failed, InvalidInput
from spodgt.sites import checkpoint
from spodgt.sites.connection import Connection
from spodgt.sites.correction import Correction
from spodgt.sites.exchange import Block
from spodgt.sites.hooks import OptimizerHooks, check_model, check_parameters, unwrap_optimizer
from spodgt.sites.layout import model_row

FOLDER_VARIABLE = "SPODGT_SITE"  # replaces the folder given to `join`, as in `spodgt simulate`


class HasState(Protocol):
    """A scheduler, gradient scaler or other object whose state belongs to the training."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> object: ...


@dataclass(frozen=True)
class BlockOptions:
    """When a block ends and what is kept; the arguments of `spodgt.join`."""

    block_steps: int | None = None
    block_seconds: float | None = None
    alpha: float = 1.0
    weight: float = 1.0
    max_norm: float | None = None
    max_silent_blocks: int | None = 10
    initial: str = "first"
    durability: str = "power"
    linger_seconds: float = 10.0
    checkpoint_blocks: int = 10

    def __post_init__(self) -> None:
        for key in ("block_steps", "block_seconds", "max_silent_blocks", "checkpoint_blocks"):
            value = getattr(self, key)
            if value is not None and not value > 0:
                raise InvalidInput(f"{key} must be positive, got {value!r}; use {key}=50.")
        if not 0 < self.alpha <= 1:
            raise InvalidInput(f"alpha must be in (0, 1], got {self.alpha!r}; use alpha=1.0.")
        if self.initial not in ("first", "own"):
            raise InvalidInput(f"initial must be 'first' or 'own', got {self.initial!r}; use 'first'.")
        if self.durability not in ("power", "process"):
            raise InvalidInput(
                f"durability must be 'power' or 'process', got {self.durability!r}; use 'power'."
            )


class Site:
    """One site of a run; made by `spodgt.join`, used as a context manager around the training loop."""

    def __init__(
        self,
        folder: str | Path,
        model: nn.Module,
        optimizer: Optimizer,
        options: BlockOptions,
        others: dict[str, HasState],
    ) -> None:
        check_model(model)
        self.folder = Path(os.environ.get(FOLDER_VARIABLE, folder))
        self.options = options
        self.optimizer = unwrap_optimizer(optimizer)
        self.row = model_row(model)
        check_parameters(self.row, self.optimizer)
        self.correction = Correction(self.row, options.weight, options.max_norm)
        self.saved_objects: dict[str, HasState] = {"optimizer": self.optimizer, **others}
        self.connection: Connection | None = None
        self.hooks: OptimizerHooks | None = None
        self.waited_seconds = 0.0  # spent by the training thread on exchanges
        self._blocks = 0  # since the start of this process
        self._block_began = time.monotonic()
        self._steps_before = 0  # made by earlier processes

    # --- for the user ----------------------------------------------------------------------------
    @property
    def name(self) -> str:
        """The name of the site in the manifest."""
        return self._connected().name

    @property
    def steps(self) -> int:
        """Optimizer steps made so far, those before a restart included; steps of a lost block are not."""
        made = 0 if self.hooks is None else self.hooks.steps
        return self._steps_before + made

    @property
    def blocks(self) -> int:
        """Blocks ended so far, those before a restart included."""
        return self._connected().node.state.k - 1

    def exchange(self) -> None:
        """End the block now, whatever its length."""
        self._end_block()

    def correct(self) -> None:
        """Correct the gradients now; call it before your own clipping, the step then adds nothing more."""
        if self.hooks is None:
            raise InvalidInput("site.correct() was called outside the with block of spodgt.join.")
        self.hooks.correct()

    def report(self, *, loss: float | None = None, accuracy: float | None = None) -> None:
        """Scores for `spodgt peer status` and `watch`."""
        scores = self._connected().scores
        if loss is not None:
            scores.loss = float(loss)
        if accuracy is not None:
            scores.accuracy = float(accuracy)

    def _connected(self) -> Connection:
        if self.connection is None:
            raise InvalidInput("the site is not connected; use it inside `with spodgt.join(...)`.")
        return self.connection

    # --- begin and end ---------------------------------------------------------------------------
    def __enter__(self) -> Self:
        options = self.options
        connection = Connection(
            self.folder,
            self.row.layout,
            self.row.read(),
            dtype=self.correction.dtype,
            initial=options.initial,
            alpha=options.alpha,
            max_silent_blocks=options.max_silent_blocks,
            durability=options.durability,
        )
        self.connection = connection
        state = connection.node.state
        self._steps_before = state.gradients
        if state.k > 1:
            self.row.write(state.method.x[0])
            checkpoint.load(self.folder, self.saved_objects, connection.journal.event)
        connection.start()
        try:
            if not connection.has_common_model():
                self._take_initial_model(connection)
            self._take_update()
        except BaseException:
            connection.close()
            raise
        self.hooks = OptimizerHooks(self.optimizer, self.correction, self._after_step, self._notify)
        self._block_began = time.monotonic()
        return self

    def _take_initial_model(self, connection: Connection) -> None:
        """Wait for the model with which the first client of the manifest began."""
        first = connection.membership.manifest.names[0]
        print(f"spodgt: {connection.name} waits for the initial model of {first}", file=sys.stderr)
        row = connection.exchange.wait_for_model()
        self.row.write(row)
        connection.note_common_model()
        connection.exchange.submit(Block(self.row.read(), None, 0))
        connection.exchange.drain()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self.hooks is not None
        connection = self._connected()
        self.hooks.remove()
        try:
            if error is None:
                self._end_block()
                self._save()
                connection.exchange.drain()
                connection.exchange.finish(self.options.linger_seconds)
                self._check_steps()
        finally:
            connection.close()

    def _check_steps(self) -> None:
        if self.steps == 0:
            warnings.warn(
                "optimizer.step() was never called on the optimizer given to spodgt.join, so nothing was "
                "exchanged; pass the optimizer that the loop uses.",
                stacklevel=3,
            )

    # --- between two steps -----------------------------------------------------------------------
    def _after_step(self) -> None:
        self._take_update()
        options = self.options
        is_over = options.block_steps is not None and self.correction.steps >= options.block_steps
        if options.block_seconds is not None:
            is_over |= time.monotonic() - self._block_began >= options.block_seconds
        if is_over:
            self._end_block()

    def _take_update(self) -> None:
        """Apply what has arrived to the present model: x += a (X - x), and the new correction."""
        update = self._connected().exchange.take_update()
        if update is None:
            return
        if update.correction is not None:
            self.correction.set_correction(update.correction)
        for row, weight in update.models:
            self.row.mix(row, weight)

    def _end_block(self) -> None:
        """Hand the block over to the exchange; waits only for the write of the block before."""
        began = time.monotonic()
        connection = self._connected()
        steps = self.correction.steps
        x = self.row.read()
        if not bool(torch.isfinite(x.sum())):
            raise Failed(
                f"the model of {connection.name} holds NaN or infinity after {self.steps} steps; nothing of "
                "this block was sent. Start again from the last exchange with a smaller learning rate."
            )
        connection.exchange.submit(Block(x, self.correction.end_block(), steps))
        self._blocks += 1
        if self._blocks % self.options.checkpoint_blocks == 0:
            self._save()
        self._wait_if_away(began)
        connection.exchange.wait_for_news()
        self._take_update()
        self._block_began = time.monotonic()
        self.waited_seconds += self._block_began - began

    def _save(self) -> None:
        """Optimizer, scheduler and scaler: beside the state of the exchange."""
        checkpoint.save(self.folder, self.saved_objects)

    def _wait_if_away(self, block_end: float) -> None:
        """Stay idle for the time of a block as often as the manifest states, in simulations of absence."""
        connection = self._connected()
        capacity = connection.membership.terms.capacity
        duration = block_end - self._block_began
        attempt = self._blocks
        while not capacity.computes(attempt):
            time.sleep(duration)
            attempt += 1_000_003  # another draw of the same stream

    def _notify(self, text: str) -> None:
        self._connected().journal.event("not finite", text)
        warnings.warn(f"{self.name}: {text}.", stacklevel=4)
