"""The training thread of a site: what happens between two optimizer steps."""

from __future__ import annotations

import time
import warnings

from torch import nn
from torch.optim import Optimizer

from spodgt.errors import Failed
from spodgt.sites.checkpoint import Checkpoint
from spodgt.sites.connection import Connection
from spodgt.sites.correction import Correction
from spodgt.sites.handover import Block
from spodgt.sites.hooks import check_parameters
from spodgt.sites.layout import check_unchanged
from spodgt.sites.options import BlockOptions
from spodgt.sites.replicas import Replicas
from spodgt.tensors import is_finite, new_row

_OTHER_DRAW = 1_000_003  # distance of draws of one block: a site may be away for several blocks


class LocalTraining:
    """Ends blocks and applies what has arrived.

    Args:
        model: Trained by the script.
        optimizer: Of the script.
        correction: Records gradients; holds the row of the model.
        options: When a block ends.
        replicas: Processes inside the site.
        connection: To the other sites; None in all processes but rank 0.
        checkpoint: Of optimizer, scheduler and scaler.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        correction: Correction,
        options: BlockOptions,
        replicas: Replicas,
        connection: Connection | None,
        checkpoint: Checkpoint,
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.correction = correction
        self.row = correction.row
        self.options = options
        self.replicas = replicas
        self.connection = connection
        self.checkpoint = checkpoint
        self.exchange_seconds = 0.0  # in which the training thread did not train
        self._blocks = 0  # of this process
        self._block_began = time.monotonic()

    def use(self, correction: Correction) -> None:
        """Continue the block with another copy of the model, or return to the first one."""
        self.correction = correction
        self.row = correction.row

    def begin(self) -> None:
        """Take over the initial model and the correction."""
        connection = self.connection
        if connection is not None:
            if connection.needs_initial_model:
                first = connection.membership.manifest.names[0]
                connection.inform("waiting", f"waits for the initial model of {first}")
                self.row.write(connection.handover.take_initial_model())
            self._take_update(connection)
        self._copy_from_peer()
        self._block_began = time.monotonic()

    def after_step(self) -> None:
        """Apply what has arrived, and end the block if it is over."""
        options = self.options
        if self.connection is not None and self.replicas.count == 1:
            self._take_update(self.connection)
        is_over = options.block_steps is not None and self.correction.steps >= options.block_steps
        if options.block_seconds is not None:
            is_over |= time.monotonic() - self._block_began >= options.block_seconds
        if is_over:
            self.end_block()

    def end_block(self) -> None:
        """Hand the block over to the exchange; waits only for the write of the block before."""
        began = time.monotonic()
        check_unchanged(self.row, self.model)
        check_parameters(self.row, self.optimizer)
        connection = self.connection
        steps = self.correction.steps
        rows = new_row if connection is None else connection.store.new_row
        mean_gradient = self.correction.end_block(rows)
        if connection is not None:
            x = self.row.read(rows)
            if not is_finite(x):
                raise Failed(
                    f"the model of {connection.name} holds NaN or infinity; nothing of this block "
                    "was sent. Start again: the site continues from its last exchange. Use a "
                    "smaller step size (lr)."
                )
            connection.submit(Block(x, mean_gradient, steps))
            del x, mean_gradient  # rows are used again
            self._blocks += 1
            if self._blocks % self.options.checkpoint_blocks == 0:
                self.save()
            self._wait_while_away(connection, began - self._block_began)
            connection.wait_for_news()
            self._take_update(connection)
        self._copy_from_peer()
        self._block_began = time.monotonic()
        self.exchange_seconds += self._block_began - began

    def save(self) -> None:
        """Write the states of optimizer, scheduler and scaler beside that of the exchange."""
        if self.connection is not None:
            self.checkpoint.save()

    def warn(self, text: str) -> None:
        """Log what an operator must know, and warn the user of the script."""
        if self.connection is not None:
            self.connection.journal.event("not finite", text)
        warnings.warn(f"{text}.", stacklevel=5)

    def _take_update(self, connection: Connection) -> None:
        """Apply what has arrived to the present model: x += a (X - x), and the new correction."""
        update = connection.handover.take_update()
        if update is None:
            return
        if update.correction is not None:
            self.correction.set_correction(*update.correction)
            connection.handover.finish_correction()
        for model in update.models:
            self.row.mix(model.row, model.weight, model.half)

    def _copy_from_peer(self) -> None:
        tensors = [*self.row.parameters, *self.row.buffers, self.correction.correction]
        self.replicas.copy_from_peer(tensors)

    def _wait_while_away(self, connection: Connection, seconds: float) -> None:
        """Stay idle for the time of a block while the site is absent by its table `compute`."""
        capacity = connection.membership.terms.capacity
        draw = connection.blocks_before + self._blocks
        while not capacity.computes(draw):
            time.sleep(seconds)
            draw += _OTHER_DRAW
