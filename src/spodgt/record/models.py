"""The models that come out of a run, as files that torch users can load by parameter name.

    models/spod-gt-seed0.safetensors           the average model
    models/spod-gt-seed0-clients.safetensors   all clients: one more axis in front, client i is row i

What is the same on every client (frozen parameters) stands in the first file only.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.problems.protocols import HasModel
from spodgt.record.folder import slug, write
from spodgt.tensors import mean

FOLDER = "models"
RUNNING_MEAN = ", running mean"  # behind the label of a method
MODELS = (
    2**28
)  # bytes of all clients' models of one run that are kept; of larger ones only the average


def write_models(
    folder: Path, label: str, models: Tensor, seed: int, problem: HasModel, clients: bool
) -> None:
    """Write the average model and, with `clients`, all clients' models.

    Args:
        folder: The run folder.
        label: The method, with `RUNNING_MEAN` behind it where these are running means.
        models: (clients, columns) as the run ended with them.
        seed: Of the run.
        problem: What tells the names of parameters.
        clients: Whether `models` are those of the clients, not their average alone.
    """
    metadata = {"method": label, "seed": str(seed), "clients": str(len(models))}
    average = problem.state_dict(mean(models))
    write(
        folder / FOLDER / _name(label, seed),
        save(_whole(average), {**metadata, "model": "average"}),
    )
    if not clients:
        return
    each = [problem.state_dict(model) for model in models]
    stacked = {name: torch.stack([one[name] for one in each]) for name in average}
    varying = {name: rows for name, rows in stacked.items() if not (rows == average[name]).all()}
    data = save(_whole(varying), {**metadata, "model": "clients"})
    write(folder / FOLDER / _name(label, seed, "-clients"), data)


def read_model(folder: Path, label: str, seed: int, client: int | None) -> dict[str, Tensor]:
    """The tensors of one model by name: that of a client, or the average where `client` is None."""
    try:
        average = load_file(folder / FOLDER / _name(label, seed))
        if client is None:
            return average
        with safe_open(folder / FOLDER / _name(label, seed, "-clients"), "pt") as file:
            count = int(file.metadata()["clients"])
            if not 0 <= client < count:
                raise InvalidInput(
                    f"client={client} must be below {count}, the number of clients; use average."
                )
            return average | {name: file.get_slice(name)[client].clone() for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise InvalidInput(
            f"{folder} has no such model ({error}); models of a finished method are in its folder {FOLDER}, "
            f"those of clients if they take at most {MODELS // 2**20} MiB."
        ) from None


def _name(label: str, seed: int, suffix: str = "") -> str:
    return f"{slug(label)}-seed{seed}{suffix}.safetensors"


def _whole(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies: two names may share one tensor, which the format refuses."""
    return {
        name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()
    }
