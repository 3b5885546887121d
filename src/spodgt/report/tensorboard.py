"""TensorBoard event files of a result: a run for each method and seed.

Metrics are written twice: against the round (`accuracy`) and against the delay (`accuracy by delay`, its
step is the delay rounded to a whole number), since TensorBoard knows no other axis.
"""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from spodgt.errors import InvalidInput
from spodgt.record.metrics import METRICS


def check() -> None:
    """Say before the work, not after it, that the package is missing."""
    try:
        import torch.utils.tensorboard  # noqa: F401
    except ImportError:
        raise InvalidInput(
            "--tensorboard needs the package tensorboard, which is not installed; "
            "run pip install 'spodgt[tensorboard]'."
        ) from None


def write(frame: pd.DataFrame, folder: Path) -> Path:
    """Write the evaluations in `frame` to `folder`/METHOD/seed-N.

    Args:
        frame: The frame of a record.
        folder: Where the event files go.
    """
    check()
    from torch.utils.tensorboard import SummaryWriter

    metrics = [name for name in METRICS if name in frame]
    for (method, seed), rows in frame.groupby(["algorithm", "seed"], sort=False):
        with SummaryWriter(str(folder / str(method).replace("/", "_") / f"seed-{seed}")) as writer:
            for row in rows.to_dict("records"):
                for name in metrics:
                    if pd.notna(row[name]):
                        writer.add_scalar(name, row[name], int(row["round"]))
                        writer.add_scalar(f"{name} by delay", row[name], round(row["delay"]))
    return folder
