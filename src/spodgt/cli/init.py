"""`spodgt init`: a small project to start from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from spodgt.cli.app import app
from spodgt.errors import InvalidInput

STARTER = Path(__file__).parent / "starter"
_FILES = ("README.md", "experiment.toml", "problem.py", "sweep.toml")


@app.command(epilog="Example: [bold]spodgt init mine[/]")
def init(folder: Annotated[Path, typer.Argument(help="A new or an empty folder.")]) -> None:
    """Create a small project: a model and data of your own, an experiment, a sweep."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise InvalidInput(f"{folder} is not empty; give a new folder.")
        for name in _FILES:
            text = (STARTER / name).read_text(encoding="utf-8")
            (folder / name).write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidInput(
            f"{folder} cannot be written: {error.strerror}; give another folder."
        ) from None
    print(f"{folder}: {', '.join(_FILES)}")
    print(f"next: cd {folder} && spodgt run experiment.toml")
