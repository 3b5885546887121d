"""One round of a batch of runs, as methods see it (`types.Round` and `algorithms.rounds`).

Gradients, statistics and counters are the same in the simulator and in distributed processes; they
differ in the `Mixer`, which multiplies rows by a mixing matrix.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from spodgt.algorithms.compose.codecs import Codec, IntervalQuantizer
from spodgt.algorithms.deprecated import OldRoundNames
from spodgt.kernels.links import matrix_diagonal, move_into_intervals
from spodgt.participation.local_blocks import block_ends
from spodgt.participation.roles import Roles
from spodgt.runtimes.batch import MixingMatrix
from spodgt.runtimes.held_clients import ClientStatistics, HeldClients
from spodgt.runtimes.world import Tally
from spodgt.types import Bools, Floats, Ints, Minibatches

_MODEL_MATRIX = {  # the matrix that mixes models, by `Traits.mixing`
    "pull+push": MixingMatrix.PULL,
    "pull": MixingMatrix.PULL,
    "push": MixingMatrix.PUSH,
    "gossip": MixingMatrix.GOSSIP,
}


class Mixer(Protocol):
    """Multiplies the rows of a round by mixing matrices of the active links."""

    def mix(
        self, x: Tensor, matrix: MixingMatrix, active: Bools, codec: Codec | None = None
    ) -> Tensor: ...
    def mix_differences(self, x: Tensor, active: Bools) -> Tensor: ...  # (Ŵ - I) x
    def share_packed(self, x: Tensor, codec: IntervalQuantizer) -> tuple[Tensor, Ints]:
        """Packed rows of the senders, and (clients of the batch,) the index of each client."""
        ...

    def average(self, x: Tensor) -> Tensor: ...  # the mean over all clients of a run


@dataclass(eq=False)
class RoundLinks:
    """The active links of a round, their weights, and the counters of their messages.

    Args:
        held: the clients of this process.
        pull: (links of the batch,) links that carry models.
        push: (links of the batch,) links that carry trackers.
        roles: the weights of this round, if they change between rounds.
        tally: the counters.
        counted: links with a message of this round.
    """

    held: HeldClients
    pull: Bools
    push: Bools
    roles: Roles | None
    tally: Tally
    counted: Bools | None = None

    def mask(self, matrix: MixingMatrix) -> Bools:
        """(links of the batch,) active links."""
        return self.push if matrix is MixingMatrix.PUSH else self.pull

    def weights(self, matrix: MixingMatrix) -> Floats:
        """(links of the batch,) entries of a mixing matrix."""
        if self.roles is None or matrix is MixingMatrix.GOSSIP:
            return self.held.batch.weights[matrix.value]
        return self.roles.b if matrix is MixingMatrix.PUSH else self.roles.a

    def keepers(self, matrix: MixingMatrix) -> Ints:
        """(links of the batch,) the end of each link that keeps the weight that is not sent."""
        links = self.held.batch.links
        return links.senders if matrix is MixingMatrix.PUSH else links.receivers

    def self_weights(self, matrix: MixingMatrix) -> Floats:
        """(clients of the batch,) the diagonal of a mixing matrix."""
        clients = self.held.batch.links.clients
        keepers = self.keepers(matrix)
        return matrix_diagonal(self.weights(matrix), self.mask(matrix), keepers, clients)

    def count(self, active: Bools, size: int) -> None:
        """Count `size` bytes on active links; the vectors of a round share one message."""
        index = self.held.tally_index.links
        into_here = active[self.held.in_links]
        new = active if self.counted is None else active & ~self.counted
        self.tally.messages[index] += new[self.held.in_links]
        self.tally.bytes[index] += into_here * size
        self.counted = active if self.counted is None else active | self.counted


class BatchRound(OldRoundNames):
    """Round k of the clients that this process holds.

    Args:
        k: number of the round.
        links: its active links.
        mixer: of the runtime.
        computes: (clients of the batch,) active clients.
        statistics: what clients keep besides the parameters; changed by this round.
    """

    def __init__(
        self,
        k: int,
        links: RoundLinks,
        mixer: Mixer,
        computes: Bools,
        statistics: ClientStatistics,
    ) -> None:
        self.k = k
        self.links = links
        self.mixer = mixer
        self.held = links.held
        self.active_clients = computes
        self.statistics = statistics
        self.statistics_updated = False  # by the first gradient of the round
        self.statistics_exchanged = False  # with the models
        held = links.held
        device = held.batch.device
        self.clients = max(held.batch.sizes)
        self.client_index = held.client_index
        self.client_weight = held.client_weight
        self.p = held.p
        self.computes = torch.from_numpy(computes[held.clients]).to(device)[:, None]
        self.step_weight = torch.ones_like(held.p)
        self.reset_tracker = torch.zeros_like(self.computes)
        if held.algorithm.traits.local_steps:
            self.block_ends = _block_ends(held, k)
        if links.roles is not None:
            self.step_weight = held.column(links.roles.step_weight)
            reset = torch.from_numpy(links.roles.reset_tracker[held.clients])
            self.reset_tracker = reset.to(device)[:, None]

    @property
    def push_self_weight(self) -> Tensor:
        return self.held.column(self.links.self_weights(MixingMatrix.PUSH))

    # --- gradients -------------------------------------------------------------------------------
    def grad(self, x: Tensor) -> Tensor:
        held = self.held
        here = self.active_clients[held.clients]
        self.links.tally.gradients[held.tally_index.clients] += here
        clients = held.clients[here]
        keys = held.batch.keys[clients]
        minibatches = Minibatches(clients, keys, held.batch.client_index[clients], self.k)
        if len(clients) == len(x) and not self.statistics.columns:
            return held.batch.gradient(x, minibatches)
        g = torch.zeros_like(x)
        if len(clients):
            rows = torch.from_numpy(held.row[clients]).to(x.device)
            g[rows] = self._grad_of_rows(x, rows, minibatches)
        return g

    def _grad_of_rows(self, x: Tensor, rows: Tensor, minibatches: Minibatches) -> Tensor:
        """Gradients with statistics; the first gradients of a round update these."""
        gradient = self.held.batch.gradient
        if not self.statistics.columns:
            return gradient(x[rows], minibatches)
        models = torch.cat([x[rows], self.statistics.values[rows]], 1)
        g = gradient(models, minibatches)
        if not self.statistics_updated:
            self.statistics_updated = True
            self.statistics.update(rows, models[:, x.shape[1] :])
        return g

    # --- mixing ----------------------------------------------------------------------------------
    def pull(self, x: Tensor, codec: Callable[[int], IntervalQuantizer] | None = None) -> Tensor:
        if codec is not None:
            self._start_mixing(x, MixingMatrix.PULL, codec(self.k))
            return _pull_intervals(x, self.links, self.mixer, codec(self.k))
        return self._mix(x, MixingMatrix.PULL)

    def push(self, y: Tensor, codec: Codec | None = None) -> Tensor:
        return self._mix(y, MixingMatrix.PUSH, codec)

    def gossip(self, x: Tensor) -> Tensor:
        return self._mix(x, MixingMatrix.GOSSIP)

    def gossip_difference(self, x: Tensor) -> Tensor:
        self._start_mixing(x, MixingMatrix.GOSSIP)
        return self.mixer.mix_differences(x, self.links.mask(MixingMatrix.GOSSIP))

    def mix_columns(self, x: Tensor, how: str, columns: Callable[[int], slice]) -> Tensor:
        mixed = x.clone()
        part = x[:, columns(self.k)].contiguous()
        mixed[:, columns(self.k)] = self.pull(part) if how == "pull" else self.push(part)
        return mixed

    def average(self, x: Tensor) -> Tensor:
        if self.statistics.exchanged_columns and not self.statistics_exchanged:
            self.statistics_exchanged = True
            self.statistics.replace_exchanged(self.mixer.average(self.statistics.exchanged()))
        return self.mixer.average(x)

    def _mix(self, x: Tensor, matrix: MixingMatrix, codec: Codec | None = None) -> Tensor:
        """Multiply the rows x by a mixing matrix of the active links."""
        self._start_mixing(x, matrix, codec)
        return self.mixer.mix(x, matrix, self.links.mask(matrix), codec)

    def _start_mixing(
        self, x: Tensor, matrix: MixingMatrix, codec: Codec | IntervalQuantizer | None = None
    ) -> None:
        """Count the messages of a mixing call, and exchange statistics in that of the models.

        Receivers average statistics, so a push of models uses A for them.
        """
        size = x.shape[1] * x.element_size()
        if codec is not None:
            size = codec.size(x.shape[1], x.element_size())
        active = self.links.mask(matrix)
        self.links.count(active, size)
        if not self.statistics.exchanged_columns or self.statistics_exchanged:
            return
        if matrix is not _MODEL_MATRIX.get(self.held.algorithm.traits.mixing):
            return
        self.statistics_exchanged = True
        sent = self.statistics.exchanged()
        self.links.count(active, sent.shape[1] * sent.element_size())
        average = MixingMatrix.PULL if matrix is MixingMatrix.PUSH else matrix
        self.statistics.replace_exchanged(self.mixer.mix(sent, average, active))


def _block_ends(held: HeldClients, k: int) -> Tensor:
    """(clients, 1) bool: clients with a block of local steps that ends in round k."""
    ends = [block_ends(run.availability, range(k, k + 1))[0] for run in held.batch.live]
    here = np.concatenate(ends)[held.clients]
    return torch.from_numpy(here).to(held.batch.device)[:, None]


def _pull_intervals(x: Tensor, links: RoundLinks, mixer: Mixer, codec: IntervalQuantizer) -> Tensor:
    """Move models towards the intervals that the active in-links carry."""
    packed, index = mixer.share_packed(x, codec)
    centre, half = codec.unpack(packed, x.shape[1], x.dtype)
    senders = links.held.batch.links.senders
    receivers = links.held.batch.links.receivers
    used = np.flatnonzero(links.mask(MixingMatrix.PULL))
    used = used[links.held.row[receivers[used]] >= 0]
    rows = links.held.row[receivers[used]]
    weights = links.weights(MixingMatrix.PULL)[used]
    return move_into_intervals(x, centre, half, rows, index[senders[used]], weights)
