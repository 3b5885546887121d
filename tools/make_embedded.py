"""Make the data set inside the wheel from the full Fashion-MNIST.

    python tools/make_embedded.py FOLDER_WITH_THE_FOUR_FILES

Deterministic: `spodgt.problems.data.embedded.choose` picks 600 + 100 images of every class, and they are
written in their old order as IDX files packed by xz, which makes them a seventh smaller than gzip.
(Another version of liblzma may pack the same contents into other bytes.)
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

import numpy as np

from spodgt.problems.data import embedded
from spodgt.problems.data.datasets import load
from spodgt.problems.data.formats import Bytes


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
    parser.add_argument("--target", type=Path, default=embedded.path(), help="folder to write to")
    arguments = parser.parse_args()

    full = load("fashion-mnist", arguments.source)
    splits = {"train": full.train, "t10k": full.test}
    chosen = embedded.choose(full.train.targets.numpy(), full.test.targets.numpy())
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
