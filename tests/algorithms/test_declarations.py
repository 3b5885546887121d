"""What a method declares is what it does: its state, what it mixes, and who may rely on a compiled step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.testing import assert_close

from spodgt.algorithms import ALGORITHMS, InverseSqrt, method
from spodgt.algorithms.base import Algorithm, Rate, State, TrackingState
from spodgt.algorithms.compose.wrapper import Wrapper
from spodgt.algorithms.spod_gt import SpodGT
from spodgt.errors import InvalidInput
from spodgt.participation import Always, Bernoulli
from spodgt.problems import Quadratic
from spodgt.runtimes.events.durations import Time
from spodgt.runtimes.events.world import EventWorld
from spodgt.runtimes.simulator import Simulation
from spodgt.types import Round
from tests.helpers import FAMILY, NAMES, build, make_run, ring_of, states

WRAPPED: dict[str, dict[str, Any]] = {
    "plain": {},
    "schedule": {"step_size": InverseSqrt(0.1)},
    "momentum": {"momentum": 0.5},
    "both": {"step_size": InverseSqrt(0.1), "momentum": 0.5},
    "adam": {"adam": {"amsgrad": True}, "clip_tracker": 1.0, "weight_decay": 0.1},
    "gradients": {"momentum": 0.5, "l2": 0.1, "clip_gradient": 1.0},
}


@dataclass
class Recording:
    """A round that writes down which fields of the state it was given to mix, in order."""

    round: Any
    state: State
    kinds: set[str] = field(default_factory=set)
    mixed: list[tuple[str, str]] = field(default_factory=list)

    def _mix(self, kind: str, x: Tensor, mixing: Callable[[Tensor], Tensor]) -> Tensor:
        self.kinds.add(kind)
        names = [n for n, tensor in zip(self.state._fields, self.state, strict=True) if tensor is x]
        self.mixed += [(kind, name) for name in names]
        return mixing(x)

    def pull(self, x: Tensor) -> Tensor:
        return self._mix("pull", x, self.round.pull)

    def push(self, y: Tensor) -> Tensor:
        return self._mix("push", y, self.round.push)

    def gossip(self, x: Tensor) -> Tensor:
        return self._mix("gossip", x, self.round.gossip)

    def gossip_difference(self, x: Tensor) -> Tensor:
        return self._mix("gossip", x, self.round.gossip_difference)

    def average(self, x: Tensor) -> Tensor:
        return self._mix("average", x, self.round.average)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.round, name)


def recorded(algorithm: Algorithm, rounds: int = 6) -> Recording:
    """The last of `rounds` rounds; by then no two fields are one tensor."""
    world = Simulation(
        [make_run(algorithm, Quadratic.random(5, 2, seed=1), ring_of(5))], compiled=False
    )
    state = world.held.algorithm.init(world.held.initial_models(), world.rounds.start(0))
    for k in range(1, rounds):
        state = world.held.algorithm.step(state, world.rounds.start(k))
    recording = Recording(world.rounds.start(rounds), state)
    world.held.algorithm.step(state, recording)
    return recording


def fields_of(name: str) -> dict[str, Any]:
    return {"local_steps": 3} if ALGORITHMS[name].traits.local_steps else {}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("wrapped", WRAPPED)
def test_state_and_mixes_are_declared(name: str, wrapped: str) -> None:
    if wrapped == "adam" and not ALGORITHMS[name].traits.direction:
        return  # refused
    algorithm = build(name, **fields_of(name), **WRAPPED[wrapped])
    recording, traits = recorded(algorithm), algorithm.traits
    assert recording.state._fields == traits.state
    mixed = [
        mix for mix in recording.mixed if mix[0] != "average"
    ]  # a server's work is not sent on links
    assert mixed == list(traits.mixed_fields)


@pytest.mark.parametrize("name", NAMES)
def test_only_the_declared_mixing_is_used(name: str) -> None:
    traits = ALGORITHMS[name].traits
    allowed = {"average"} if traits.mixing in ("none", "server") else set(traits.mixing.split("+"))
    used = recorded(build(name, **fields_of(name))).kinds
    assert used <= allowed
    assert used == allowed or traits.mixing == "none"


def test_the_family_alone_declares_a_rule_and_its_compiled_step() -> None:
    assert {ALGORITHMS[name].traits.compiled for name in FAMILY} == {"gradient-tracking"}
    for name in set(NAMES) - set(FAMILY):
        assert ALGORITHMS[name].traits.compiled in (None, "linear")
        assert ALGORITHMS[name].traits.rule is None
    for name in FAMILY:
        assert ALGORITHMS[name].traits.state == TrackingState._fields


@pytest.mark.parametrize("wrapped", [name for name in WRAPPED if name != "plain"])
def test_a_wrapped_step_is_not_the_compiled_one(wrapped: str) -> None:
    """A linear layer is followed through; others have no compiled step."""
    algorithm = method("spod-gt-memory", **WRAPPED[wrapped])
    assert isinstance(algorithm, Wrapper)
    assert algorithm.traits.compiled == (
        "linear" if wrapped in ("schedule", "momentum", "both") else None
    )
    assert algorithm.traits.rule == (None if wrapped == "adam" else "memory")


def test_a_subclass_with_a_step_of_its_own_gives_up_the_compiled_one() -> None:
    class Same(SpodGT):
        def with_mixing_weights(self, network: Any) -> Any:
            return network

    class Halved(SpodGT):
        def gradient(self, x: Tensor, g: Tensor, round: Round) -> Tensor:
            return round.grad(x) / 2

    class Declared(SpodGT):
        traits = replace(SpodGT.traits, rule="importance")

        def gradient(self, x: Tensor, g: Tensor, round: Round) -> Tensor:
            return round.grad(x) / round.p

    class Renamed(SpodGT):
        traits = replace(SpodGT.traits, source="spodgt")

    class Replaced(SpodGT):
        name = "replaced"
        traits = replace(SpodGT.traits, exact="no")

        def gradient(self, x: Tensor, g: Tensor, round: Round) -> Tensor:
            return round.grad(x) / 2

    class Linear(Replaced):
        traits = replace(SpodGT.traits, rule=None, compiled="linear")

        def gradient(self, x: Tensor, g: Tensor, round: Round) -> Tensor:
            return round.grad(x) / 4

    assert Same.traits is SpodGT.traits
    assert (Renamed.traits.rule, Renamed.traits.compiled) == ("zero", "gradient-tracking")
    assert (Replaced.traits.rule, Replaced.traits.compiled) == (None, None)
    assert (Linear.traits.rule, Linear.traits.compiled) == (None, "linear")
    for changed in (Halved, Replaced, Linear):
        run = make_run(
            changed(0.1), Quadratic.random(5, 2, seed=1), ring_of(5), Bernoulli(0.6, 0.6)
        )
        plain = states([run], 20)[-1]
        in_rounds = states([run], 20, compiled=True)[-1]
        world = EventWorld([run], Time(compute=0.1), dtype=torch.float64)
        in_virtual_time: Any = world.advance(world.init(), range(1, 21))
        assert_close(in_rounds.x, plain.x, rtol=0, atol=1e-12)
        assert_close(in_virtual_time.x, plain.x, rtol=0, atol=1e-12)
    assert (Halved.traits.rule, Halved.traits.compiled) == (None, None)
    assert Declared.traits.compiled == "gradient-tracking"


# --- fields ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("name", NAMES)
def test_every_number_of_a_method_is_checked(name: str) -> None:
    """A field whose default is a number, or K, refuses -1 and names itself."""
    for each in fields(ALGORITHMS[name]):  # type: ignore[arg-type]
        if isinstance(each.default, bool):
            continue
        with pytest.raises(
            InvalidInput, match=rf"^{each.name} of {name} must be a (whole )?number above 0"
        ):
            method(name, **{each.name: -1})


@pytest.mark.parametrize("name", ["next", "local-gt", "relay-sum"])
@pytest.mark.parametrize("value", [0, 3, float("nan"), "half"])
def test_a_share_is_above_0_and_at_most_1(name: str, value: Any) -> None:
    assert method(name, averaging=1) == method(name)
    message = f"averaging of {name} must be a number above 0 and at most 1, got {value!r}; use"
    with pytest.raises(InvalidInput, match=rf"^{message} averaging=0\.01\.$"):
        method(name, averaging=value)


def test_types_that_are_not_there_at_run_time_are_named() -> None:
    @dataclass(frozen=True)
    class Hidden(SpodGT):
        name = "hidden"
        pace: Pace = 1.0  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(
        InvalidInput, match=r"^fields of hidden need their types .* name 'Pace' is not defined"
    ):
        Hidden()


def test_a_schedule_alone_has_no_value() -> None:
    rate: Rate = InverseSqrt(0.1)
    bare = SpodGT(step_size=rate)  # `method` would have wrapped it
    with pytest.raises(
        InvalidInput, match=r"^InverseSqrt\(start=0.1, scale=1.0\) has no value outside a round"
    ):
        recorded(bare, 1)
    assert torch.isfinite(recorded(method(bare), 1).state.x).all()


def test_the_hooks_follow_the_traits() -> None:
    """One draw per pair for gossip, all of them for who waits, no links without mixing."""
    network = ring_of(5)
    availability = Always().draw(network, 0)
    assert method("dsgd").adapt_availability(availability, network) is not availability
    assert method("extra").adapt_availability(availability, network) is availability
    assert not method("sgd").adapt_availability(availability, network).links(range(1, 9)).used.any()
    waiting = method("g-push-pull").adapt_availability(
        Bernoulli(0.5, 0.5).draw(network, 0), network
    )
    assert (waiting.idle_clients, waiting.idle_links) == (False, True)
