"""A local step of the method, in which a gradient that is not finite is not used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from spodgt.algorithms.base import Algorithm, TrackingState
from spodgt.algorithms.compose.wrapper import Wrapper
from spodgt.errors import Failed
from spodgt.peer.protocol import client_state
from spodgt.peer.protocol.client_state import Gradient, Member, NotFinite, PeerRound, State

MAX_BAD_GRADIENTS = 10  # in a row that are not finite, after which the client ends


class StepResult(NamedTuple):
    """What a local step has made of the state."""

    state: TrackingState  # of the method's own type
    private: Tensor
    computed: bool  # whether a gradient was used


class MethodStep:
    """Makes local steps of a method.

    Args:
        gradient: Of the client's loss.
        notify: Called with the kind and the text of an event.
    """

    def __init__(self, gradient: Gradient, notify: Callable[[str, str], None]) -> None:
        self.gradient = gradient
        self.notify = notify
        self.bad_gradients = 0  # that were not finite
        self.bad_in_a_row = 0

    def use_algorithm(
        self, algorithm: Algorithm[TrackingState], state: State, member: Member
    ) -> dict[str, Tensor]:
        """Use this method from now on.

        Returns:
            The fields of its state beside x, y and g; those that `state` does not hold begin anew.
        """
        idle = PeerRound(0, False, member, self.gradient, state.private, {}, {})
        first = algorithm.init(state.method.x[:, :1], idle)  # of one column: only its fields matter
        self.algorithm = algorithm
        self.state_type = type(first)
        local_steps = algorithm.local_steps if isinstance(algorithm, Wrapper) else None
        self.exchange_every = local_steps or 1  # rounds between two uses of the links
        _, fields = client_state.to_tracking_state(first)
        if fields.keys() <= state.more.keys():
            return {name: state.more[name] for name in fields}
        idle = PeerRound(0, False, member, self.gradient, state.private, {}, {})
        _, initial = client_state.to_tracking_state(algorithm.init(state.method.x, idle))
        return {name: state.more.get(name, tensor) for name, tensor in initial.items()}

    def step(
        self, state: State, member: Member, computes: bool, models: Mapping[str, Tensor]
    ) -> StepResult:
        """The next state of the method.

        A gradient that is not finite counts as none: the client is idle in this round. If the method needs
        all clients, it waits instead: the state stays as it is.

        Args:
            state: Of the client.
            member: The client's place in the run.
            computes: Whether the client computes a gradient.
            models: (n,) the new models by in-link.
        """
        before = client_state.to_method_state(self.state_type, state.method, state.more)
        for active in (computes, False):
            round = PeerRound(
                state.k, active, member, self.gradient, state.private, models, state.into
            )
            try:
                with torch.no_grad():
                    after = self.algorithm.step(before, round)
            except NotFinite:
                self._note_bad_gradient(state.k)
                if self.algorithm.traits.sporadic_clients != "yes":
                    return StepResult(before, state.private, False)
                continue
            if active:
                self.bad_in_a_row = 0
            return StepResult(after, round.private, active)
        raise AssertionError("an idle client computes no gradient")

    def _note_bad_gradient(self, k: int) -> None:
        self.bad_gradients += 1
        self.bad_in_a_row += 1
        self.notify(
            "not finite", f"the gradient of round {k} holds NaN or infinite numbers; not used"
        )
        if self.bad_in_a_row >= MAX_BAD_GRADIENTS:
            raise Failed(
                f"{self.bad_in_a_row} gradients in a row were not finite, the last in round {k}; "
                "none was used. Check this client's data, or use a smaller step size."
            )
