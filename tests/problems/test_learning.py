"""`Learning`: gradients as plain autograd's, honest batches, and data as people have them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.data import Dataset, Subset, TensorDataset

import spodgt
from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems import classification
from spodgt.problems.losses import cross_entropy, multi_margin, one_vs_rest
from spodgt.problems.minibatch_gradients import sample_without_replacement
from spodgt.types import Minibatches
from tests.strategies import SEEDS

CLIENTS = 3
DRAWS = torch.Generator().manual_seed(0)
INPUTS = torch.randn(CLIENTS, 12, 2, 4, 4, generator=DRAWS)
TARGETS = torch.randint(0, 5, (CLIENTS, 12), generator=DRAWS)
DATA = list(zip(INPUTS, TARGETS, strict=True))


def linear() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(32, 5))


MODULES: dict[str, Callable[[], nn.Module]] = {
    "linear": linear,
    "linear without bias": lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 5, bias=False)),
    "mlp": lambda: nn.Sequential(nn.Flatten(), nn.Linear(32, 7), nn.Tanh(), nn.Linear(7, 5)),
    "convolution": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48, 5)
    ),
    "group norm": lambda: nn.Sequential(nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(32, 5)),
}
LOSSES: dict[str, Any] = {
    "hinge": nn.MultiMarginLoss(),
    "entropy": nn.CrossEntropyLoss(),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "weighted": nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2, 3, 4, 5])),
    "squared hinge": nn.MultiMarginLoss(p=2),
    "own": lambda outputs, targets: (
        nn.functional.cross_entropy(outputs, targets) + 0.1 * outputs.square().mean()
    ),
}


def reference(module: nn.Module, loss: Any, x: Tensor, inputs: Tensor, targets: Tensor) -> Tensor:
    """One client with torch alone."""
    module = module.to(x.dtype)
    nn.utils.vector_to_parameters(x.clone(), module.parameters())
    module.zero_grad()
    loss = copy.deepcopy(loss).to(x.dtype) if isinstance(loss, nn.Module) else loss
    loss(module(inputs.to(x.dtype)), targets).backward()
    return torch.cat([p.grad.reshape(-1) for p in module.parameters() if p.grad is not None])


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("loss", LOSSES)
def test_full_gradients_are_plain_autograd(name: str, loss: str) -> None:
    module, measure = MODULES[name](), LOSSES[loss]
    problem = spodgt.Learning(module, measure, DATA, batch_size=None).to(
        torch.device("cpu"), torch.float64
    )
    x = torch.randn(
        CLIENTS, problem.parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    rows, keys = np.arange(CLIENTS), np.repeat(rng.key(0, "batch"), CLIENTS)
    ours = problem.grad(x, Minibatches(rows, keys, rows, 1))
    losses, full = problem.full(x, rows)
    for i in range(CLIENTS):
        expected = reference(module, measure, x[i], INPUTS[i], TARGETS[i])
        torch.testing.assert_close(ours[i], expected, rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(full[i], expected, rtol=1e-9, atol=1e-11)
    assert losses.shape == (CLIENTS,)
    some = np.array([0, 2])  # a part of the clients is asked for, as when one is idle
    torch.testing.assert_close(
        problem.grad(x[some], Minibatches(some, keys[some], some, 1)), ours[some]
    )


@given(SEEDS, st.integers(2, 6), st.integers(1, 9))
def test_losses_of_many_clients_are_those_of_torch(seed: int, classes: int, batch: int) -> None:
    draws = torch.Generator().manual_seed(seed)
    outputs = 2 * torch.randn(3, batch, classes, generator=draws, dtype=torch.float64)
    targets = torch.randint(0, classes, (3, batch), generator=draws)
    for ours, theirs in (
        (multi_margin, nn.MultiMarginLoss()),
        (cross_entropy, nn.CrossEntropyLoss()),
    ):
        expected = torch.stack([theirs(o, t) for o, t in zip(outputs, targets, strict=True)])
        torch.testing.assert_close(ours(outputs, targets), expected)
    signs = 2.0 * nn.functional.one_hot(targets, classes) - 1
    torch.testing.assert_close(
        one_vs_rest(outputs, targets), (1 - signs * outputs).clamp(min=0).mean((1, 2))
    )


# --- batches ---------------------------------------------------------------------------------------
@given(
    SEEDS,
    st.integers(0, 10**6),
    st.lists(st.integers(5, 40), min_size=1, max_size=4),
    st.integers(1, 5),
)
def test_a_batch_has_no_sample_twice(seed: int, k: int, sizes: list[int], count: int) -> None:
    rows = np.arange(len(sizes))
    drawn = sample_without_replacement(
        np.repeat(rng.key(seed, "batch"), len(sizes)), rows, k, np.array(sizes), count
    )
    for row, size in zip(drawn, sizes, strict=True):
        assert len(set(row.tolist())) == count
        assert 0 <= row.min() <= row.max() < size


def test_every_sample_is_drawn_equally_often() -> None:
    keys, places, sizes = np.repeat(rng.key(0, "batch"), 1), np.zeros(1, np.int64), np.array([10])
    counts = np.zeros(10)
    for k in range(3000):
        counts[sample_without_replacement(keys, places, k, sizes, 3)[0]] += 1
    assert np.abs(counts - 900).max() < 5 * np.sqrt(3000 * 0.3 * 0.7)


def test_mini_batches_are_gradients_of_their_samples_and_average_to_the_full_one() -> None:
    problem = spodgt.Learning(linear(), nn.CrossEntropyLoss(), DATA, batch_size=4)
    x = torch.zeros(CLIENTS, problem.parameters, dtype=torch.float64)
    problem = problem.to(torch.device("cpu"), torch.float64)
    rows, keys = np.arange(CLIENTS), np.repeat(rng.key(0, "batch"), CLIENTS)
    seen = torch.stack([problem.grad(x, Minibatches(rows, keys, rows, k)) for k in range(200)])
    assert (seen[0] != seen[1]).any()
    torch.testing.assert_close(seen[7], problem.grad(x, Minibatches(rows, keys, rows, 7)))
    error = (seen.mean(0) - problem.full(x, rows)[1]).norm() / seen.std(0).norm()
    assert error < 4 / np.sqrt(200)


def test_a_client_with_less_than_a_batch_gives_all_it_has() -> None:
    few = [
        (INPUTS[0], TARGETS[0]),
        (INPUTS[1][:3], TARGETS[1][:3]),
        (INPUTS[2][:1], TARGETS[2][:1]),
    ]
    problem = spodgt.Learning(linear(), nn.MultiMarginLoss(), few, batch_size=8)
    assert problem.client_indices.sizes.tolist() == [12, 3, 1]
    rows, keys = np.arange(CLIENTS), np.repeat(rng.key(5, "batch"), CLIENTS)
    x = problem.start(0).contiguous()
    g, (_, full) = problem.grad(x, Minibatches(rows, keys, rows, 2)), problem.full(x, rows)
    torch.testing.assert_close(g[1:], full[1:])
    result = spodgt.train(
        "spod-gt", problem, spodgt.Network.ring(3), spodgt.Bernoulli(0.5, 0.5), rounds=10
    )
    assert np.isfinite(result.frame["gradient_norm"]).all()


# --- data as people have them ----------------------------------------------------------------------
class Mine(Dataset[Any]):
    """A map-style dataset that gives arrays and plain numbers."""

    def __init__(self, inputs: Tensor, targets: Tensor) -> None:
        self.inputs, self.targets = inputs, targets

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> tuple[Any, int]:
        return self.inputs[i].numpy(), int(self.targets[i])


@pytest.mark.parametrize(
    "wrap",
    [
        Mine,
        TensorDataset,
        lambda x, y: (x, y),
        lambda x, y: [x, y],
        lambda x, y: Subset(TensorDataset(x, y), range(len(x))),
        lambda x, y: list(zip(x, y, strict=True)),
    ],
    ids=["Dataset", "TensorDataset", "tuple", "list of tensors", "Subset", "list of pairs"],
)
def test_datasets_of_every_kind(wrap: Any) -> None:
    kinds = [wrap(x, y) for x, y in DATA]
    options: Any = {"batch_size": 4, "init": "fresh", "cache": True}
    problem = spodgt.Learning(linear(), nn.CrossEntropyLoss(), kinds, test=kinds[0], **options)
    plain = spodgt.Learning(linear(), nn.CrossEntropyLoss(), DATA, test=DATA[0], **options)
    ours, theirs = (
        spodgt.train("spod-gt", p, spodgt.Network.ring(3), rounds=5).frame for p in (problem, plain)
    )
    assert ours.equals(theirs)
    assert ours["accuracy"].between(0, 1).all()


def test_bytes_are_scaled_and_whole_numbers_are_not() -> None:
    pixels = (INPUTS * 30 + 128).clamp(0, 255).byte()
    module = linear()
    as_bytes = spodgt.Learning(
        module, nn.CrossEntropyLoss(), list(zip(pixels, TARGETS, strict=True))
    )
    as_floats = spodgt.Learning(
        module, nn.CrossEntropyLoss(), list(zip(pixels.float() / 255, TARGETS, strict=True))
    )
    one, other = (
        spodgt.train("spod-gt", p, spodgt.Network.ring(3), rounds=5) for p in (as_bytes, as_floats)
    )
    np.testing.assert_allclose(one.frame["gradient_norm"], other.frame["gradient_norm"], rtol=1e-5)


def test_float64_on_request() -> None:
    problem = spodgt.Learning(linear(), nn.CrossEntropyLoss(), DATA, batch_size=None)
    options: dict[str, Any] = {"rounds": 20, "keep_states": True}
    double = spodgt.train(
        "spod-gt", problem, spodgt.Network.ring(3), dtype=torch.float64, **options
    )
    single = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), **options)
    assert double.states[0].x.dtype == torch.float64
    torch.testing.assert_close(
        single.states[0].x.double(), double.states[0].x, rtol=1e-4, atol=1e-5
    )


def test_regression_has_a_loss_and_no_accuracy() -> None:
    slope = torch.randn(4, 1, generator=torch.Generator().manual_seed(3))
    inputs = torch.randn(3, 20, 4, generator=torch.Generator().manual_seed(4))
    data = [(x, x @ slope) for x in inputs]
    problem = spodgt.Learning(nn.Linear(4, 1), nn.MSELoss(), data, test=data[0], batch_size=None)
    result = spodgt.train(spodgt.SpodGT(step_size=0.1), problem, spodgt.Network.ring(3), rounds=300)
    assert "accuracy" not in result.frame
    assert result.final()["loss"].item() < 1e-6


# --- starts, dropout, buffers ----------------------------------------------------------------------
def test_starts_are_drawn_per_seed_and_shared_by_all_clients() -> None:
    module = linear()
    problem = spodgt.Learning(module, nn.CrossEntropyLoss(), DATA, init="fresh")
    first = problem.start(0)
    assert (first == first[0]).all()
    torch.testing.assert_close(first, problem.start(0))
    assert (first != problem.start(1)).any()
    each = spodgt.Learning(
        module, nn.CrossEntropyLoss(), DATA, init="fresh", same_start=False
    ).start(0)
    assert (each[0] != each[1]).any()
    kept = spodgt.Learning(module, nn.CrossEntropyLoss(), DATA, init="given").start(3)
    torch.testing.assert_close(kept[0], nn.utils.parameters_to_vector(module.parameters()))


def test_the_users_module_and_random_state_are_left_alone() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(32, 5)).train()
    before = nn.utils.parameters_to_vector(module.parameters()).clone()
    torch.manual_seed(3)
    state = torch.get_rng_state()
    problem = spodgt.Learning(module, nn.CrossEntropyLoss(), DATA)
    spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=5)
    torch.testing.assert_close(nn.utils.parameters_to_vector(module.parameters()), before)
    assert module.training
    assert all(p.grad is None for p in module.parameters())
    assert torch.equal(torch.get_rng_state(), state)


def test_dropout_is_reproducible_and_alive() -> None:
    module = nn.Sequential(nn.Flatten(), nn.Linear(32, 16), nn.Dropout(0.5), nn.Linear(16, 5))
    problem = spodgt.Learning(module, nn.CrossEntropyLoss(), DATA, test=DATA[0], batch_size=None)
    torch.manual_seed(0)
    first = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), seeds=[0, 1], rounds=6).frame
    torch.manual_seed(99)
    again = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), seeds=[0, 1], rounds=6).frame
    assert first.equals(again)
    rows, keys = np.arange(CLIENTS), np.repeat(rng.key(0, "batch"), CLIENTS)
    x = problem.start(0).contiguous()
    one, two = (problem.grad(x, Minibatches(rows, keys, rows, k)) for k in (1, 2))
    assert (one != two).any(), "full batches, so only the masks differ"
    torch.testing.assert_close(problem.evaluate(x).loss, problem.evaluate(x).loss)


def test_batch_norm_is_refused_with_a_way_out() -> None:
    module = nn.Sequential(nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(32, 5))
    with pytest.raises(
        InvalidInput,
        match=r"must not change buffers .* '0.running_mean' changes?d?; replace BatchNorm",
    ):
        spodgt.Learning(module, nn.CrossEntropyLoss(), DATA)


@pytest.mark.parametrize("model", ["svm", "svm-ovr", "logistic", "mlp", "cnn"])
def test_shipped_models_learn(model: str) -> None:
    problem = classification(model=model, clients=3, batch_size=16)
    result = spodgt.train(
        spodgt.method("spod-gt", step_size=0.05),
        problem,
        spodgt.Network.draw(spodgt.graphs.Complete(3)),
        rounds=30,
        evaluations=1,
    )
    assert result.final()["accuracy"].item() > 0.25


BAD: dict[str, tuple[Any, str]] = {
    "no module": (
        lambda: spodgt.Learning("svm", nn.CrossEntropyLoss(), DATA),  # type: ignore[arg-type]
        "model must be a torch.nn.Module, got str.",
    ),
    "no loss": (
        lambda: spodgt.Learning(linear(), "hinge", DATA),  # type: ignore[arg-type]
        "loss must be callable, got str; use torch.nn.CrossEntropyLoss().",
    ),
    "loss per sample": (
        lambda: spodgt.Learning(linear(), nn.CrossEntropyLoss(reduction="none"), DATA),
        "loss must return one number, got shape (4,); use reduction='mean'.",
    ),
    "no parameters": (
        lambda: spodgt.Learning(nn.Flatten(), nn.CrossEntropyLoss(), DATA),
        "model must have parameters to train, got none.",
    ),
    "no clients": (
        lambda: spodgt.Learning(linear(), nn.CrossEntropyLoss(), []),
        "clients must hold at least one dataset, got none.",
    ),
    "empty client": (
        lambda: spodgt.Learning(
            linear(), nn.CrossEntropyLoss(), [DATA[0], (INPUTS[0][:0], TARGETS[0][:0])]
        ),
        "client 1 has no samples; give it data or leave it out of the network.",
    ),
    "targets missing": (
        lambda: spodgt.Learning(linear(), nn.CrossEntropyLoss(), [(INPUTS[0], TARGETS[0][:5])]),
        "client 0 has 12 inputs but 5 targets; give one target per input.",
    ),
    "shapes differ": (
        lambda: spodgt.Learning(
            linear(), nn.CrossEntropyLoss(), [DATA[0], (torch.ones(4, 3), TARGETS[0][:4])]
        ),
        "client 1 has inputs of shape (3,), client 0 of (2, 4, 4); all must have the same.",
    ),
    "not finite": (
        lambda: spodgt.Learning(linear(), nn.CrossEntropyLoss(), [(INPUTS[0] / 0, TARGETS[0])]),
        "client 0 has inputs that are NaN or infinite, first in sample 0; clean the data.",
    ),
    "wrong size": (
        lambda: spodgt.Learning(
            nn.Sequential(nn.Flatten(), nn.Linear(9, 5)), nn.CrossEntropyLoss(), DATA
        ),
        "model and loss failed on a few samples of client 0: "
        "mat1 and mat2 shapes cannot be multiplied (4x32 and 9x5); "
        "inputs are (batch, 2, 4, 4), targets (batch): make model and loss fit them.",
    ),
    "label out of range": (
        lambda: spodgt.Learning(
            linear(), nn.CrossEntropyLoss(), [DATA[0], (INPUTS[1], TARGETS[1] + 4)]
        ),
        "client 1 has target 6, but the model has 5 outputs, so targets are 0 to 4; "
        "relabel the data or give the model more outputs.",
    ),
    "test label out of range": (
        lambda: spodgt.Learning(
            linear(), nn.MultiMarginLoss(), DATA, test=(INPUTS[1], TARGETS[1] - 9)
        ),
        "test has target -7, but the model has 5 outputs, so targets are 0 to 4; "
        "relabel the data or give the model more outputs.",
    ),
    "batch size": (
        lambda: spodgt.Learning(linear(), nn.CrossEntropyLoss(), DATA, batch_size=0),
        "batch_size must be a whole number of at least 1 or None, got 0; use 16.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_learning_problems_are_refused_in_one_sentence(case: str) -> None:
    build, sentence = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        build()
    assert str(caught.value).replace(": addmm:", ":") == sentence  # torch 2.15 names the function


# --- not what it looks like ---------------------------------------------------------------------------
class Scaled(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(3 * input)


class Shifted(nn.Sequential):
    def forward(self, input: Any) -> Any:
        return 2 * super().forward(input) - 1  # type: ignore[no-untyped-call]


class Focal(nn.CrossEntropyLoss):
    def forward(self, input: Tensor, target: Tensor) -> Tensor:
        chance = input.log_softmax(-1).gather(-1, target[:, None]).exp()
        return (-((1 - chance) ** 2) * chance.log()).mean()


@pytest.mark.parametrize(
    ("module", "loss"),
    [
        (nn.Sequential(nn.Flatten(), Scaled(32, 5)), nn.CrossEntropyLoss()),
        (Shifted(nn.Flatten(), nn.Linear(32, 5)), nn.CrossEntropyLoss()),
        (linear(), Focal()),
    ],
    ids=["own linear layer", "own sequence", "own cross entropy"],
)
def test_subclasses_of_known_classes_are_taken_by_what_they_compute(
    module: nn.Module, loss: nn.Module
) -> None:
    problem = spodgt.Learning(module, loss, DATA, test=DATA[0], batch_size=None)
    x = problem.start(0)
    losses, grads = problem.full(x, np.arange(CLIENTS))
    for client, (inputs, targets) in enumerate(DATA):
        expected = reference(copy.deepcopy(module), loss, x[client], inputs, targets)
        torch.testing.assert_close(grads[client], expected, rtol=1e-4, atol=1e-6)
    again = copy.deepcopy(module)
    nn.utils.vector_to_parameters(x[0], again.parameters())
    true = float(loss(again(DATA[0][0]), DATA[0][1]).detach())
    assert float(losses[0]) == pytest.approx(true, rel=1e-5)
    assert float(problem.evaluate(x).loss[0]) == pytest.approx(true, rel=1e-5)


@pytest.mark.parametrize(
    "loss",
    [
        nn.CrossEntropyLoss(),
        nn.CrossEntropyLoss(weight=torch.tensor([1.0, 10.0, 100.0])),
        nn.CrossEntropyLoss(ignore_index=2),
    ],
    ids=["mean", "weighted", "ignoring"],
)
def test_losses_of_many_samples_are_those_of_one_piece(loss: nn.Module) -> None:
    """More samples than go through a network at once, sorted by class, so that pieces weigh differently."""
    targets = torch.arange(3).repeat_interleave(100)
    inputs = (
        torch.randn(300, 1, 4, 4, generator=torch.Generator().manual_seed(1))
        + targets[:, None, None, None]
    )
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3))
    problem = spodgt.Learning(module, loss, [(inputs, targets)], test=(inputs, targets))
    x = problem.start(0)
    losses, grads = problem.full(x, np.arange(1))
    nn.utils.vector_to_parameters(x[0], module.parameters())
    true = loss(module(inputs), targets)
    true.backward()
    slope = torch.cat(
        [part.grad.flatten() for part in module.parameters() if part.grad is not None]
    )
    torch.testing.assert_close(losses[0], true.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(grads[0], slope, rtol=1e-4, atol=1e-5)
    assert float(problem.evaluate(x).loss[0]) == pytest.approx(float(true.detach()), rel=1e-5)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int32, torch.int64])
def test_classes_may_be_whole_numbers_of_any_kind(kind: torch.dtype) -> None:
    data = [(inputs, targets.to(kind)) for inputs, targets in DATA]
    problem = spodgt.Learning(linear(), nn.CrossEntropyLoss(), data, test=data[0])
    result = spodgt.train(
        "spod-gt", problem, spodgt.Network.ring(CLIENTS), rounds=3, gradient_norm=True
    )
    assert result.frame["gradient_norm"].notna().all()


@pytest.mark.parametrize(
    ("clients", "test", "message"),
    [
        (
            [((INPUTS[0] * 9).byte(), TARGETS[0]), (INPUTS[1], TARGETS[1])],
            None,
            "client 1 has inputs of torch.float32, client 0 of torch.uint8; all must have the same.",
        ),
        (
            [(INPUTS[0], TARGETS[0]), (INPUTS[1], TARGETS[1][:, None])],
            None,
            "client 1 has targets of shape (1,), client 0 of (); all must have the same.",
        ),
        (
            [(INPUTS[0], TARGETS[0])],
            (INPUTS[0, :, :1], TARGETS[0]),
            "test has inputs of shape (1, 4, 4), client 0 of (2, 4, 4); all must have the same.",
        ),
    ],
    ids=["bytes and floats", "shapes of targets", "test of another shape"],
)
def test_clients_and_test_must_be_alike(clients: Any, test: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as error:
        spodgt.Learning(linear(), nn.CrossEntropyLoss(), clients, test=test)
    assert str(error.value) == message


# --- what a problem tells ------------------------------------------------------------------------------
def test_a_model_comes_out_as_the_users_module() -> None:
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)
    ).train()
    problem = spodgt.Learning(module, nn.CrossEntropyLoss(), DATA, test=DATA[0], buffers="pull")
    x = torch.cat([problem.start(1), problem.statistics(1)], 1)
    x[:, problem.parameters :] += torch.rand(12)
    found = problem.module(x[0])
    assert type(found) is nn.Sequential
    assert module.training
    loss = nn.functional.cross_entropy(found(DATA[0][0]), DATA[0][1])
    assert float(loss.detach()) == pytest.approx(float(problem.evaluate(x[:1]).loss), rel=1e-6)
    again = nn.Sequential(nn.Flatten(), nn.Linear(32, 6), nn.BatchNorm1d(6), nn.Linear(6, 5)).eval()
    again.load_state_dict(problem.state_dict(x[0].double()))
    assert torch.equal(again(DATA[0][0]), found(DATA[0][0]))
    with pytest.raises(
        InvalidInput, match=r"models must have 257 columns, got 245, 12 of them running"
    ):
        problem.module(problem.start(0)[0])


def test_a_problem_says_what_each_client_holds() -> None:
    problem = spodgt.Learning(
        linear(), nn.CrossEntropyLoss(), [DATA[0], (INPUTS[1][:7], TARGETS[1][:7])]
    )
    assert problem.sizes().tolist() == [12, 7]
    labels = problem.labels()
    assert labels is not None
    assert labels.tolist() == [
        [int((TARGETS[0] == c).sum()) for c in range(5)],
        [int((TARGETS[1][:7] == c).sum()) for c in range(5)],
    ]
    regression = [(INPUTS[0], INPUTS[0].mean((1, 2, 3))[:, None])]
    assert (
        spodgt.Learning(
            nn.Sequential(nn.Flatten(), nn.Linear(32, 1)), nn.MSELoss(), regression
        ).labels()
        is None
    )


def test_equal_models_are_evaluated_once() -> None:
    calls = []

    def seen(outputs: Tensor, targets: Tensor) -> float:
        calls.append(len(outputs))
        return float(len(targets))

    problem = spodgt.Learning(
        MODULES["mlp"](), LOSSES["entropy"], DATA, DATA[0], metrics={"seen": seen}
    )
    x = problem.start(0).clone()
    for models, count in ((x, 1), (x + torch.arange(3.0)[:, None], 3)):
        calls.clear()
        found = problem.evaluate(models)
        assert len(calls) == count
        assert found.metrics["seen"].tolist() == [12.0] * 3
        alone = torch.cat([problem.evaluate(model[None]).loss for model in models])
        torch.testing.assert_close(found.loss, alone)
