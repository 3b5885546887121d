"""A recording computes what the module computes, and is refused where it could not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from spodgt.problems.gradients import Layout, flatten
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.gradients.rewrite import HalvingPool, ThinConvolution, rewritten
from spodgt.problems.gradients.tape import record
from spodgt.problems.gradients.taped import TapeEngine
from spodgt.problems.losses import cross_entropy
from spodgt.problems.models import cnn
from spodgt.problems.objective import Objective
from spodgt.problems.trainable import choose
from spodgt.problems.transformer import next_character, transformer

CLIENTS, BATCH = 3, 4


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letter, self.cells, self.last = (
            nn.Embedding(9, 5),
            nn.LSTM(5, 6, batch_first=True),
            nn.Linear(6, 9),
        )

    def forward(self, codes: Tensor) -> Tensor:
        y: Tensor = self.last(self.cells(self.letter(codes))[0])
        return y


class Looks(nn.Linear):
    """Python decides by a number."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * (2 if input.sum() > 0 else 1)


class Copies(nn.Linear):
    """Numbers leave torch and come back."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(torch.from_numpy(input.numpy().copy()))


class Selects(nn.Linear):
    """The shape of what is in between depends on numbers."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) + input[input > 0].sum()


class Counts(nn.Linear):
    """A buffer that every pass changes."""

    calls: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        self.calls += 1
        return super().forward(input) / self.calls


def engine(module: nn.Module, inputs: Tensor, targets: Tensor, text: bool = False) -> TapeEngine:
    layout = Layout.of(dict(module.named_parameters()))
    plain = LoopEngine(module.eval(), layout, Objective(next_character if text else cross_entropy, False))
    return choose(plain, inputs, targets)  # type: ignore[return-value]


CASES: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "cnn": (lambda: cnn((1, 8, 8), 9, width=2), False),
    "transformer": (lambda: transformer(7, 9, width=8, depth=1), True),
    "lstm": (Recurrent, True),
}


@pytest.mark.parametrize("name", CASES)
def test_a_replay_is_the_plain_loop(name: str) -> None:
    torch.manual_seed(1)
    build, text = CASES[name]
    module = build()
    inputs = torch.randint(9, (CLIENTS, BATCH, 7)) if text else torch.rand(CLIENTS, BATCH, 1, 8, 8)
    targets = torch.randint(9, (CLIENTS, BATCH, 7) if text else (CLIENTS, BATCH))
    ours = engine(module, inputs[0], targets[0], text)
    assert isinstance(ours, TapeEngine)
    for dtype, close in ((torch.float64, 1e-12), (torch.float32, 1e-5)):
        x = flatten(module.parameters()).to(dtype) + 0.1 * torch.randn(
            CLIENTS, ours.plain.layout.size, dtype=dtype
        )
        given = inputs if text else inputs.to(dtype)
        found = ours.with_losses(x, given, targets, [0] * CLIENTS)
        assert None not in ours.tapes.values()
        for mine, theirs in zip(found, ours.plain.with_losses(x, given, targets, [0] * CLIENTS), strict=True):
            assert_close(mine, theirs, rtol=close, atol=close)
        alone = ours.with_losses(x[1:2], given[1:2], targets[1:2], [0])
        assert torch.equal(alone[1], found[1][1:2])


@pytest.mark.parametrize("layer", [Looks, Copies, Selects, Counts])
def test_what_a_replay_would_not_do_again_runs_as_it_is(layer: type[nn.Module]) -> None:
    inputs = torch.randn(BATCH, 6)
    assert isinstance(engine(layer(6, 3), inputs, torch.arange(BATCH) % 3), LoopEngine)


def test_a_replay_takes_the_row_it_is_given() -> None:
    def work(row: Tensor, shared: Tensor, out: Tensor) -> None:
        out.copy_((row * shared).relu_())

    x, shared, out = torch.randn(4, 3), torch.randn(3), torch.zeros(4, 3)
    replay = record(work, (x, shared, out), (True, False, True))
    out.zero_()
    replay(x, shared, out, 2)
    assert torch.equal(out[2], (x[2] * shared).relu())
    assert not out[[0, 1, 3]].any()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"padding": 1}, {"stride": 2, "padding": (0, 2)}, {"dilation": 2, "padding": 2}], ids=str
)
def test_a_thin_convolution_is_a_convolution(options: dict[str, int], bias: bool) -> None:
    torch.manual_seed(2)
    layer = nn.Conv2d(2, 5, (3, 2), bias=bias, **options).double()  # type: ignore[arg-type]
    images = torch.randn(4, 2, 9, 8, dtype=torch.float64).contiguous(memory_format=torch.channels_last)
    found = []
    for module in (layer, rewritten(layer)):
        module.zero_grad()
        outputs = module(images)
        outputs.square().sum().backward()
        found.append((outputs.detach(), *(p.grad.clone() for p in module.parameters() if p.grad is not None)))
    assert type(layer) is ThinConvolution
    for one, other in zip(*found, strict=True):
        assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_pooling_before_relu_is_pooling_after_it() -> None:
    torch.manual_seed(3)
    images = torch.randint(-2, 3, (2, 1, 6, 6)).double()  # many of them equal, many zero
    found = []
    for change in (lambda module: module, rewritten):
        module = change(nn.Sequential(nn.Identity(), nn.ReLU(), nn.MaxPool2d(2)))
        given = images.clone().requires_grad_()
        outputs = module(given)
        (outputs * torch.arange(1.0, 19.0).view(2, 1, 3, 3)).sum().backward()
        assert given.grad is not None
        found.append((outputs.detach(), given.grad))
    assert torch.equal(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("size", [(6, 6), (7, 5)])
def test_pooling_by_pairs_is_pooling(size: tuple[int, int]) -> None:
    images = torch.randn(2, 3, *size).contiguous(memory_format=torch.channels_last)
    images[0, 0, 0, 1] = torch.nan
    layer = rewritten(nn.MaxPool2d(2))
    assert type(layer) is HalvingPool
    assert_close(layer(images), nn.MaxPool2d(2)(images), rtol=0, atol=0, equal_nan=True)
    for other in (
        nn.MaxPool2d(3),
        nn.MaxPool2d(2, 1),
        nn.MaxPool2d(2, padding=1),
        nn.MaxPool2d(2, ceil_mode=True),
    ):
        assert type(rewritten(other)) is nn.MaxPool2d


def test_an_engine_can_be_copied_after_it_was_used() -> None:
    inputs, targets = torch.rand(1, BATCH, 6), torch.arange(BATCH)[None] % 3
    module = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    ours = engine(module, inputs[0], targets[0])
    x = flatten(module.parameters())[None]
    found = ours.grads(x, inputs, targets, [0])
    assert torch.equal(copy.deepcopy(ours).grads(x, inputs, targets, [0]), found)
    assert ours.tapes
