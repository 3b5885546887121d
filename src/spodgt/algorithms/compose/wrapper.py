"""A method around another one: it changes what the inner method is given, and leaves the rest to it."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from spodgt.algorithms.base import Algorithm, HasStepSize, LocalSteps, Rate, S
from spodgt.network import Network
from spodgt.types import Availability


@dataclass(frozen=True)
class Wrapper(Algorithm[S]):
    base: Algorithm[S]

    def declares(self, suffix: str, *more: str) -> None:
        """Take the name and traits of `base`, with `more` fields in the state; no compiled step is ours."""
        traits = self.base.traits
        changed = dataclasses.replace(traits, state=(*traits.state, *more), compiled=None)
        object.__setattr__(self, "name", f"{self.base.name}+{suffix}")
        object.__setattr__(self, "traits", changed)

    @property
    def step_size(self) -> Rate | None:
        return self.base.step_size if isinstance(self.base, HasStepSize) else None

    @property
    def local_steps(self) -> int | None:
        return self.base.local_steps if isinstance(self.base, LocalSteps | Wrapper) else None

    def fit(self, availability: Availability) -> Wrapper[S]:
        return dataclasses.replace(self, base=self.base.fit(availability))

    def uses(self, availability: Availability, network: Network) -> Availability:
        return self.base.uses(availability, network)

    def weighs(self, network: Network) -> Network:
        return self.base.weighs(network)
