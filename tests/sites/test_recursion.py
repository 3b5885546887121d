"""Two sites, one step of their blocks after another, against a literal transcription of the rule."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from spodgt.peer.membership.run_folders import audit_folders
from spodgt.sites.api import join
from spodgt.sites.connection import Connection
from spodgt.sites.site import Site
from tests.sites.fleet_of_threads import Point, Quadratics, make_run

pytestmark = pytest.mark.network

LENGTHS = ((1, 3), (2, 1), (4, 2), (1, 1), (3, 5), (2, 2))  # steps of both sites, in turn
MakeOptimizer = Callable[[list[nn.Parameter]], Optimizer]
TakeStep = Callable[[Site, Optimizer, Callable[[], Tensor]], None]


class Rule:
    """One site by hand: x, y, c, s, h of the recursion; its optimizer has no hooks."""

    def __init__(self, n: int, make_optimizer: MakeOptimizer) -> None:
        self.x = nn.Parameter(torch.zeros(n, dtype=torch.float64))
        self.optimizer = make_optimizer([self.x])
        self.y = torch.zeros(n, dtype=torch.float64)
        self.c = torch.zeros(n, dtype=torch.float64)
        self.s = torch.zeros(n, dtype=torch.float64)
        self.h = 0

    def step(self, gradient: Tensor, decay: float, max_norm: float | None) -> None:
        """s += g + λx; the optimizer steps along g + λx + (y - c), clipped."""
        x = self.x.detach()
        self.s = self.s + gradient + decay * x
        self.h += 1
        direction = gradient + decay * x + (self.y - self.c)
        if max_norm is not None:
            norm = direction.norm()
            direction = direction * (max_norm / (norm + 1e-6)).clamp(max=1)
        self.x.grad = direction - decay * x  # the optimizer adds it
        self.optimizer.step()

    def end_block(self, alpha: float) -> None:
        """c' = c + α (s / h - c); y += c' - c."""
        c = self.c + alpha * (self.s / self.h - self.c)
        self.y = self.y + c - self.c
        self.c = c
        self.s = torch.zeros_like(self.s)
        self.h = 0


def deliver(sender: Rule, receiver: Rule, a: float, b: float) -> None:
    """q = b y; y -= q; send (x, q): y += q, x += a (X - x)."""
    mass = b * sender.y
    sender.y = sender.y - mass
    receiver.y = receiver.y + mass
    x = receiver.x.detach()
    x += a * (sender.x.detach() - x)


def connection_of(site: Site) -> Connection:
    assert site._connection is not None
    return site._connection


def settle(sites: list[Site], seconds: float = 60) -> None:
    """Wait until all messages have arrived, then let both sites apply them."""
    deadline = time.monotonic() + seconds
    for site in sites:
        connection_of(site).handover.is_waiting = True  # messages are committed at once
    quiet_polls = 0
    while quiet_polls < 3:
        assert time.monotonic() < deadline, "messages did not arrive"
        quiet_polls = quiet_polls + 1 if all(map(_is_quiet, sites)) else 0
        time.sleep(0.002)
    for site in sites:
        connection_of(site).handover.is_waiting = False
        site._running()._take_update(connection_of(site))


def _is_quiet(site: Site) -> bool:
    connection = connection_of(site)
    node = connection.node
    if connection.handover.block is not None or node.inbox:
        return False  # first: what follows is only of interest after the block was committed
    out = node.committed.out
    is_sent = all(link.number > 0 and link.acked == link.number for link in out.values())
    return is_sent and connection.exchange._published is node.state.method


def plain_step(site: Site, optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss())
    optimizer.step()


def closure_step(site: Site, optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        torch.autograd.backward(value)
        return value

    optimizer.step(closure)  # type: ignore[arg-type] # torch: float


class ScaledStep:
    """A step with a GradScaler; every third backward pass overflows and is repeated."""

    def __init__(self) -> None:
        self.scalers: dict[int, Any] = {}
        self.count = 0

    def __call__(self, site: Site, optimizer: Optimizer, loss: Callable[[], Tensor]) -> None:
        scaler = self.scalers.setdefault(
            id(optimizer), torch.amp.GradScaler("cpu", init_scale=1024.0)
        )
        self.count += 1
        factors = [float("inf"), 1.0] if self.count % 3 == 0 else [1.0]
        for factor in factors:
            optimizer.zero_grad()
            torch.autograd.backward(scaler.scale(loss() * factor))
            scaler.step(optimizer)
            scaler.update()


CASES: dict[str, dict[str, Any]] = {
    "sgd": {},
    "closure": {"take_step": closure_step},
    "alpha": {"alpha": 0.3},
    "weight": {"weight": (0.5, 1.5)},
    "max_norm": {"max_norm": 0.7},
    "scaler": {"take_step": ScaledStep},
    "scaler, fused": {"take_step": ScaledStep, "fused": True},
    "scaler, fused, max_norm": {"take_step": ScaledStep, "fused": True, "max_norm": 0.7},
    "sgd, decay": {"decay": 0.1},
    "momentum, decay": {"decay": 0.1, "momentum": 0.9},
    "nesterov": {"momentum": 0.9, "nesterov": True},
    "adam, decay": {"type": torch.optim.Adam, "decay": 0.1},
    "adamw": {"type": torch.optim.AdamW, "decoupled": 0.1},
    "fused adam, scaler, decay": {
        "type": torch.optim.Adam, "decay": 0.1, "fused": True, "take_step": ScaledStep,
    },
    "max_norm, decay": {"max_norm": 0.7, "decay": 0.1},
    "maximize": {"maximize": True, "decay": 0.1},
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_sites_follow_the_recursion(tmp_path: Path, case: str) -> None:
    options = dict(CASES[case])
    take_step = options.pop("take_step", plain_step)
    if isinstance(take_step, type):
        take_step = take_step()
    alpha = options.pop("alpha", 1.0)
    weights = options.pop("weight", (1.0, 1.0))
    max_norm = options.pop("max_norm", None)
    decay = options.pop("decay", 0.0)
    kind = options.pop("type", torch.optim.SGD)
    decoupled = options.pop("decoupled", 0.0)
    sign = -1 if options.get("maximize") else 1

    def make_optimizer(parameters: list[nn.Parameter]) -> Optimizer:
        optimizer: Optimizer = kind(parameters, lr=0.1, weight_decay=decay + decoupled, **options)
        return optimizer

    problem = Quadratics(2)
    manifest = make_run(tmp_path / "run", Point(5), 2)
    rules = [Rule(5, make_optimizer) for _ in range(2)]
    models = [Point(5) for _ in range(2)]
    optimizers = [make_optimizer([model.x]) for model in models]
    with ExitStack() as stack:
        sites = []
        for number, name in enumerate(manifest.names):
            site = join(
                tmp_path / "run" / name,
                models[number],
                optimizers[number],
                alpha=alpha,
                weight=weights[number],
                max_norm=max_norm,
                max_silent_blocks=None,
                initial="own",
                durability="process",
                linger_seconds=0.1,
            )
            sites.append(stack.enter_context(site))
        settle(sites)
        state = connection_of(sites[0]).node.state
        (a,) = (link.weight for link in state.into.values())
        (b,) = (link.weight for link in state.out.values())
        for lengths in LENGTHS:
            for number in range(2):  # the message arrives within the block of the other site
                rule = rules[number]
                model = models[number]
                for _ in range(lengths[number]):
                    take_step(
                        sites[number],
                        optimizers[number],
                        lambda: sign * problem.loss(number, model.x),  # noqa: B023
                    )
                    x = rule.x.detach()
                    gradient = sign * problem.q[number] @ (x - problem.m[number])
                    rule.step(weights[number] * gradient, sign * decay, max_norm)
                if lengths[number] == 1:
                    continue  # the block goes on in the next turn
                sites[number].exchange()
                settle(sites)
                rule.end_block(alpha)
                deliver(rule, rules[1 - number], a, b)
                for site, rule, model in zip(sites, rules, models, strict=True):
                    method = connection_of(site).node.state.method
                    assert torch.allclose(model.x, rule.x, rtol=1e-6, atol=1e-6)
                    assert torch.allclose(method.g[0, :5], rule.c, rtol=1e-6, atol=1e-6)
                    assert torch.allclose(method.y[0, :5], rule.y, rtol=1e-6, atol=1e-6)
    assert audit_folders([tmp_path / "run" / name for name in manifest.names]).passed(1e-12)
