"""A recording computes what the module computes, and is refused where it could not."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.testing import assert_close

from spodgt.problems.gradients import Layout, flatten
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.gradients.rewrite import PooledConvolution, rewritten
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


class Attends(nn.Module):
    """Attention in torch's own words."""

    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.letter, self.mixed, self.last = nn.Embedding(9, 8), nn.Linear(8, 24), nn.Linear(8, 9)
        self.drop = drop

    def forward(self, codes: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.mixed(self.letter(codes)).chunk(3, -1)
        )
        seen = nn.functional.scaled_dot_product_attention(q, k, v, dropout_p=self.drop, is_causal=True)
        y: Tensor = self.last(seen.transpose(1, 2).flatten(2))
        return y


def engine(module: nn.Module, inputs: Tensor, targets: Tensor, text: bool = False) -> TapeEngine:
    layout = Layout.of(dict(module.named_parameters()))
    plain = LoopEngine(module.eval(), layout, Objective(next_character if text else cross_entropy, False))
    return choose(plain, inputs, targets)  # type: ignore[return-value]


CASES: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "cnn": (lambda: cnn((1, 8, 8), 9, width=2), False),
    "transformer": (lambda: transformer(7, 9, width=8, depth=1), True),
    "lstm": (Recurrent, True),
    "attention": (Attends, True),
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


def test_attention_that_drops_numbers_is_not_replayed() -> None:
    codes = torch.randint(9, (BATCH, 7))
    assert isinstance(engine(Attends(0.1), codes, codes, text=True), LoopEngine)


def test_a_replay_takes_the_row_it_is_given() -> None:
    def work(row: Tensor, shared: Tensor, out: Tensor) -> None:
        out.copy_((row * shared).relu_())

    x, shared = torch.randn(4, 3), torch.randn(3)
    replay = record(work, (x,), (shared,), (torch.empty(3),))
    assert torch.equal(replay(x, shared, 2)[0], (x[2] * shared).relu())


def test_a_replay_begins_with_the_same_constants() -> None:
    def work(row: Tensor, out: Tensor) -> None:
        total = torch.zeros(3)
        total += row
        out.copy_(total * torch.ones(3).mul_(2).neg())

    x = torch.randn(2, 3)
    replay = record(work, (x,), (), (torch.empty(3),))
    for client in (0, 1, 0):
        assert torch.equal(replay(x, client)[0], -2 * x[client])


USES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "once": lambda scores, index: scores.gather(1, index).mean(),
    "weighted": lambda scores, index: (scores.gather(1, index) * torch.arange(4.0)[:, None]).sum(),
    "twice": lambda scores, index: scores.gather(1, index).sum() + scores.gather(1, index.flip(0)).sum(),
    "two in a row": lambda scores, index: scores.gather(1, torch.cat([index, index], 1)).sum(),
    "some rows": lambda scores, index: scores.gather(1, index[:2]).sum(),
    "along columns": lambda scores, index: scores.gather(0, index.t()).sum(),
    "squares": lambda scores, index: scores.gather(1, index).square().sum() + scores.square().sum(),
}


@pytest.mark.parametrize("name", USES)
def test_slopes_of_a_softmax_are_those_that_were_recorded(name: str) -> None:
    def work(row: Tensor, index: Tensor, out: Tensor) -> None:
        with torch.enable_grad():
            scores = row.detach().requires_grad_()
            value = USES[name](scores.log_softmax(1), index)
            out.copy_(torch.autograd.grad(value, scores)[0])

    x, index = torch.randn(2, 4, 5), torch.tensor([[3], [0], [0], [2]])
    replay = record(work, (x,), (index,), (torch.empty(4, 5),))
    expected = torch.zeros(4, 5)
    work(x[1], index, expected)
    assert_close(replay(x, index, 1)[0], expected, rtol=1e-5, atol=1e-6)


def found(module: nn.Module, images: Tensor) -> list[Tensor]:
    """Outputs, and derivatives by all parameters and pixels."""
    given = images.clone().requires_grad_()
    outputs = module(given)
    (outputs * (torch.arange(outputs.numel()) % 7 - 2).view_as(outputs)).sum().backward()
    grads = [p.grad for p in module.parameters()]
    return [outputs.detach(), *(grad for grad in [given.grad, *grads] if grad is not None)]


sizes = st.integers(1, 3)


@settings(max_examples=60)
@given(
    channels=st.tuples(st.integers(1, 10), st.integers(1, 26)),
    kernel=st.tuples(sizes, sizes),
    padding=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    stride=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    dilation=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    image=st.tuples(st.integers(7, 12), st.integers(7, 12)),
    bias=st.booleans(),
    whole=st.booleans(),
    pools_first=st.booleans(),
    dtype=st.sampled_from([torch.float64, torch.float32]),
    seed=st.integers(0, 99),
)
def test_a_pooled_convolution_is_convolution_relu_and_pooling(
    channels: tuple[int, int],
    kernel: tuple[int, int],
    padding: tuple[int, int],
    stride: tuple[int, int],
    dilation: tuple[int, int],
    image: tuple[int, int],
    bias: bool,
    whole: bool,
    pools_first: bool,
    dtype: torch.dtype,
    seed: int,
) -> None:
    draws = torch.Generator().manual_seed(seed)
    layer = nn.Conv2d(
        *channels, kernel, padding=padding, stride=stride, dilation=dilation, bias=bias, dtype=dtype
    )
    images = torch.randn(2, channels[0], *image, dtype=dtype, generator=draws)
    for each in layer.parameters():
        each.data = torch.randn(each.shape, dtype=dtype, generator=draws)
    if whole:  # exact, with many equal and many zero
        images.round_()
        for each in layer.parameters():
            each.data.round_()
    behind = [nn.ReLU(), nn.MaxPool2d(2)]
    module = nn.Sequential(layer, *(reversed(behind) if pools_first else behind))
    expected = found(copy.deepcopy(module), images)
    assert type(rewritten(module, loops=True)[0]) is PooledConvolution  # type: ignore[index]
    close = 0 if whole else 1e-12 if dtype == torch.float64 else 1e-4
    for ours, theirs in zip(found(module, images), expected, strict=True):
        assert_close(ours, theirs, rtol=close, atol=close * float(theirs.abs().max()))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_pooled_convolution_hides_no_number_that_is_none(value: float) -> None:
    torch.manual_seed(4)
    plain = nn.Sequential(nn.Conv2d(2, 9, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
    images = torch.randn(3, 2, 9, 6)
    images[1, 0, 4, 3] = value
    expected = found(copy.deepcopy(plain), images)
    ours = found(rewritten(plain, loops=True), images)
    assert_close(ours[0], expected[0], equal_nan=True)
    for mine, theirs in zip(ours, expected, strict=True):
        assert bool((mine.isfinite() <= theirs.isfinite()).all())  # what torch shows is not hidden


def test_only_what_fits_is_pooled() -> None:
    pooled = [nn.ReLU(), nn.MaxPool2d(2)]
    for layer, behind in (
        (nn.Conv2d(4, 4, 3, groups=2), pooled),
        (nn.Conv2d(2, 4, 3, padding="same"), pooled),
        (nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), pooled),
        (nn.Conv2d(64, 64, 3), pooled),
        (nn.Conv2d(2, 4, 3), [nn.ReLU(), nn.MaxPool2d(3)]),
        (nn.Conv2d(2, 4, 3), [nn.ReLU(), nn.MaxPool2d(2, 1)]),
        (nn.Conv2d(2, 4, 3), [nn.ReLU(), nn.MaxPool2d(2, padding=1)]),
        (nn.Conv2d(2, 4, 3), [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]),
        (nn.Conv2d(2, 4, 3), [nn.MaxPool2d(2), nn.Tanh()]),
    ):
        assert type(rewritten(nn.Sequential(layer, *behind), loops=True)[0]) is nn.Conv2d  # type: ignore[index]
    module = nn.Sequential(nn.Conv2d(2, 4, 3), *pooled)
    assert type(rewritten(module, loops=False)[0]) is nn.Conv2d  # type: ignore[index]


def test_pooled_convolutions_are_the_same_on_any_number_of_threads() -> None:
    torch.manual_seed(5)
    module = cnn((1, 12, 12), 9, width=4)
    inputs, targets = torch.rand(6, BATCH, 1, 12, 12), torch.randint(9, (6, BATCH))
    ours, results, threads = engine(module, inputs[0], targets[0]), [], torch.get_num_threads()
    x = flatten(module.parameters()) + 0.1 * torch.randn(6, ours.plain.layout.size)
    try:
        for number in (1, 2):
            torch.set_num_threads(number)
            results.append(ours.grads(x, inputs, targets, [0] * 6))
    finally:
        torch.set_num_threads(threads)
    assert None not in ours.tapes.values()
    assert torch.equal(*results)


def test_pooling_before_relu_is_pooling_after_it() -> None:
    torch.manual_seed(3)
    images = torch.randint(-2, 3, (2, 1, 6, 6)).double()  # many of them equal, many zero
    plain = nn.Sequential(nn.Identity(), nn.ReLU(), nn.MaxPool2d(2))
    expected = found(plain, images)
    for ours, theirs in zip(found(rewritten(plain, loops=True), images), expected, strict=True):
        assert torch.equal(ours, theirs)


def test_an_engine_can_be_copied_after_it_was_used() -> None:
    inputs, targets = torch.rand(1, BATCH, 6), torch.arange(BATCH)[None] % 3
    module = nn.Sequential(nn.Linear(6, 3), nn.Tanh())
    ours = engine(module, inputs[0], targets[0])
    x = flatten(module.parameters())[None]
    found = ours.grads(x, inputs, targets, [0])
    assert torch.equal(copy.deepcopy(ours).grads(x, inputs, targets, [0]), found)
    assert ours.tapes


def _odd(row: Tensor, other: Tensor, shared: Tensor, out: Tensor) -> None:
    """Views of views, results in given memory, what is written twice, and what nobody reads."""
    torch.exp(row)
    square = (row.view(2, 3).t() @ other[:2].reshape(2, 1)).t()
    square.mul_(2).add_(shared[1:2, :3])
    wide = torch.cat([square, square.flip(1)], 1).expand(2, 6)
    torch.add(wide[0], wide[1].sigmoid(), out=out[:6])
    out[6:].copy_(out[:2].clone().sum(0, keepdim=True).expand(2))


@pytest.mark.parametrize("most", [0, 2**24])
@pytest.mark.parametrize("first", [0, 2])
def test_rows_anywhere_in_memory_are_replayed(most: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In memory that is kept, and in fresh memory; a recording of one place serves others."""
    monkeypatch.setattr("spodgt.problems.gradients.memory._MOST", most)
    draws = torch.Generator().manual_seed(1)
    wholes = torch.randn(9, 6, generator=draws), torch.randn(4, 9, generator=draws).t()
    shared = torch.randn(2, 5, generator=draws)
    given = [whole[first : first + 4] for whole in wholes]
    replay = record(_odd, given, (shared,), (torch.empty(8),))
    for rows in (given, [whole[5:] for whole in wholes]):
        for i in range(4):
            expected = torch.zeros(8)
            _odd(rows[0][i], rows[1][i], shared, expected)
            assert torch.equal(replay(*rows, shared, i)[0], expected)


def _moves(row: Tensor, first: Tensor, second: Tensor, out: Tensor) -> None:
    """Results that are read and written after they were copied, and rows that are written to."""
    made, again, kept = row.exp(), row.neg(), row.sigmoid()
    out[:3].copy_(made)
    out[3:6].copy_(again)
    out[6:9].copy_(kept)
    out[9:].copy_(first)
    out[3:6].mul_(2)
    first.sub_(again)  # as it was before it was doubled
    again.add_(1)
    kept.mul_(3)
    out[6:9].sub_(kept)
    second.add_(out[:3]).mul_(made)
    first.add_(out[9:])


@pytest.mark.parametrize("most", [0, 2**24])
def test_results_are_made_in_place_only_where_nobody_sees_it(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("spodgt.problems.gradients.memory._MOST", most)
    rows = torch.randn(4, 3), torch.randn(4, 3), torch.randn(4, 3)
    ours, theirs = ([row.clone() for row in rows] for _ in range(2))
    replay = record(_moves, ours, (), (torch.empty(12),))
    assert len(replay.plan.idle) == (1 if most else 0)  # the first
    assert all(torch.equal(mine, row) for mine, row in zip(ours, rows, strict=True))
    for i in (2, 0, 2):
        expected = torch.empty(12)
        _moves(theirs[0][i], theirs[1][i], theirs[2][i], expected)
        assert torch.equal(replay(*ours, i)[0], expected)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, theirs, strict=True))


def test_memory_is_shared_by_what_is_not_needed_together() -> None:
    def work(row: Tensor, out: Tensor) -> None:
        for _ in range(20):
            row = row.exp().neg()
        out.copy_(row)

    x = torch.randn(2, 1000)
    replay = record(work, (x,), (), (torch.empty(1000),))
    assert replay.plan.size <= 6 * 4096


@pytest.mark.parametrize("name", ["transformer", "lstm"])
def test_replays_in_kept_and_in_fresh_memory_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = transformer(4, 9, 8) if name == "transformer" else Recurrent()
    inputs, targets = (torch.randint(0, 9, (CLIENTS, BATCH, 4)) for _ in range(2))
    plain = LoopEngine(module, Layout.of(dict(module.named_parameters())), Objective(next_character, False))
    x = torch.randn(CLIENTS, plain.layout.size)
    found = []
    for most in (0, 2**24):
        monkeypatch.setattr("spodgt.problems.gradients.memory._MOST", most)
        engine = TapeEngine(plain)
        found.append(engine.with_losses(x, inputs, targets, [0] * CLIENTS))
        assert all(tape is not None and (tape.plan.size > 0) == (most > 0) for tape in engine.tapes.values())
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
