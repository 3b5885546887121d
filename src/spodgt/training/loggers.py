"""Loggers: callbacks that send every evaluation to TensorBoard, Weights & Biases or MLflow.

Each needs the package of its name. Every method and seed is a run; metrics are logged against the
round, and `delay` is one of them.
"""

from __future__ import annotations

import contextlib
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from spodgt._util.text import first_line
from spodgt.errors import InvalidInput

__all__ = ["Logger", "MLflow", "TensorBoard", "WandB"]

Close = Callable[[], object]
Log = Callable[[Mapping[str, float], int], object]  # metrics by name, and their round


class Logger(ABC):
    """A callback that logs every method and seed as a run of its own."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.runs: dict[str, tuple[Log, Close]] = {}

    @contextlib.contextmanager
    def logging(self, config: dict[str, Any]) -> Iterator[None]:
        """Log a comparison in this block; all runs are closed at its end.

        Args:
            config: settings of the comparison, as the tables of a TOML file.
        """
        self.config = config
        try:
            yield
        finally:
            for _, close in self.runs.values():
                close()
            self.runs.clear()

    def __call__(self, row: Mapping[str, Any]) -> None:
        """Log one evaluation, a row of `result.frame`."""
        name = f"{row['method']}/seed-{row['seed']}"
        if name not in self.runs:
            self.runs[name] = self.open(name, str(row["method"]), int(row["seed"]))
        values = {}
        for key, value in row.items():
            if isinstance(value, float) and math.isfinite(value):
                values[key] = value
        log, _ = self.runs[name]
        log(values, int(row["round"]))

    @abstractmethod
    def open(self, name: str, method: str, seed: int) -> tuple[Log, Close]:
        """Start the run of one method and seed.

        Args:
            name: of the run.
            method: label of the method.
            seed: seed of the run.

        Returns:
            A function of (metrics, round) that logs, and one that closes the run.
        """


class TensorBoard(Logger):
    """Writes event files to `folder`/METHOD/seed-N.

    Args:
        folder: where the event files go.
    """

    def __init__(self, folder: str | Path) -> None:
        super().__init__()
        self.folder = Path(folder)
        self.package = _package("torch.utils.tensorboard", "tensorboard")

    def open(self, name: str, method: str, seed: int) -> tuple[Log, Close]:
        folder = self.folder / method.replace("/", "_") / f"seed-{seed}"
        writer = self.package.SummaryWriter(str(folder))

        def log(values: Mapping[str, float], k: int) -> None:
            for key, value in values.items():
                writer.add_scalar(key, value, k)
                if key != "delay":  # axes of TensorBoard have whole numbers only
                    writer.add_scalar(f"{key} by delay", value, round(values.get("delay", 0.0)))

        return log, writer.close


class WandB(Logger):
    """Logs to Weights & Biases; runs of one comparison share a group.

    Args:
        project: the project there.
        group: the name of this comparison; Weights & Biases gives none by default.
        mode: "online" (default), or "offline" to write to `folder` and upload later with `wandb
            sync`.
        folder: where local files go; the current folder by default.
    """

    def __init__(
        self,
        project: str = "spodgt",
        group: str | None = None,
        mode: str = "online",
        folder: str | Path = ".",
    ) -> None:
        super().__init__()
        self.package = _package("wandb", "wandb")
        self.options = {"project": project, "group": group, "mode": mode, "dir": str(folder)}

    def open(self, name: str, method: str, seed: int) -> tuple[Log, Close]:
        facts = {
            "config": {**self.config, "method": method, "seed": seed},
            "reinit": "create_new",
        }
        run = self.package.init(name=name, job_type=method, **self.options, **facts)
        return lambda values, k: run.log(dict(values), step=k), run.finish


class MLflow(Logger):
    """Logs to an MLflow tracking server or folder.

    Args:
        uri: the tracking address, such as "http://localhost:5000"; MLflow's own setting by default.
            A local database ("sqlite:///mlflow.db") needs the whole package mlflow.
        experiment: the experiment there; it is made if it is not there.
    """

    def __init__(self, uri: str | None = None, experiment: str = "spodgt") -> None:
        super().__init__()
        self.package = _package("mlflow", "mlflow")
        try:
            self.client = self.package.tracking.MlflowClient(tracking_uri=uri)
            self.experiment = self._find_or_create(experiment)
        except Exception as error:  # its stores raise errors of any type
            raise InvalidInput(
                f"MLflow cannot log to {uri or 'its tracking address'}: {first_line(error)[:200]}; "
                "give the address of a running `mlflow server`, or a folder and the environment "
                "variable MLFLOW_ALLOW_FILE_STORE=true."
            ) from error

    def _find_or_create(self, experiment: str) -> str:
        """The id of an experiment."""
        existing = self.client.get_experiment_by_name(experiment)
        if existing is None:
            return str(self.client.create_experiment(experiment))
        return str(existing.experiment_id)

    def open(self, name: str, method: str, seed: int) -> tuple[Log, Close]:
        tags = {"method": method, "seed": str(seed)}
        run = self.client.create_run(self.experiment, run_name=name, tags=tags).info.run_id
        for section, table in self.config.items():
            if isinstance(table, Mapping):
                for key, value in table.items():
                    self.client.log_param(run, f"{section}.{key}", str(value)[:500])

        def log(values: Mapping[str, float], k: int) -> None:
            for key, value in values.items():
                self.client.log_metric(run, key, value, step=k)

        return log, lambda: self.client.set_terminated(run)


def _package(module: str, extra: str) -> ModuleType:
    """Import a package before the run; raises if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        raise InvalidInput(
            f"logging to {extra} needs the package {extra}, which is not installed; "
            f"run pip install 'spodgt[{extra}]'."
        ) from None


def __dir__() -> list[str]:
    return __all__
