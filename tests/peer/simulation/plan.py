"""What a seed draws: the run, and its schedule of faults."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random

FAULT_SECONDS = (8.0, 12.0, 16.0, 30.0)  # of virtual time in which faults begin
METHODS = ("spod-gt-memory", "spod-gt-memory", "spod-gt-memory", "relay", "ab")


@dataclass(frozen=True)
class Setup:
    """A run, and how its peers run."""

    method: str = "spod-gt-memory"
    clients: int = 3
    graph: str = "exponential"
    layers: dict[str, object] = field(default_factory=dict)
    rate: float = 2.0  # rounds per second
    max_alone: int = 20
    commit_every: int = 1
    drop_after: float | None = None
    durability: str = "power"
    p: float = 1.0  # with which a client computes in a round
    p_hat: float = 1.0
    dialled_by_receivers: bool = False
    rounds: int = 0  # of the manifest; 0: peers do not end
    has_old_release: bool = False  # the first client speaks protocol 1 only
    has_no_address: bool = False  # the first client dials all its links; never drawn


@dataclass(frozen=True)
class Fault:
    """One fault of a schedule; `faults.KINDS` has what each kind does with the numbers."""

    at: float  # seconds of virtual time
    kind: str
    target: str  # the client that is hit
    other: str = ""  # a second client, for faults of links
    seconds: float = 0.0  # how long it lasts
    number: float = 0.0

    def __str__(self) -> str:
        parts = [f"{self.at:6.2f} s", self.kind, self.target]
        if self.other:
            parts.append(f"and {self.other}")
        if self.seconds:
            parts.append(f"for {self.seconds:.2f} s")
        if self.number:
            parts.append(f"({self.number:g})")
        return " ".join(parts)


@dataclass(frozen=True)
class Plan:
    """A simulation: the same plan has the same course, to the last bit."""

    seed: int
    setup: Setup
    faults: tuple[Fault, ...]
    seconds: float = 40.0  # of virtual time, after which all faults end

    def without(self, dropped: set[int]) -> Plan:
        """The plan without the faults of these positions."""
        kept = tuple(fault for index, fault in enumerate(self.faults) if index not in dropped)
        return replace(self, faults=kept)

    def __str__(self) -> str:
        lines = [f"seed {self.seed}: {self.setup}"]
        return "\n  ".join([*lines, *map(str, self.faults)])


def names_of(setup: Setup) -> list[str]:
    return [f"p{index}" for index in range(setup.clients)]


def draw_setup(random: Random) -> Setup:
    method = random.choice(METHODS)
    layers: dict[str, object] = {}
    if method == "spod-gt-memory" and random.random() < 0.25:
        layers["compress"] = "int8"
    if method == "spod-gt-memory" and random.random() < 0.1:
        layers["local_steps"] = 3
    drop_after = None
    if random.random() < 0.25:
        drop_after = random.choice((6.0, 12.0))
    return Setup(
        method=method,
        clients=random.choice((3, 3, 3, 4)),
        graph=random.choice(("exponential", "exponential", "ring")),
        layers=layers,
        rate=random.choice((1.0, 1.0, 2.0)),
        max_alone=random.choice((6, 20, 0)),
        commit_every=random.choice((1, 1, 1, 3)),
        drop_after=drop_after,
        durability=random.choice(("power", "power", "process")),
        p=random.choice((1.0, 1.0, 1.0, 0.4)) if method != "ab" else 1.0,
        p_hat=random.choice((1.0, 1.0, 0.6)) if method == "spod-gt-memory" else 1.0,
        dialled_by_receivers=random.random() < 0.2,
        rounds=random.choice((0, 0, 0, 0, 0, 20)),
        has_old_release=random.random() < 0.1,
    )


def draw_plan(seed: int, kinds: dict[str, float]) -> Plan:
    """The plan of a seed, with faults of some of `kinds` (name: weight), drawn for this seed.

    Swarm testing: a seed that draws few kinds explores their combinations more deeply than one with all.
    """
    random = Random(seed)
    setup = draw_setup(random)
    possible = [kind for kind in kinds if setup.durability == "power" or "power" not in kind]
    chosen = random.sample(possible, random.choice((1, 2, 3, 5, len(possible))))
    weights = [kinds[kind] for kind in chosen]
    names = names_of(setup)
    count = random.choice((1, 3, 6, 10))
    duration = random.choice(FAULT_SECONDS)
    faults = []
    for _ in range(count):
        target, other = random.sample(names, 2)
        kind = random.choices(chosen, weights)[0]
        seconds = random.choice((0.2, 1.0, 4.0, 12.0, 25.0))
        at = random.uniform(1.5, duration)
        number = random.choice((1.0, 2.0, 3.0, 5.0, 8.0, 13.0, 21.0))
        faults.append(Fault(round(at, 3), kind, target, other, seconds, number))
    faults.sort(key=lambda fault: fault.at)
    return Plan(seed, setup, tuple(faults), duration)
