"""State that a model or a loss changes in training belongs to each client, or is refused by name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spodgt
from spodgt.errors import InvalidInput

DRAWS = torch.Generator().manual_seed(3)
DATA = [
    (torch.randn(8, 5, generator=DRAWS), torch.randint(0, 3, (8,), generator=DRAWS))
    for _ in range(3)
]
ENTROPY = nn.CrossEntropyLoss()
NETWORK = spodgt.Network.draw(spodgt.graphs.Complete(3))


class WarmUp(nn.Module):
    """A linear layer whose outputs grow with the number of training passes."""

    passes: Tensor

    def __init__(self, dtype: torch.dtype = torch.int64) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.register_buffer("passes", torch.zeros((), dtype=dtype))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.passes += 1
        y: Tensor = self.layer(x) * (self.passes / 100).clamp(max=1.0)
        return y


class Attribute(nn.Module):
    """The same with something that is no buffer."""

    def __init__(self, attribute: object, change: Callable[[Attribute], object]) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.held = attribute
        self.change = change

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.change(self)
        y: Tensor = self.layer(x)
        return y


class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> None:
        self.count += 1


def count(module: Attribute) -> None:
    module.held += 1  # type: ignore[operator]


CHANGES: dict[str, Callable[[], nn.Module]] = {
    "number": lambda: Attribute(0, count),
    "tensor": lambda: Attribute(torch.zeros(2), count),
    "array": lambda: Attribute(np.zeros(2), count),
    "list": lambda: Attribute([], lambda module: module.held.append(1)),  # type: ignore[attr-defined]
    "dict": lambda: Attribute({}, lambda module: module.held.setdefault(len(module.held), 1)),  # type: ignore[attr-defined, arg-type]
    "object": lambda: Attribute(Counter(), lambda module: module.held.add()),  # type: ignore[attr-defined]
    "generator": lambda: Attribute(
        np.random.default_rng(1),
        lambda module: module.held.random(),  # type: ignore[attr-defined]
    ),
}


def learning(
    model: nn.Module, loss: Callable[..., Tensor] = ENTROPY, **options: object
) -> spodgt.Learning:
    return spodgt.Learning(model, loss, DATA, DATA[0], batch_size=4, **options)  # type: ignore[arg-type]


def trained(problem: spodgt.Learning, **options: object) -> spodgt.Result:
    method = spodgt.method("dsgd", step_size=0.5)
    return spodgt.train(method, problem, NETWORK, **({"rounds": 10} | options))  # type: ignore[arg-type]


def test_integer_buffers_that_training_changes_are_refused_by_name() -> None:
    with pytest.raises(
        InvalidInput, match=r"but '1\.passes' is neither.*register_buffer.*personal='1\.passes'"
    ):
        learning(nn.Sequential(nn.Identity(), WarmUp()))


@pytest.mark.parametrize("name", CHANGES)
def test_attributes_that_training_changes_are_refused_by_name(name: str) -> None:
    with pytest.raises(InvalidInput, match=r"but 'held' is neither"):
        learning(CHANGES[name]())


class CountingLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.steps += 1
        return nn.functional.cross_entropy(outputs, targets) / self.steps


class CentringLoss(nn.Module):
    """Keeps a running mean of what it has seen."""

    centre: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(3))

    def forward(self, outputs: Tensor, targets: Tensor) -> Tensor:
        self.centre = 0.9 * self.centre + 0.1 * outputs.detach().mean(0)
        return nn.functional.cross_entropy(outputs - self.centre, targets)


def counting_function() -> Callable[[Tensor, Tensor], Tensor]:
    steps = 0

    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        nonlocal steps
        steps += 1
        return nn.functional.cross_entropy(outputs, targets) / steps

    return loss


@pytest.mark.parametrize(
    ("build", "name"),
    [
        (CountingLoss, "loss.steps"),
        (CentringLoss, "loss.centre"),
        (counting_function, "loss: steps"),
    ],
)
def test_losses_that_change_from_batch_to_batch_are_refused_by_name(
    build: Callable[[], Callable[..., Tensor]], name: str
) -> None:
    with pytest.raises(InvalidInput, match=rf"but '{name}' does.*use loss\(model, batch\)"):
        learning(nn.Linear(5, 3), build())


class Remembers(nn.Module):
    """Keeps what it made of the last batch, and a mask that is made once."""

    mask: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 3)
        self.norm = nn.BatchNorm1d(3)
        self.parts = [self.layer, self.norm]
        self.last: Tensor | None = None
        self.register_buffer("mask", torch.zeros(0, dtype=torch.bool), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if not len(self.mask):
            self.mask = torch.ones(3, dtype=torch.bool)
        self.last = self.norm(self.layer(x)) * self.mask
        return self.last


def test_what_a_pass_derives_from_its_batch_is_no_state() -> None:
    problem = learning(Remembers(), buffers="pull")
    first = trained(problem)
    second = trained(problem)
    assert torch.equal(first.models["dsgd", 0], second.models["dsgd", 0])


@pytest.mark.parametrize("options", [{"personal": "passes"}, {"buffers": "pull"}], ids=str)
def test_a_float_buffer_counts_for_each_client_and_run(options: dict[str, object]) -> None:
    """The way out that the refusal names."""
    problem = learning(WarmUp(torch.float32), **options)  # type: ignore[arg-type]
    alone = trained(problem, seeds=[1])
    again = trained(problem, seeds=[1])
    batch = trained(problem, seeds=[0, 1])
    assert torch.equal(alone.models["dsgd", 1], again.models["dsgd", 1])
    assert torch.equal(alone.models["dsgd", 1], batch.models["dsgd", 1])
    exported = alone.model("dsgd", 1)
    assert float(exported.passes) == 11  # type: ignore[arg-type]  # the first gradient and ten rounds


def test_carried_state_of_a_model_is_not_attributed_to_the_loss_by_its_name() -> None:
    class LossCounter(nn.Module):
        """Counts training passes in an attribute with a name that begins with "loss"."""

        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)
            self.loss_count = 0

        def forward(self, x: Tensor) -> Tensor:
            self.loss_count += 1
            y: Tensor = self.layer(x)
            return y

    with pytest.raises(InvalidInput, match=r"^model must keep what it changes .* 'loss_count'"):
        spodgt.Learning(LossCounter(), ENTROPY, DATA)
