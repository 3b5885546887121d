"""The inputs of the analysis, checked once."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import get_args

import numpy as np
from numpy.typing import ArrayLike

from spodgt.errors import InvalidInput
from spodgt.network import Network
from spodgt.network.recipes import Floats
from spodgt.theory.graph import Links, probabilities
from spodgt.theory.record import Variant

POSITIVE = ("L", "samples", "batch", "step_size")


@dataclass(frozen=True, eq=False)
class Setting:
    """What the formulas read, one array per client, and the links."""

    links: Links
    p: Floats
    L: Floats
    sigma0: Floats
    sigma1: Floats
    delta0: Floats
    delta1: Floats
    samples: Floats  # D
    batch: Floats  # B
    step_size: Floats  # η
    gamma2: float
    gamma3: float
    variant: Variant

    @property
    def s(self) -> Floats:
        """(1 - B/D)/B: variance of a mini-batch drawn without replacement, Assumption sgd."""
        return (1 - self.batch / self.samples) / self.batch

    @classmethod
    def of(
        cls,
        network: Network,
        p: ArrayLike,
        p_hat: ArrayLike,
        data: Mapping[str, ArrayLike],
        *,
        gamma2: float,
        gamma3: float,
        variant: Variant,
    ) -> Setting:
        """The inputs as arrays, or a sentence that names the one that is wrong; `data` is by field name."""
        if variant not in get_args(Variant):
            raise InvalidInput(f"variant is {variant!r}; choose 'paper' or 'corrected'.")
        for name, gamma in {"gamma2": gamma2, "gamma3": gamma3}.items():
            if not (gamma > 1 and math.isfinite(gamma)):
                raise InvalidInput(f"{name} is {gamma}, but must be a number above one.")
        arrays = {name: _per_client(name, value, network.clients) for name, value in data.items()}
        D, B = arrays["samples"], arrays["batch"]
        outside = (B > D) | (B < 1)
        if outside.any():
            worst = int(np.argmax(outside))
            raise InvalidInput(
                f"batch[{worst}] is {B[worst]:g}, but must lie in 1 .. {D[worst]:g}, the client's samples."
            )
        links, p = Links.of(network, p_hat), probabilities("p", p, network.clients)
        return cls(links, p, gamma2=float(gamma2), gamma3=float(gamma3), variant=variant, **arrays)


def _per_client(name: str, value: ArrayLike, clients: int) -> Floats:
    array = np.asarray(value, dtype=np.float64)
    if array.shape not in ((), (1,), (clients,)):
        raise InvalidInput(f"{name} has shape {array.shape}, but one number or {clients} are needed.")
    array = np.broadcast_to(array, (clients,))
    positive = name in POSITIVE
    bad = ~np.isfinite(array) | (array < 0) | (positive & (array == 0))
    if bad.any():
        worst = int(np.argmax(bad))
        sign = "positive" if positive else "zero or positive"
        raise InvalidInput(f"{name}[{worst}] is {array[worst]}, but must be {sign} and finite.")
    return array
