"""Committed vectors as views of the file that holds them, so that memory holds them once at most.

Tracker, contribution and folded totals are read once in a block. After a commit they are replaced
by views of their slots in the file of the state; the system keeps as much of it in memory as there
is room for. A commit writes to the other slot of a vector, so a view of the newest is not changed.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from spodgt.peer.protocol.client_state import State
from spodgt.peer.storage.state_store import VECTORS, DiskStateStore

_SMALLEST = 2**16  # numbers of a vector that is worth a view


def map_committed(state: State, store: DiskStateStore) -> State:
    """The state with views in place of y, g and z, which must be what the store has committed."""
    if state.z.shape[1] < _SMALLEST:
        return state
    y, g, z = (_view(store, name) for name in ("y", "g", "z"))
    return state._replace(method=state.method._replace(y=y[None], g=g[None]), z=z[None])


def _view(store: DiskStateStore, name: str) -> Tensor:
    slot = store.slots[name]
    dtype = np.dtype(slot["dtype"])
    start = slot["at"] + slot["slot"] * slot["n"] * dtype.itemsize
    # copy on write: nothing can be written to the file through it
    view = np.memmap(store.path / VECTORS, dtype, "c", start, (slot["n"],))
    return torch.from_numpy(view)
