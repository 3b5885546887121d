"""Seeds of the random numbers of a site in `spodgt simulate`."""

from __future__ import annotations

import os
import random

import numpy as np
import torch

SEED_VARIABLE = "SPODGT_SEED"  # set by `spodgt simulate`, one value per site


def seed_from_environment() -> None:
    """Seed `random`, NumPy and torch if `SPODGT_SEED` is set.

    Called when a script joins, so that copies of one script on one machine draw different batches.
    """
    text = os.environ.get(SEED_VARIABLE)
    if text is None:
        return
    seed = int(text)
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - scripts and their libraries use the global generator
    torch.manual_seed(seed)
