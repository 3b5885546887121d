"""A method around another one: it changes what the inner method is given, and leaves the rest to it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from spodgt.algorithms.base import Algorithm
from spodgt.network import Network
from spodgt.types import Availability


@dataclass(frozen=True)
class Wrapper(Algorithm):
    base: Algorithm

    @property
    def local_steps(self) -> Any:
        return getattr(self.base, "local_steps", None)

    def fit(self, availability: Availability) -> Wrapper:
        return dataclasses.replace(self, base=self.base.fit(availability))

    def uses(self, availability: Availability, network: Network) -> Availability:
        return self.base.uses(availability, network)

    def weighs(self, network: Network) -> Network:
        return self.base.weighs(network)
