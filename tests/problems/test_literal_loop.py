"""Gradients of modules on a CPU are those of a loop in plain PyTorch, whatever the module does inside."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from spodgt import Learning, rng
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.minibatch_gradients import MinibatchReader
from spodgt.problems.random_state import seed_all, seeded
from spodgt.types import Minibatches

CLIENTS, CLASSES, FEATURES = 3, 4, 6
LOSS = nn.CrossEntropyLoss()


class Recurrent(nn.Module):
    """Two layers in both directions; the last output is classified."""

    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.cells = kind(FEATURES, 5, num_layers=2, batch_first=True, bidirectional=True)  # type: ignore[call-arg, arg-type]
        self.last = nn.Linear(10, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.cells(x)[0][:, -1])
        return y


class Hidden(nn.Module):
    """Two linear layers, with room for something odd between them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, 8)
        self.last = nn.Linear(8, CLASSES)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(self.between(torch.tanh(self.first(x))))
        return y


class BranchOnList(Hidden):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden * (3 if hidden.sum(1).tolist()[0] > 0 else -0.5)


class BranchOnNumpy(Hidden):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden * (3 if hidden.detach().numpy().mean() > 0 else -0.5)


class BranchOnItem(Hidden):
    def between(self, hidden: Tensor) -> Tensor:
        return hidden * (3 if hidden.sum().item() > 0 else -0.5)


class TensorHook(Hidden):
    def between(self, hidden: Tensor) -> Tensor:
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: 2 * gradient.clamp(-0.01, 0.01))  # type: ignore[no-untyped-call]
        return hidden


class MaskedWrite(Hidden):
    def between(self, hidden: Tensor) -> Tensor:
        hidden = hidden.clone()
        hidden[hidden > 0.1] = 0.1
        hidden[:, 0] *= 0.5
        return hidden


class ParametersInAList(Hidden):
    """Weights that are also reached through a plain list."""

    def __init__(self) -> None:
        super().__init__()
        self.penalised = [self.first.weight, self.last.bias]

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * (1 + sum(weight.square().sum() for weight in self.penalised))


class TiedLayers(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.middle = nn.Linear(8, 8)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.middle.weight

    def between(self, hidden: Tensor) -> Tensor:
        y: Tensor = self.again(self.middle(hidden))
        return y


class SparseEmbedding(nn.Module):
    """Gradients of the table are sparse tensors, and a pass shortens the rows it uses in place."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(9, 8, max_norm=0.5, sparse=True)
        self.last = nn.Linear(8, CLASSES)

    def forward(self, codes: Tensor) -> Tensor:
        y: Tensor = self.last(self.table(codes).mean(1))
        return y


class Dropout(Hidden):
    def between(self, hidden: Tensor) -> Tensor:
        return nn.functional.dropout(hidden, 0.5, self.training)


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "gru 7": (lambda: Recurrent(nn.GRU), (7, 7, FEATURES)),
    "gru 12": (lambda: Recurrent(nn.GRU), (12, 12, FEATURES)),
    "lstm 7": (lambda: Recurrent(nn.LSTM), (7, 7, FEATURES)),
    "lstm 12": (lambda: Recurrent(nn.LSTM), (12, 12, FEATURES)),
    "rnn 7": (lambda: Recurrent(nn.RNN), (7, 7, FEATURES)),
    "rnn 12": (lambda: Recurrent(nn.RNN), (12, 12, FEATURES)),
    "tolist": (BranchOnList, (5, FEATURES)),
    "numpy": (BranchOnNumpy, (5, FEATURES)),
    "item": (BranchOnItem, (5, FEATURES)),
    "tensor hook": (TensorHook, (5, FEATURES)),
    "masked write": (MaskedWrite, (5, FEATURES)),
    "parameters in a list": (ParametersInAList, (5, FEATURES)),
    "tied layers": (TiedLayers, (5, FEATURES)),
    "sparse embedding": (SparseEmbedding, (5, 3)),
    "dropout": (Dropout, (5, FEATURES)),
    "grey images": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(27, CLASSES)
        ),
        (5, 1, 8, 8),
    ),
    "colour images": (
        lambda: nn.Sequential(
            nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES)
        ),
        (5, 3, 8, 8),
    ),
}


def problem_of(module: nn.Module, shape: tuple[int, ...]) -> Learning:
    """One batch per client, all of them different."""
    draws = torch.Generator().manual_seed(7)
    clients = []
    for _ in range(CLIENTS):
        inputs = torch.randn(shape, generator=draws)
        if isinstance(module, SparseEmbedding):
            inputs = torch.randint(9, shape, generator=draws)
        clients.append((inputs, torch.randint(CLASSES, shape[:1], generator=draws)))
    return Learning(module, LOSS, clients, batch_size=None, buffers="pull")


def minibatches(k: int = 3) -> Minibatches:
    rows = np.arange(CLIENTS)
    return Minibatches(rows, np.repeat(rng.key(0, "batch"), CLIENTS), rows, k)


def models_of(problem: Learning, dtype: torch.dtype) -> Tensor:
    """Other models than the module's own, one per client, with what stands behind the parameters."""
    draws = torch.Generator().manual_seed(8)
    start = torch.cat([problem.start(0), problem.statistics(0)], 1).to(dtype)
    noise = torch.randn(start.shape, generator=draws, dtype=torch.float64).to(dtype)
    noise[:, problem.parameters :] = 0
    return start + 0.3 * noise


def literal_gradients(module: nn.Module, problem: Learning, x: Tensor) -> Tensor:
    """(clients, parameters) by nothing but torch: copy the weights, call, differentiate."""
    noise = rng.words(*minibatches()[1:2], 3, minibatches().client_index, 2**32)
    rows = []
    for client in range(CLIENTS):
        own = copy.deepcopy(module).to(x.dtype).train()
        parameters = list(own.parameters())
        nn.utils.vector_to_parameters(x[client, : problem.parameters].clone(), parameters)
        inputs, targets = problem.data.samples.batch(
            problem.client_indices[client], x.device, x.dtype
        )
        with seeded(int(noise[client] >> np.uint64(1))):
            LOSS(own(inputs), targets).backward()
        gradients = [p.grad for p in parameters if p.grad is not None]
        rows.append(torch.cat([gradient.to_dense().flatten() for gradient in gradients]))
    return torch.stack(rows)


@pytest.mark.parametrize(
    ("dtype", "close"), [(torch.float64, 1e-12), (torch.float32, 1e-5)], ids=str
)
@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_a_literal_loop(name: str, dtype: torch.dtype, close: float) -> None:
    torch.manual_seed(5)
    build, shape = CASES[name]
    module = build()
    problem = problem_of(module, shape).to(torch.device("cpu"), dtype)
    x = models_of(problem, dtype)
    before = x.clone()
    expected = literal_gradients(module, problem, x)
    for _ in range(2):  # a second call sees nothing of the first
        gradients = problem.grad(x, minibatches())
        scale = float(expected.abs().max())
        assert_close(gradients, expected, rtol=close, atol=close * scale)
    assert torch.equal(x, before)


class ReplacedBuffer(Hidden):
    """A running mean that every training pass replaces by a new tensor."""

    average: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("average", torch.zeros(8))

    def between(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.average = 0.5 * self.average + 0.5 * hidden.detach().mean(0)
        return hidden - self.average


class BatchNorm(Hidden):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(8)

    def between(self, hidden: Tensor) -> Tensor:
        y: Tensor = self.norm(hidden)
        return y


@pytest.mark.parametrize("build", [BatchNorm, ReplacedBuffer])
def test_running_statistics_are_those_of_a_literal_loop(build: Callable[[], nn.Module]) -> None:
    torch.manual_seed(6)
    module = build()
    problem = problem_of(module, (5, FEATURES)).to(torch.device("cpu"), torch.float64)
    x = models_of(problem, torch.float64)
    literal = [copy.deepcopy(module).double().train() for _ in range(CLIENTS)]
    for client, own in enumerate(literal):
        nn.utils.vector_to_parameters(x[client, : problem.parameters].clone(), own.parameters())
    for _ in range(3):
        gradients = problem.grad(x, minibatches())
        for client, own in enumerate(literal):
            own.zero_grad()
            inputs, targets = problem.data.samples.batch(
                problem.client_indices[client], x.device, x.dtype
            )
            LOSS(own(inputs), targets).backward()
            expected = nn.utils.parameters_to_vector(
                [p.grad for p in own.parameters() if p.grad is not None]
            )
            assert_close(gradients[client], expected, rtol=1e-12, atol=1e-12)
            buffers = [buffer.flatten() for buffer in own.buffers() if buffer.is_floating_point()]
            assert_close(
                x[client, problem.parameters :], torch.cat(buffers), rtol=1e-12, atol=1e-12
            )


def test_dropout_draws_from_the_seed_round_and_client() -> None:
    torch.manual_seed(5)
    problem = problem_of(Dropout(), (5, FEATURES))
    x = models_of(problem, torch.float32)
    outside = torch.get_rng_state()
    first = problem.grad(x, minibatches(k=3))
    assert torch.equal(torch.get_rng_state(), outside)
    seed_all(99)
    assert torch.equal(problem.grad(x, minibatches(k=3)), first)
    assert not torch.equal(problem.grad(x, minibatches(k=4)), first)
    alone = problem.grad(x[1:2], minibatches().part(np.array([1])))
    assert torch.equal(alone, first[1:2])


def test_the_number_of_threads_changes_nothing() -> None:
    torch.manual_seed(5)
    problem = problem_of(CASES["grey images"][0](), CASES["grey images"][1])
    x = models_of(problem, torch.float32)
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            found.append(problem.grad(x, minibatches()))
    finally:
        torch.set_num_threads(threads)
    for one, other in pairwise(found):
        assert torch.equal(one, other)


def test_an_engine_that_was_used_can_be_copied_and_sent() -> None:
    torch.manual_seed(5)
    problem = problem_of(TiedLayers(), (5, FEATURES))
    engine = problem.model.engine
    assert isinstance(engine, LoopEngine)
    x = models_of(problem, torch.float32)
    first = problem.grad(x, minibatches())
    reader = MinibatchReader(problem.data)
    inputs, targets = reader.read(minibatches(), 5, x.device, x.dtype)
    for other in (copy.deepcopy(engine), pickle.loads(pickle.dumps(engine))):
        assert other.copies == {}
        assert torch.equal(other.losses_and_gradients(x, inputs, targets, [0] * CLIENTS)[1], first)
