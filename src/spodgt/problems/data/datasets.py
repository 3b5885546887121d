"""Loads data sets by name, from the folders that are searched for each; see `catalog`.

- fashion-mnist-small: inside the package, so everything runs offline: a stratified tenth of
  Fashion-MNIST, 6,000 + 1,000 images that `tools/make_embedded.py` chose, with its licence beside
  it;
- fashion-mnist: four IDX files, plain or `.gz`, 60,000 + 10,000 images of 28 × 28 greys;
- cifar-10: the folder `cifar-10-batches-bin`, 50,000 + 10,000 images of 32 × 32 colours;
- sotu-small, sotu, shakespeare: texts by speaker, see `text_corpora`.
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
from spodgt.problems.data.catalog import (
    CATALOG,
    CIFAR_CLASSES,
    CIFAR_NAMES,
    Entry,
    IdxImages,
    find_entry,
    names_of,
)
from spodgt.problems.data.file_errors import file_error
from spodgt.problems.data.image_formats import Bytes, read_cifar, read_names, read_pair
from spodgt.problems.data.samples import Samples

Split = Samples  # uint8 images (N, C, H, W) and int64 labels (N,)


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
    entry = find_entry(name)
    if entry.kind != "images":
        default = names_of("images")[0]
        raise InvalidData(
            f"dataset {name!r} holds {entry.kind}, not images; use {default}, or problem kind text."
        )
    return _load(name, tuple(_search_path(entry, directory)))


def folder_of(name: str, directory: Path | None = None) -> Path:
    """The folder that holds the files of a data set.

    Args:
        name: of the data set.
        directory: as for `load`.

    Raises:
        InvalidData: if files are missing; it describes how to get them.
    """
    entry = find_entry(name)
    return _find_folder(entry, _search_path(entry, directory))


def available(directory: Path | None = None) -> list[Row]:
    """Every data set, where its files were found, and how to get it.

    Args:
        directory: as for `load`.
    """
    rows = []
    for name, entry in CATALOG.items():
        folders = _search_path(entry, directory)
        complete = [folder for folder in folders if not missing_files(name, folder)]
        how = entry.how if entry.embedded is None else "included in spodgt"
        if complete:
            paths = existing_files(name, complete[0])
            size: int | None = sum(path.stat().st_size for path in paths)
            rows.append(Row(name, complete[0], how, entry.licence, size))
        else:
            rows.append(Row(name, None, how, entry.licence, entry.size))
    return rows


def existing_files(name: str, folder: Path) -> list[Path]:
    """The files of a data set that are in `folder`."""
    paths = [_find_file(folder, file) for file in CATALOG[name].files]
    return [path for path in paths if path is not None]


def missing_files(name: str, folder: Path) -> list[str]:
    """The files of a data set that `folder` lacks."""
    return [file for file in CATALOG[name].files if _find_file(folder, file) is None]


def _find_file(folder: Path, file: str) -> Path | None:
    """The file of that name in `folder`: compressed first, then plain."""
    for path in (folder / file, folder / file.removesuffix(".gz")):
        if path.is_file():
            return path
    return None


def read(name: str, folder: Path) -> Dataset:
    """Read a data set of images from the files in `folder`, without a cache.

    Raises:
        InvalidData: if a file is missing or damaged.
    """
    entry = CATALOG[name]
    paths = [_find_file(folder, file) or folder / file for file in entry.files]
    if entry.idx is not None:
        return _read_idx_images(entry, entry.idx, paths)
    return _read_cifar(entry, folder, paths)


def _read_idx_images(entry: Entry, idx: IdxImages, paths: Sequence[Path]) -> Dataset:
    train_images, train_labels, test_images, test_labels = paths
    classes = len(idx.classes)
    train = read_pair(train_images, train_labels, idx.shape, classes, entry.how)
    test = read_pair(test_images, test_labels, idx.shape, classes, entry.how)
    return Dataset(entry.name, _to_samples(*train), _to_samples(*test), idx.classes)


def _read_cifar(entry: Entry, folder: Path, paths: Sequence[Path]) -> Dataset:
    classes: tuple[str, ...] = CIFAR_CLASSES
    names = folder / CIFAR_NAMES
    if names.exists():
        classes = read_names(names, len(CIFAR_CLASSES), entry.how)
    pixels, labels = read_cifar(paths, len(classes), entry.how)
    size = len(labels) // len(paths)  # all files have as many images, the last is the test set
    train = _to_samples(pixels[:-size], labels[:-size])
    test = _to_samples(pixels[-size:], labels[-size:])
    return Dataset(entry.name, train, test, classes)


def _to_samples(pixels: Bytes, labels: Bytes) -> Samples:
    return Samples(torch.from_numpy(pixels.copy()), torch.from_numpy(labels.astype(np.int64)))


def _search_path(entry: Entry, directory: Path | None) -> list[Path]:
    """The folders in which a data set may be, in the order of preference."""
    if entry.embedded is not None:
        return [entry.embedded]
    root = data_directory() if directory is None else Path(directory).expanduser()
    root = root.absolute()
    folders = [root / (entry.folder or entry.name), root / entry.name, root]
    if directory is None:
        folders += entry.system_folders
    return list(dict.fromkeys(folders))


@functools.cache
def _load(name: str, folders: Sequence[Path]) -> Dataset:
    return read(name, _find_folder(CATALOG[name], folders))


def _find_folder(entry: Entry, folders: Sequence[Path]) -> Path:
    """The first folder with all files of a data set; raises `InvalidData` if there is none."""
    missing = {folder: missing_files(entry.name, folder) for folder in folders}
    best = min(folders, key=lambda folder: len(missing[folder]))  # the first of several
    if not missing[best]:
        return best
    first = missing[best][0]
    if len(missing[best]) < len(entry.files):
        raise file_error(best / first, "exist", "no such file", entry.how)
    searched = " or ".join(map(str, folders))
    raise InvalidData(f"{first} must be in {searched}, got no such file; {entry.how}.")


clear_cache = _load.cache_clear  # so that changed files are read anew
