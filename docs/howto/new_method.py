"""NAME: what the method does, in one line [key of docs/reference/literature.md].

    x⁺ = W x - η g        the paper's letters; `step` repeats the update line by line

What the formula leaves out: conditions, the limit, and which choices are ours.
A skeleton: copy it to src/spodgt/algorithms/your_method.py, rename everything, add
"your_method" to METHODS in registry.py, and delete the comments that are not about your
method. CONTRIBUTING.md has the checklist.
"""

from dataclasses import dataclass
from typing import NamedTuple

from spodgt.algorithms.base import Algorithm, Rate, Round, Tensor, Traits


class SkeletonState(NamedTuple):  # or GradientState, TrackingState of base.py
    x: Tensor  # (clients, parameters) models, always first
    g: Tensor  # a gradient that is needed twice: `round.grad` draws a new mini-batch


@dataclass(frozen=True)
class Skeleton(Algorithm[SkeletonState]):  # `traits.state` has the fields' names
    name = "skeleton"  # the file's name with hyphens
    traits = Traits(
        source="spodgt",  # the citation key
        mixing="gossip",  # `step` calls pull, push, pull+push, gossip, server or none
        sporadic_clients="no",  # idle clients: "yes" continues, "waits", "no" refuses
        sporadic_links="yes",
        mixed_fields=(
            ("gossip", "x"),
        ),  # fields given to a mixing as they are, in order; derived ones are not
    )  # base.py lists the others: tracking, exact, steps, local_steps, …
    step_size: Rate = 0.01  # η; Rate, Count and Positive fields are checked

    def init(self, x: Tensor, round: Round) -> SkeletonState:
        return SkeletonState(x, round.grad(x))

    def step(self, state: SkeletonState, round: Round) -> SkeletonState:
        x = round.gossip(state.x) - self.step_size * state.g
        return SkeletonState(x, round.grad(x))
