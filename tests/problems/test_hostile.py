"""Modules, losses and data that are not what they look like: right numbers, or one sentence."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

import spodgt
from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems import classification
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.types import Minibatches

DRAWS = torch.Generator().manual_seed(1)
INPUTS = torch.randn(3, 10, 6, generator=DRAWS)
TARGETS = torch.randint(0, 3, (3, 10), generator=DRAWS)
DATA = list(zip(INPUTS, TARGETS, strict=True))
PICTURES = [(torch.rand(9, 1, 4, 4, generator=DRAWS) * 100, torch.arange(9) % 3) for _ in range(2)]
ENTROPY = nn.CrossEntropyLoss()


def large(problem: spodgt.Learning, size: float = 3.0) -> Tensor:
    draws = torch.Generator().manual_seed(2)
    return size * torch.randn(problem.clients, problem.parameters, generator=draws)


def by_hand(
    module: nn.Module, row: Tensor, loss: Any, inputs: Tensor, targets: Tensor
) -> tuple[float, Tensor]:
    module = copy.deepcopy(module).to(row.dtype).train()
    trained = [p for p in module.parameters() if p.requires_grad]
    nn.utils.vector_to_parameters(row.clone(), trained)
    value = loss(module(inputs.clone().to(row.dtype)), targets)
    return float(value.detach()), torch.cat(
        [g.flatten() for g in torch.autograd.grad(value, trained)]
    )


def holds(
    module: nn.Module, data: Any = DATA, loss: Any = ENTROPY, rtol: float = 1e-4
) -> spodgt.Learning:
    """Gradients, exact ones and test losses at large weights are those of the module itself."""
    problem = spodgt.Learning(module, loss, data, data[0], batch_size=None)
    x, rows = large(problem), np.arange(len(data))
    g = problem.grad(x, Minibatches(rows, np.repeat(rng.key(0, "batch"), len(rows)), rows, 1))
    for i, (inputs, targets) in enumerate(data):
        _, slope = by_hand(module, x[i], loss, inputs, targets)
        assert_close(g[i], slope, rtol=rtol, atol=1e-5)
    seen = copy.deepcopy(module).eval()
    for n, row in enumerate(x):
        nn.utils.vector_to_parameters(row.clone(), seen.parameters())
        with torch.no_grad():
            true = float(loss(seen(data[0][0].clone()), data[0][1]))
        assert float(problem.evaluate(x).loss[n]) == pytest.approx(true, rel=1e-4)
    return problem


# --- models that only look linear -----------------------------------------------------------------------
class Clamp(nn.Linear):
    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input).clamp(-3, 3)


class Capped(nn.Sequential):
    def forward(self, input: Any) -> Any:
        return 5 * torch.tanh(super().forward(input) / 5)  # type: ignore[no-untyped-call]


class Tanh(nn.Linear):
    """Looks linear where its weights are zero."""

    def forward(self, input: Tensor) -> Tensor:
        return torch.tanh(super().forward(input))

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)


def hooked() -> nn.Module:
    module = nn.Linear(6, 3)
    module.register_forward_hook(lambda *given: given[-1].clamp(-3, 3))
    return module


def patched() -> nn.Module:
    module = nn.Linear(6, 3)
    module.forward = lambda input: nn.functional.linear(input, module.weight) * 2  # type: ignore[method-assign]
    return module


def parametrized() -> nn.Module:
    module = nn.Linear(6, 3)
    nn.utils.parametrizations.weight_norm(module)
    return module


@pytest.mark.parametrize(
    "build",
    [lambda: Clamp(6, 3), lambda: Capped(nn.Linear(6, 3)), lambda: Tanh(6, 3), hooked],
    ids=["clamped", "soft capped", "zero tanh", "hook"],
)
def test_a_model_that_looks_linear_is_trained_as_what_it_is(build: Callable[[], nn.Module]) -> None:
    assert not isinstance(holds(build()).model.engine, LinearEngine)


def test_hooks_parametrizations_and_patched_forwards_run_in_the_plain_loop() -> None:
    for build in (hooked, parametrized):
        assert isinstance(spodgt.Learning(build(), ENTROPY, DATA).model.engine, LoopEngine)
    with pytest.raises(
        InvalidInput, match="has no gradient"
    ):  # it keeps to the weights of the original
        spodgt.Learning(patched(), ENTROPY, DATA)
    assert isinstance(holds(nn.Linear(6, 3)).model.engine, LinearEngine)


# --- forward passes that write into their inputs --------------------------------------------------------
class Normalise(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x -= 0.5
        x /= 0.25
        return x


@pytest.mark.parametrize(
    ("module", "data"),
    [
        (nn.Sequential(Normalise(), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 3)), PICTURES),
        (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3)), DATA),
        (nn.Sequential(Normalise(), nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3)), DATA),
        (nn.Sequential(Normalise(), nn.Linear(6, 4), nn.Dropout(0.0), nn.Linear(4, 3)), DATA),
    ],
    ids=["convolution", "relu", "dense", "dropout"],
)
def test_a_forward_that_works_in_place_changes_no_data(module: nn.Module, data: Any) -> None:
    before = [(inputs.clone(), targets.clone()) for inputs, targets in data]
    problem = spodgt.Learning(module, ENTROPY, data, data[0], batch_size=4)
    samples = problem.samples.inputs.clone()
    x = problem.start(0)[:1].repeat(3, 1)
    losses = [problem.evaluate(x).loss for _ in range(2)]
    true = float(ENTROPY(copy.deepcopy(module).eval()(data[0][0].clone()), data[0][1]).detach())
    assert_close(
        torch.stack(losses), torch.full((2, 3), true, dtype=torch.float64), rtol=1e-5, atol=1e-6
    )
    problem.full(problem.start(0).contiguous(), np.arange(len(data)))
    spodgt.train(
        "spod-gt", problem, spodgt.Network.draw(spodgt.graphs.Complete(len(data))), rounds=3
    )
    assert torch.equal(problem.samples.inputs, samples)
    assert torch.equal(samples, torch.cat([inputs for inputs, _ in before]))
    for (inputs, targets), (ours, theirs) in zip(data, before, strict=True):
        assert torch.equal(inputs, ours)
        assert torch.equal(targets, theirs)


def test_a_loss_that_writes_into_targets_changes_no_data() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        targets += 1
        return (outputs - targets).square().mean()

    data = [(inputs, inputs.sum(1, keepdim=True)) for inputs in INPUTS]
    problem = spodgt.Learning(nn.Linear(6, 1), loss, data, data[0])
    before = problem.samples.targets.clone()
    spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=3)
    assert torch.equal(problem.samples.targets, before)
    x = problem.start(0)[:2].contiguous()
    assert_close(problem.evaluate(x).loss, problem.evaluate(x).loss)


# --- accuracy only where there are classes --------------------------------------------------------------
def test_one_column_has_no_accuracy() -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], targets.float())

    data = [(inputs, (inputs[:, 0] > 0).long()) for inputs in INPUTS]
    problem = spodgt.Learning(nn.Linear(6, 1), loss, data, data[0])
    assert dict(problem.metrics) == {}
    assert problem.evaluate(problem.start(0)[:1]).metrics == {}


def test_whole_numbers_that_are_no_classes_have_no_accuracy() -> None:
    def poisson(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.exp().sum(1) - outputs.sum(1) * targets).mean()

    data = [(inputs, torch.arange(10)) for inputs in INPUTS]
    assert dict(spodgt.Learning(nn.Linear(6, 2), poisson, data, data[0]).metrics) == {}


@pytest.mark.parametrize("labels", [1, 2])
def test_whole_numbers_of_two_axes_are_left_to_the_loss(labels: int) -> None:
    def loss(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean()

    data = [(inputs, (inputs[:, :labels] > 0).long()) for inputs in INPUTS]
    problem = spodgt.Learning(nn.Linear(6, labels), loss, data, data[0])
    assert dict(problem.metrics) == {}
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=2)
    assert "accuracy" not in result.frame


@pytest.mark.parametrize("labels", [1, 4])
def test_binary_entropy_counts_signs(labels: int) -> None:
    data = [(inputs, (inputs[:, :labels] > 0).float()) for inputs in INPUTS]
    module = nn.Linear(6, labels)
    problem = spodgt.Learning(module, nn.BCEWithLogitsLoss(), data, data[0], batch_size=None)
    with torch.no_grad():
        right = ((module(INPUTS[0]) > 0) == (INPUTS[0][:, :labels] > 0)).double().mean()
    assert float(problem.evaluate(problem.start(0)[:1]).metrics["accuracy"]) == pytest.approx(
        float(right)
    )
    result = spodgt.train(
        spodgt.SpodGT(step_size=2.0), problem, spodgt.Network.ring(3), rounds=300, every=300
    )
    assert result.frame["accuracy"].iloc[-1] > 0.9


# --- scalars, buffers, types ----------------------------------------------------------------------------
class Temperature(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.layer = nn.Parameter(torch.tensor(1.5)), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.scale * self.layer(x)  # type: ignore[no-any-return]


class Projected(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("R", torch.randn(6, 6, generator=torch.Generator().manual_seed(3)))
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x @ self.R)  # type: ignore[no-any-return, operator]


def test_a_scalar_parameter_is_trained() -> None:
    holds(Temperature())


@pytest.mark.parametrize("build", [Projected, parametrized])
def test_double_precision_reaches_buffers(build: Callable[[], nn.Module]) -> None:
    problem = spodgt.Learning(build(), ENTROPY, DATA, DATA[0])
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=3, dtype=torch.float64)
    assert np.isfinite(result.frame["loss"]).all()


@pytest.mark.parametrize("loss", [nn.HuberLoss(), nn.BCEWithLogitsLoss(), nn.MSELoss()], ids=str)
def test_double_precision_reaches_targets(loss: nn.Module) -> None:
    data = [(inputs, (inputs[:, :1] > 0).float()) for inputs in INPUTS]
    problem = spodgt.Learning(nn.Linear(6, 1), loss, data, data[0]).to(
        torch.device("cpu"), torch.float64
    )
    x = problem.start(0).double()
    module = nn.Linear(6, 1).double()
    nn.utils.vector_to_parameters(x[0], module.parameters())
    true = loss(module(INPUTS[0].double()), data[0][1].double()).detach()
    assert float(problem.evaluate(x[:1]).loss) == pytest.approx(float(true), rel=1e-14)
    assert float(problem.full(x[:1].contiguous(), np.arange(1))[0]) == pytest.approx(
        float(true), rel=1e-14
    )


def test_half_precision_is_refused_as_a_type_of_models() -> None:
    problem = spodgt.Learning(nn.Linear(6, 3).bfloat16(), ENTROPY, DATA)  # a module of it is fine
    with pytest.raises(
        InvalidInput, match=r"dtype must be torch.float32 or torch.float64, got torch.bfloat16"
    ):
        problem.to(torch.device("cpu"), torch.bfloat16)


class Deprecated(nn.Module):
    def __init__(self, category: type[Warning]) -> None:
        super().__init__()
        self.layer, self.category = nn.Linear(6, 3), category

    def forward(self, x: Tensor) -> Tensor:
        warnings.warn("old", self.category, stacklevel=2)
        return torch.tanh(self.layer(x))


@pytest.mark.parametrize("category", [DeprecationWarning, FutureWarning, UserWarning])
def test_a_warning_inside_forward_is_only_a_warning(category: type[Warning]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = spodgt.Learning(Deprecated(category), ENTROPY, DATA)
        spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=2)


class OnlyInTraining(nn.Module):
    """Differs in training, on samples that no trial sees."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.tanh(self.layer(x))
        return y * (1 + 2 * (x[:, :1] > 50)) if self.training else y


def test_gradients_are_those_of_training_mode() -> None:
    data = [(torch.cat([inputs[:8], inputs[8:] + 100]), targets) for inputs, targets in DATA]
    problem = spodgt.Learning(OnlyInTraining(), ENTROPY, data, batch_size=None)
    x, rows = large(problem, 0.01), np.arange(3)
    g = problem.grad(x, Minibatches(rows, np.repeat(rng.key(0, "batch"), 3), rows, 1))
    for i, (inputs, targets) in enumerate(data):
        assert_close(
            g[i], by_hand(OnlyInTraining(), x[i], ENTROPY, inputs, targets)[1], rtol=1e-3, atol=1e-5
        )


# --- starts ---------------------------------------------------------------------------------------------
class Composite(nn.Module):
    """Its own reset has the last word over that of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.orthogonal_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x)  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention, self.head = nn.MultiheadAttention(6, 2, batch_first=True), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        seen, _ = self.attention(x[:, None], x[:, None], x[:, None])
        return self.head(seen[:, 0])  # type: ignore[no-any-return]


def test_a_fresh_start_is_the_modules_own_initialisation() -> None:
    problem = spodgt.Learning(Composite(), ENTROPY, DATA, init="fresh")
    first, second = (problem.layout.unflatten(problem.start(seed)[0]) for seed in (0, 1))
    W = first["head.weight"]
    assert_close(W @ W.T, torch.eye(3), rtol=1e-5, atol=1e-5)
    assert not first["head.bias"].any()
    assert not torch.equal(W, second["head.weight"])
    problem = spodgt.Learning(Attention(), ENTROPY, DATA, init="fresh")
    first, second = (problem.layout.unflatten(problem.start(seed)[0]) for seed in (0, 1))
    assert not torch.equal(first["attention.in_proj_weight"], second["attention.in_proj_weight"])
    assert not first["attention.out_proj.bias"].any()


def test_what_cannot_be_redrawn_is_named() -> None:
    with pytest.warns(UserWarning, match=r"init='fresh' cannot redraw scale, which start as given"):
        problem = spodgt.Learning(Temperature(), ENTROPY, DATA, init="fresh")
    assert problem.layout.unflatten(problem.start(5)[0])["scale"] == 1.5
    with pytest.warns(UserWarning, match=r"cannot redraw parametrizations.weight.original0"):
        spodgt.Learning(parametrized(), ENTROPY, DATA, init="fresh")


# --- sentences ------------------------------------------------------------------------------------------
class TupleInTraining(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        return (y, y) if self.training else y


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(6, 3, dtype=torch.complex64))

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w.real).abs()


class Broken(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> Any:
        raise OSError("disk on fire")


class Endless(torch.utils.data.IterableDataset[Any]):
    def __iter__(self) -> Any:
        return iter(())


def normed(**options: Any) -> spodgt.Learning:
    module = nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    return spodgt.Learning(module, ENTROPY, **({"clients": DATA, "buffers": "pull"} | options))


def old_weight_norm() -> nn.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = nn.utils.weight_norm(nn.Linear(6, 3))
    module(INPUTS[0])
    return module


ONE = (INPUTS[1][:1], TARGETS[1][:1])
LINEAR = nn.Linear(6, 3)
COLUMN = nn.Linear(6, 1)
WRONG = [DATA[0], (INPUTS[1], TARGETS[1].where(torch.arange(10) != 7, 3))]
BAD: dict[str, tuple[Callable[[], object], str]] = {
    "broadcast targets": (
        lambda: spodgt.Learning(COLUMN, nn.MSELoss(), [(INPUTS[0], INPUTS[0][:, 0])]),
        r"MSELoss compares outputs \(batch, 1\) with targets \(batch\) of another shape; "
        r"use targets\[:, None\].",
    ),
    "broadcast in an own loss": (
        lambda: spodgt.Learning(
            COLUMN, lambda o, t: nn.functional.mse_loss(o, t) * 2, [(INPUTS[0], INPUTS[0][:, 0])]
        ),
        r"loss compares outputs and targets of unequal shape: Using a target size",
    ),
    "whole numbers for MSE": (
        lambda: spodgt.Learning(COLUMN, nn.MSELoss(), [(INPUTS[0], TARGETS[0][:, None])]),
        r"MSELoss needs targets of floats, got whole numbers; use targets.float\(\).",
    ),
    "floats for entropy": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, [(INPUTS[0], TARGETS[0].float())]),
        r"CrossEntropyLoss needs whole numbers as targets, got torch.float32; use targets.long\(\).",
    ),
    "one sample under batch norm": (
        lambda: normed(clients=[DATA[0], ONE]),
        r"failed on 1 sample of client 1: .*; give every client and batch_size 2 or more",
    ),
    "batches of one under batch norm": (
        lambda: normed(batch_size=1),
        r"failed on 1 sample of client 0",
    ),
    "a tuple in training": (
        lambda: spodgt.Learning(TupleInTraining(), ENTROPY, DATA),
        r"model in training mode failed on 4 samples of client 0",
    ),
    "lazy layers": (
        lambda: spodgt.Learning(nn.LazyLinear(3), ENTROPY, DATA),
        r"'weight' has none yet; call the model once on a batch",
    ),
    "complex": (lambda: spodgt.Learning(Complex(), ENTROPY, DATA), r"'w' is complex"),
    "old weight norm": (
        lambda: spodgt.Learning(old_weight_norm(), ENTROPY, DATA),
        r"copy.deepcopy copies",
    ),
    "a constant loss": (
        lambda: spodgt.Learning(LINEAR, lambda o, t: torch.tensor(1.0), DATA),
        r"loss must depend on the parameters of the model, but has no gradient",
    ),
    "a loss of Python": (
        lambda: spodgt.Learning(LINEAR, lambda o, t: 1.0, DATA),  # type: ignore[arg-type, return-value]
        r"loss must return a tensor, got float",
    ),
    "no clients": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, None),  # type: ignore[arg-type]
        r"clients must be a list or dict with one dataset per client",
    ),
    "a number": (lambda: spodgt.Learning(LINEAR, ENTROPY, 3), r"clients must be a list"),  # type: ignore[arg-type]
    "a number as client": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, [3]),  # type: ignore[list-item]
        r"client 0 must be a dataset of \(input, target\) pairs or two tensors, got int",
    ),
    "a broken data set": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, [Broken()]),
        r"client 0 failed to give sample 0: disk on fire",
    ),
    "a broken cached data set": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, [Broken()], cache=True),
        r"client 0 failed to give its samples: disk on fire",
    ),
    "a stream": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, [Endless()]),
        r"client 0 is an IterableDataset",
    ),
    "test of another kind": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, ((INPUTS[0] * 9).byte(), TARGETS[0])),
        r"test has inputs of torch.uint8, client 0 of torch.float32; all must have the same.",
    ),
    "test targets of another kind": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, (INPUTS[0], TARGETS[0].float())),
        r"test has targets of torch.float32, client 0 of torch.int64; all must have the same.",
    ),
    "NaN targets": (
        lambda: spodgt.Learning(COLUMN, nn.MSELoss(), [(INPUTS[0], INPUTS[0][:, :1] / 0 * 0)]),
        r"has targets that are NaN or infinite, first in sample 0",
    ),
    "strings": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, [(np.array(["a", "b"]), np.array([0, 1]))]),
        r"client 0 must have numbers, got an array of <U1",
    ),
    "ragged": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, [[(torch.ones(3), 0), (torch.ones(5), 1)]]),
        r"for samples of unequal shape give collate=",
    ),
    "an unknown pattern": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, personal="head.*"),
        r"personal has 'head\.\*', which matches nothing that is trained; choose from weight, bias",
    ),
    "nothing to exchange": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, personal="*"),
        r"personal must leave some parameters to exchange, got '\*'",
    ),
    "both": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, personal="bias", shared="weight"),
        r"shared and personal must not both be given",
    ),
    "a step backwards": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, personal="bias", personal_step_size=-1),
        r"personal_step_size must be a number of at least 0, got -1",
    ),
    "init": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, init="new"),  # type: ignore[arg-type]
        r"init must be \"given\", \"fresh\"",
    ),
    "test samples": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, DATA[0], test_samples=0),
        r"test_samples must be a whole number of at least 1 or None, got 0",
    ),
    "tests for fewer clients": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, DATA[:2]),
        r"test must be one data set or 3 \(one per client\), got 2",
    ),
    "name of a metric": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, DATA[0], metrics={"macro-f1": len}),
        r"letters, digits and _ .* got 'macro-f1'; use \"macro_f1\"\.$",
    ),
    "metric named as the loss": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, DATA[0], metrics={"loss": len}),
        r"other than \"loss\", got 'loss'; use \"f1\"\.$",
    ),
    "metrics": (
        lambda: spodgt.Learning(LINEAR, ENTROPY, DATA, DATA[0], metrics=[len]),  # type: ignore[arg-type]
        r"metrics must be a dict",
    ),
    "a metric that fails": (
        lambda: spodgt.Learning(
            LINEAR, ENTROPY, DATA, DATA[0], metrics={"f1": lambda o, t: o / "x"}
        ),
        r"metrics\['f1'\] failed on test data: .*; it is called with \(outputs, targets\).",
    ),
    "a metric that is no number": (
        lambda: spodgt.Learning(
            LINEAR, ENTROPY, DATA, DATA[0], metrics={"f1": lambda o, t: "good"}
        ),
        r"metrics\['f1'\] must return one number, got str",
    ),
    "shipped model": (
        lambda: classification(model="svmm"),
        r"model='svmm' is not known; did you mean 'svm'",
    ),
    "hidden": (
        lambda: classification(model="mlp", hidden="x"),
        r"hidden of mlp must be a whole number",
    ),
    "partition": (
        lambda: classification(partition="iid"),  # type: ignore[arg-type]
        r"partition must be a recipe .* got 'iid'",
    ),
    "option": (lambda: classification(model="cnn", hidden=3), r"hidden=3 is not an option of cnn"),
    "no test samples": (
        lambda: classification(test_samples=0),
        r"test_samples must be a whole number",
    ),
    "negative test samples": (
        lambda: classification(test_samples=-5),
        r"test_samples must be .* got -5",
    ),
    "noise": (
        lambda: spodgt.Quadratic(np.eye(2)[None], np.zeros((1, 2)), "x"),  # type: ignore[arg-type]
        r"noise must be a number",
    ),
    "noise array": (
        lambda: spodgt.Quadratic(np.eye(2)[None], np.zeros((1, 2)), np.ones(2)),  # type: ignore[arg-type]
        r"noise must be a number",
    ),
    "text": (lambda: spodgt.Quadratic("H", "c"), r"H must be numbers, got str"),
    "nothing": (lambda: spodgt.Quadratic(None, None), r"H must be numbers, got NoneType"),  # type: ignore[arg-type]
    "complex H": (
        lambda: spodgt.Quadratic(1j * np.eye(2)[None], np.zeros((1, 2))),
        r"H must be real",
    ),
    "indefinite H": (
        lambda: spodgt.Quadratic(np.diag([1.0, -2.0])[None], np.zeros((1, 2))),
        r"H must be positive semidefinite, but H\[0\] has the eigenvalue -2",
    ),
    "no quadratics": (
        lambda: spodgt.Quadratic(np.zeros((0, 2, 2)), np.zeros((0, 2))),
        r"H must be \(clients",
    ),
    "no parameters": (
        lambda: spodgt.Quadratic(np.zeros((2, 0, 0)), np.zeros((2, 0))),
        r"H must be \(clients",
    ),
    "random quadratics": (
        lambda: spodgt.Quadratic.random(-1, 2),
        r"clients must be a whole number",
    ),
    "random parameters": (
        lambda: spodgt.Quadratic.random(3, 2.5),  # type: ignore[arg-type]
        r"parameters must be a whole number of at least 1, got 2.5",
    ),
    "weights": (
        lambda: spodgt.Quadratic.random(3, 2).optimum([1, 2]),
        r"weights must be 3 numbers, one per client, got shape \(2,\)",
    ),
    "a flat quadratic": (
        lambda: spodgt.Quadratic(np.zeros((2, 2, 2)), np.zeros((2, 2))).optimum(),
        r"must be positive definite to have one optimum",
    ),
}
for _name, _loss in {
    "weighted": nn.CrossEntropyLoss(weight=torch.ones(3)),
    "smoothed": nn.CrossEntropyLoss(label_smoothing=0.1),
    "ignoring": nn.CrossEntropyLoss(ignore_index=-1),
    "likelihood": lambda o, t: nn.functional.nll_loss(o.log_softmax(-1), t),
}.items():
    BAD[f"label out of range, {_name}"] = (
        lambda loss=_loss: spodgt.Learning(LINEAR, loss, WRONG),  # type: ignore[misc]
        r"client 1 has target 3, but the model has 3 outputs, so targets are 0 to 2",
    )
    BAD[f"test label out of range, {_name}"] = (
        lambda loss=_loss: spodgt.Learning(LINEAR, loss, DATA, WRONG[1]),  # type: ignore[misc]
        r"test has target 3, but the model has 3 outputs",
    )


@pytest.mark.parametrize("case", BAD)
def test_refused_in_one_sentence(case: str) -> None:
    build, sentence = BAD[case]
    with pytest.raises(InvalidInput, match=sentence) as caught:
        build()
    assert "\n" not in str(caught.value)


def test_a_model_that_fails_later_says_when() -> None:
    class Later(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 3)

        def forward(self, x: Tensor) -> Tensor:
            if x.abs().max() > 50:
                raise ValueError("too much")
            return self.layer(x)  # type: ignore[no-any-return]

    data = [(torch.cat([inputs[:9], inputs[9:] + 100]), targets) for inputs, targets in DATA]
    problem = spodgt.Learning(Later(), ENTROPY, data, batch_size=None)
    with pytest.raises(
        InvalidInput, match=r"model and loss failed on mini-batches of round 0: too much"
    ):
        spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=2)


# --- targets that are left out --------------------------------------------------------------------------
@pytest.mark.parametrize("index", [-100, -1, 2])
def test_ignored_targets_are_ignored(index: int) -> None:
    loss = nn.CrossEntropyLoss(ignore_index=index)
    data = [(inputs, targets.where(torch.arange(10) % 3 > 0, index)) for inputs, targets in DATA]
    data[1] = (INPUTS[1][:4], torch.full((4,), index))  # a client all of whose targets are ignored
    module = nn.Linear(6, 3)
    problem = spodgt.Learning(module, loss, data, data[0], batch_size=None)
    x, rows = large(problem, 1.0), np.arange(3)
    g = problem.grad(x, Minibatches(rows, np.repeat(rng.key(0, "batch"), 3), rows, 1))
    assert_close(g[0], by_hand(module, x[0], loss, *data[0])[1], rtol=1e-4, atol=1e-6)
    assert not g[1].any()
    quality = problem.evaluate(x[:1])
    assert float(quality.loss) == pytest.approx(by_hand(module, x[0], loss, *data[0])[0], rel=1e-5)
    counts = data[0][1] != index
    nn.utils.vector_to_parameters(x[0], module.parameters())
    right = (module(INPUTS[0]).argmax(1) == data[0][1])[counts].double().mean()
    assert float(quality.metrics["accuracy"]) == pytest.approx(float(right))


def test_a_loss_that_masks_missing_targets_may_have_them() -> None:
    def masked(outputs: Tensor, targets: Tensor) -> Tensor:
        seen = ~targets.isnan()
        return (
            torch.where(seen, outputs - targets.nan_to_num(), 0).square().sum()
        ) / seen.sum().clamp_min(1)

    data = [(inputs, inputs[:, :1].where(inputs[:, 1:2] > 0, torch.nan)) for inputs in INPUTS]
    problem = spodgt.Learning(nn.Linear(6, 1), masked, data, data[0])
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(3), rounds=3)
    assert np.isfinite(result.frame["loss"]).all()


@dataclass
class Unhashable:
    weight: float = 2.0

    def __call__(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return self.weight * nn.functional.cross_entropy(outputs, targets)


def test_a_loss_need_not_be_hashable() -> None:
    holds(nn.Linear(6, 3), loss=Unhashable())
