"""The global random generators of torch, NumPy and Python, which code of the user draws from."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


def seed_all(seed: int) -> None:
    """Seed the global generators of torch, NumPy and Python."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)


@contextmanager
def seeded(seed: int | None) -> Iterator[None]:
    """Seed the global generators inside the block and restore their states after it.

    Args:
        seed: None does not seed; the states are restored all the same.
    """
    numpy_state = np.random.get_state()  # noqa: NPY002
    python_state = random.getstate()
    with torch.random.fork_rng():
        if seed is not None:
            seed_all(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def random_state() -> tuple[object, ...]:
    """A value that changes whenever a number is drawn from a global generator."""
    numpy_position = np.random.get_state(legacy=False)["state"]["pos"]  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes(), numpy_position, random.getstate()
