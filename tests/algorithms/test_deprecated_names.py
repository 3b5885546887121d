"""Old names of traits, hooks and members of rounds work for one release and warn with the new one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import spodgt.algorithms
from spodgt import Always, Network, method
from spodgt.algorithms import Traits
from spodgt.algorithms.deprecated import ROUND_MEMBERS
from spodgt.algorithms.dsgd import DSGD
from spodgt.peer.protocol.client_state import Member, PeerRound
from spodgt.types import Availability
from tests.helpers import ring_of

OLD_TRAITS = {
    "talks": ("waker", "activation", "edge-initiator"),
    "mixes": ((("push", "y"),), "mixed_fields", (("push", "y"),)),
    "reweighs": (True, "degree_reweighting", True),
    "short": (True, "compressed", True),
    "remembers": (True, "uses_stale_models", True),
}


@pytest.mark.parametrize("old_name", OLD_TRAITS)
def test_traits_accept_and_return_old_names(old_name: str) -> None:
    value, new_name, new_value = OLD_TRAITS[old_name]
    with pytest.warns(DeprecationWarning, match=rf"{old_name} of Traits .* use {new_name}"):
        traits = Traits(
            source="spodgt",
            mixing="push",
            sporadic_clients="yes",
            sporadic_links="yes",
            **{old_name: value},  # type: ignore[arg-type]
        )
    assert getattr(traits, new_name) == new_value
    with pytest.warns(DeprecationWarning, match=rf"Traits\.{old_name} .* use Traits\.{new_name}"):
        assert getattr(traits, old_name) == new_value


def test_traits_replace_accepts_old_names() -> None:
    with pytest.warns(DeprecationWarning, match="use mixed_fields"):
        traits = replace(DSGD.traits, mixes=())  # type: ignore[call-arg]
    assert traits.mixed_fields == ()


def test_hooks_with_old_names_are_called() -> None:
    with pytest.warns(DeprecationWarning, match=r"Old\.(uses|weighs) is deprecated"):

        @dataclass(frozen=True)
        class Old(DSGD):
            def uses(self, availability: Availability, network: Network) -> Availability:
                return availability

            def weighs(self, network: Network) -> Network:
                return network

    network = ring_of(3)
    availability = Always().draw(network, 0)
    assert Old().adapt_availability(availability, network) is availability
    assert Old().with_mixing_weights(network) is network
    assert Old.traits.compiled == "linear"  # its step is inherited
    with pytest.warns(DeprecationWarning, match=r"use SGD\.adapt_availability"):
        used = method("sgd").uses(availability, network)  # type: ignore[attr-defined]
    assert not used.links(range(1, 3)).used.any()


@pytest.mark.parametrize("old_name", sorted(set(ROUND_MEMBERS) - {"kept"}))
def test_rounds_have_old_members(old_name: str) -> None:
    def gradient(x: torch.Tensor, k: int) -> torch.Tensor:
        return x

    round = PeerRound(1, True, Member(2, 3, 0.5, 0.25), gradient, torch.empty(1, 0), {}, {})
    new_name = ROUND_MEMBERS[old_name]
    with pytest.warns(DeprecationWarning, match=rf"use PeerRound\.{new_name}"):
        old = getattr(round, old_name)
    assert old is getattr(round, new_name)
    with pytest.raises(AttributeError, match="nothing"):
        round.nothing  # type: ignore[attr-defined]  # noqa: B018


@pytest.mark.parametrize("name", ["Local", "Working", "installed"])
def test_layers_have_old_names(name: str) -> None:
    with pytest.warns(DeprecationWarning, match=f"spodgt.algorithms.{name} is deprecated; use"):
        assert callable(getattr(spodgt.algorithms, name))
