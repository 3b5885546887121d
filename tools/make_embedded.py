"""Make the data set inside the wheel from the full Fashion-MNIST.

    python tools/make_embedded.py FOLDER_WITH_THE_FOUR_FILES

Deterministic: `choose` picks 600 + 100 images of every class, and they are
written in their old order as IDX files packed by xz, which makes them a seventh smaller than gzip.
(Another version of liblzma may pack the same contents into other bytes.)
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from spodgt.problems.data.catalog import CATALOG
from spodgt.problems.data.datasets import load
from spodgt.problems.data.image_formats import Bytes
from spodgt.rng import generator

PER_CLASS = {"train": 600, "t10k": 100}


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


def pack_idx(array: Bytes) -> bytes:
    """`array` as an xz-packed IDX file of unsigned bytes."""
    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
    return lzma.compress(header + array.tobytes(), preset=9 | lzma.PRESET_EXTREME)


def main() -> None:
    """Read the folder named on the command line and write the embedded files."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", type=Path, help="folder with the four Fashion-MNIST files")
    embedded = CATALOG["fashion-mnist-small"].embedded
    parser.add_argument("--target", type=Path, default=embedded, help="folder to write to")
    arguments = parser.parse_args()

    full = load("fashion-mnist", arguments.source)
    splits = {"train": full.train, "t10k": full.test}
    chosen = choose(full.train.targets.numpy(), full.test.targets.numpy())
    arguments.target.mkdir(parents=True, exist_ok=True)
    for split, data in splits.items():
        images = data.inputs.numpy()[chosen[split], 0]
        labels = data.targets.numpy()[chosen[split]].astype(np.uint8)
        for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
            path = arguments.target / f"{split}-{kind}-ubyte.xz"
            path.write_bytes(pack_idx(array))
            print(f"{path}: {array.shape}, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
