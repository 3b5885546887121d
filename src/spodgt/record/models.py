"""The models of a run, as safetensors files with the names of the module's parameters.

    models/spod-gt-seed0.safetensors           the average model
    models/spod-gt-seed0-clients.safetensors   all clients: the first axis is the client
    models/spod-gt-best-seed0.safetensors      the models of the best evaluation, with keep = "best"

Tensors that are equal on all clients (frozen parameters) are in the first file only.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save
from torch import Tensor

from spodgt.errors import InvalidInput
from spodgt.problems.protocols import HasModel
from spodgt.record.run_folder import slug, write
from spodgt.tensors import mean

FOLDER = "models"
RUNNING_MEAN = ", running mean"  # suffix of the label of a method
BEST = ", best"  # the same
MAX_MODEL_BYTES = (
    2**28
)  # bytes of the clients' models of one run; larger ones are reduced to the average


def write_models(
    folder: Path, label: str, models: Tensor, seed: int, problem: HasModel, clients: bool
) -> None:
    """Write the average model and, with `clients`, all clients' models.

    Args:
        folder: The run folder.
        label: Of the method, with the suffix `RUNNING_MEAN` for running means, `BEST` for the
            models of the best evaluation.
        models: (clients, columns), or (1, columns) for the average.
        seed: Of the run.
        problem: Names the parameters.
        clients: Whether `models` are those of the clients, not only their average.
    """
    metadata = {"method": label, "seed": str(seed), "clients": str(len(models))}
    average = problem.state_dict(mean(models))
    data = save(_copies(average), {**metadata, "model": "average"})
    write(folder / FOLDER / _name(label, seed), data)
    if not clients:
        return
    by_client = [problem.state_dict(model) for model in models]
    varying = {}
    for name, tensor in average.items():
        stacked = torch.stack([tensors[name] for tensors in by_client])
        if not (stacked == tensor).all():
            varying[name] = stacked
    data = save(_copies(varying), {**metadata, "model": "clients"})
    write(folder / FOLDER / _name(label, seed, "-clients"), data)


def read_model(folder: Path, label: str, seed: int, client: int | None) -> dict[str, Tensor]:
    """The tensors of one model by name: that of a client, or the average if `client` is None."""
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
            for name in file.keys():  # noqa: SIM118 (it is not a mapping)
                average[name] = file.get_slice(name)[client].clone()
            return average
    except (OSError, SafetensorError) as error:
        raise InvalidInput(
            f"{folder} has no such model ({error}); models of a finished method are in its folder "
            f"{FOLDER}, those of clients if they take at most {MAX_MODEL_BYTES // 2**20} MiB."
        ) from None


def _name(label: str, seed: int, suffix: str = "") -> str:
    return f"{slug(label)}-seed{seed}{suffix}.safetensors"


def _copies(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Copies in main memory: safetensors does not store two names of one tensor."""
    return {name: t.detach().to("cpu", copy=True).contiguous() for name, t in tensors.items()}
