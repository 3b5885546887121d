"""`spodgt doctor`."""

from __future__ import annotations

import importlib.util
import json
import os
import platform
from importlib import metadata

from rich.console import Console
from rich.text import Text

from spodgt.cli.app import JsonOption, app, fast_imports, plain_table

_PACKAGES = ("spodgt", "torch", "numba", "numpy")
_EXTRAS = {  # by the module that each one needs
    "peer": "grpc",
    "ray": "ray",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "mlflow": "mlflow",
}
_VARIABLES = (
    "SPODGT_ENGINE",
    "SPODGT_DATA",
    "OMP_NUM_THREADS",
    "ATEN_CPU_CAPABILITY",
    "NUMBA_DISABLE_JIT",
    "NUMBA_CPU_NAME",
    "NUMBA_CACHE_DIR",
)


@app.command(epilog="Example: [bold]spodgt doctor --json[/]")
def doctor(as_json: JsonOption = False) -> None:
    """Show the engine, versions, CPU, threads, cache, data and extras of this installation."""
    facts = examine()
    if as_json:
        print(json.dumps(facts, indent=2))
        return
    table = plain_table()
    table.add_column("", no_wrap=True)
    table.add_column("found", overflow="fold")
    for name, value in facts.items():
        table.add_row(name, Text(_text(value)))
    Console().print(table)


def examine() -> dict[str, object]:
    """Everything that `spodgt doctor` prints, by name."""
    with fast_imports():
        import torch

        from spodgt.engine import cache_directory, describe_engine
        from spodgt.problems.data import available
        from spodgt.thread_pool import thread_count

    directory = cache_directory()
    state = "empty: loops are compiled by the first run"
    if any(directory.rglob("*.nbi")):
        state = "filled"
    return {
        "engine": describe_engine(),
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        **{name: _version(name) for name in _PACKAGES},
        "cpu": f"{torch.backends.cpu.get_cpu_capability()} (used by torch), {os.cpu_count()} cores",
        "accelerator": _accelerator(),
        "threads": thread_count(),
        "cache of compiled loops": f"{directory} ({state})",
        "data": {row.name: str(row.found) for row in available() if row.found},
        "extras": [name for name, module in _EXTRAS.items() if importlib.util.find_spec(module)],
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
    }


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _accelerator() -> str:
    import torch

    if torch.cuda.is_available():
        return f"cuda: {torch.cuda.get_device_name()}"
    if torch.backends.mps.is_available():
        return "mps"
    return "none"


def _text(value: object) -> str:
    if isinstance(value, dict):
        return "\n".join(f"{key}: {item}" for key, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(value) or "none"
    return str(value)
