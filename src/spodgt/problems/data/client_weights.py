"""Weights of the clients in the objective Σ w_i F_i / Σ w_i."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from spodgt.errors import InvalidInput
from spodgt.network.names import values_by_client
from spodgt.types import Floats, Ints

ClientWeights = str | Sequence[float] | Mapping[str, float]  # "equal", "samples", or numbers
EQUAL = "equal"
SAMPLES = "samples"
WEIGHTINGS = (EQUAL, SAMPLES)


class CheckedWeights(NamedTuple):
    """Client weights in the order of the clients."""

    weights: str | tuple[float, ...]  # "equal", "samples", or one number per client
    fixed_scales: Floats | None = None  # (clients,) if the scales cannot be computed from `weights`


def check_client_weights(
    given: ClientWeights, names: Sequence[str], clients: int
) -> CheckedWeights:
    """Check client weights and bring them into the order of the clients.

    Args:
        given: as for `Learning`.
        names: of the clients; empty if they are numbered.
        clients: number of clients.

    Raises:
        InvalidInput: if weights are missing, not positive, or of another type.
    """
    if isinstance(given, str):
        if given not in WEIGHTINGS:
            raise InvalidInput(
                f"client_weights={given!r} is not known; "
                "use 'equal', 'samples', or numbers above 0."
            )
        return CheckedWeights(given)
    if isinstance(given, Mapping):
        if _is_one_of_several(given, names, clients):
            return _weight_of_one_client(given, names[0])
        labels = names or tuple(map(str, range(clients)))
        given = values_by_client(given, labels, "client_weights")
    is_list = isinstance(given, Sequence | np.ndarray)
    if not is_list or len(given) != clients:
        got = f"{len(given)} numbers" if is_list else repr(given)
        raise InvalidInput(
            f"client_weights must be 'equal', 'samples' or {clients} numbers, one per client, "
            f"got {got}; use 'equal'."
        )
    return CheckedWeights(tuple(_check_weight(weight) for weight in given))


def _is_one_of_several(given: Mapping[str, float], names: Sequence[str], clients: int) -> bool:
    """Whether the problem is that of a peer: one client, and weights of several."""
    return clients == 1 and len(names) == 1 and len(given) > 1 and names[0] in map(str, given)


def _weight_of_one_client(given: Mapping[str, float], name: str) -> CheckedWeights:
    """The weight of a peer, which holds the data of one client of those that are weighted."""
    weights = {str(key): _check_weight(weight) for key, weight in given.items()}
    scale = len(weights) * weights[name] / sum(weights.values())
    return CheckedWeights((weights[name],), np.array([scale]))


def _check_weight(weight: object) -> float:
    is_number = isinstance(weight, int | float | np.number) and not isinstance(weight, bool)
    if not is_number or not 0 < weight < float("inf"):  # type: ignore[operator]
        raise InvalidInput(f"client_weights must be numbers above 0, got {weight!r}; use 1.0.")
    return float(weight)  # type: ignore[arg-type]


def compute_loss_scales(weights: ClientWeights, sizes: Ints) -> Floats | None:
    """The factors n w_i / Σ w of the losses of n clients; their plain mean is the objective.

    Args:
        weights: "equal", "samples", or one number per client.
        sizes: (clients,) samples of each client.

    Returns:
        (clients,), or None for equal weights.
    """
    if weights == EQUAL:
        return None
    values = sizes if weights == SAMPLES else weights
    w: Floats = np.asarray(values, np.float64)
    scales: Floats = len(w) * w / w.sum()
    return scales
