"""The data set inside the wheel: a stratified tenth of Fashion-MNIST, so everything runs offline.

Fashion-MNIST is © 2017 Zalando SE, under the MIT licence that lies next to the files.
`tools/make_embedded.py` makes them; `choose` is the rule it follows.
"""

from __future__ import annotations

from importlib.resources import as_file, files
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spodgt.problems.data.formats import Bytes, read_pair
from spodgt.rng import generator

FOLDER = "fashion-mnist-small"
PER_CLASS = {"train": 600, "t10k": 100}
_FIX = "reinstall spodgt, whose files are damaged"


def path() -> Path:
    """Where the files lie, for a reader; `arrays` works also where the package is not unpacked."""
    return Path(str(files(__package__) / FOLDER))


def arrays(split: str, shape: tuple[int, int, int], classes: int) -> tuple[Bytes, Bytes]:
    """Images and labels of "train" or "t10k"."""
    folder = files(__package__) / FOLDER
    with (
        as_file(folder / f"{split}-images-idx3-ubyte.xz") as images,
        as_file(folder / f"{split}-labels-idx1-ubyte.xz") as labels,
    ):
        return read_pair(images, labels, shape, classes, _FIX)


def choose(train: NDArray[np.integer], test: NDArray[np.integer]) -> dict[str, NDArray[np.int64]]:
    """Which samples of the full data set are embedded: sorted indices for "train" and "t10k".

    Drawn class by class without replacement from `generator(0, "embedded")`, first train, then test.
    """
    draws = generator(0, "embedded")
    chosen: dict[str, NDArray[np.int64]] = {}
    for split, targets in (("train", train), ("t10k", test)):
        members = [np.flatnonzero(targets == label) for label in np.unique(targets)]
        picks = [draws.choice(one, PER_CLASS[split], replace=False) for one in members]
        chosen[split] = np.sort(np.concatenate(picks)).astype(np.int64)
    return chosen
