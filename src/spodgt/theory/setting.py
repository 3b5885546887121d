"""What the theory is asked about: one draw of an experiment, step sizes and a number of rounds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from spodgt.algorithms.base import Schedule
from spodgt.errors import InvalidInput
from spodgt.participation.availability import Independent, Overlay
from spodgt.runtimes.world import Draw
from spodgt.theory.graph import per_client
from spodgt.types import Availability, Floats

MOST_CLIENTS = 300  # K(G) takes links × clients² steps


@dataclass(frozen=True, eq=False)
class Setting:
    """A question to the theory; made by `setting`."""

    draw: Draw
    step_size: Floats  # (clients,)
    rounds: int
    notes: tuple[str, ...] = ()  # where the theory reads the experiment in its own way

    @property
    def p(self) -> Floats:
        """(clients,) how often clients compute."""
        return self.draw.availability.p

    @property
    def p_hat(self) -> Floats:
        """(links,) how often links work."""
        return self.draw.availability.p_hat


def setting(draw: Draw, step_size: ArrayLike | Tensor | Schedule, rounds: int) -> Setting:
    """Ask the theory about one draw of an experiment.

    Args:
        draw: network, availability and problem, from `Experiment.draw(seed)`; at most 300 clients.
        step_size: η of Spod-GT: one number, one per client, or a schedule, of which round 1 counts.
        rounds: length of the run, at least 1.
    """
    m, notes = draw.network.clients, []
    if m > MOST_CLIENTS:
        raise InvalidInput(
            f"network.clients must be at most {MOST_CLIENTS}, because K(G) takes links times clients² steps, "
            f"got {m}; use network.clients={MOST_CLIENTS}."
        )
    if rounds < 1:
        raise InvalidInput(f"rounds must be at least 1, got {rounds}; use rounds=1000.")
    if independent(draw.availability) is None:
        notes.append(
            "clients and links do not take part independently in every round; the theory assumes independent "
            "draws of the same frequency"
        )
    if isinstance(step_size, Schedule):
        notes.append("the step size is that of round 1; those of a falling schedule need no other check")
        step_size = step_size.at(1)
    steps = per_client("step_size", np.asarray(step_size, dtype=np.float64).reshape(-1), m)
    return Setting(draw, steps, rounds, tuple(notes))


def independent(availability: Availability) -> tuple[Floats, Floats] | None:
    """Return p (clients,) and p̂ (links,) if all take part independently in every round, else None.

    Args:
        availability: as drawn, or what a method makes of it; a method that uses all links has p̂ = 1.
    """
    if isinstance(availability, Independent):
        return availability.p, availability.p_hat
    if not isinstance(availability, Overlay) or availability.every > 1:
        return None
    clients, links = availability.all_clients, availability.all_links
    found = (availability.p, availability.p_hat) if clients and links else independent(availability.base)
    if found is None or (availability.pairs is not None and not links):
        return None
    p, p_hat = found
    return np.ones_like(p) if clients else p, np.ones_like(p_hat) if links else p_hat
