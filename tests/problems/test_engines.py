"""Every engine computes what plain autograd computes, one client at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close

from spodgt import Learning, Quadratic, rng
from spodgt.errors import InvalidInput
from spodgt.problems.gradients import Engine, Layout, flatten
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.losses import Objective, cross_entropy
from spodgt.problems.models import MODELS
from spodgt.problems.models.engine_selection import select_engine
from spodgt.problems.models.probe import count_multiplications, find_side_effects
from spodgt.problems.running_statistics import refuse_statistics
from spodgt.types import Minibatches

CLIENTS, BATCH, CLASSES = 3, 5, 4


class Tied(nn.Module):
    """One layer used twice, and a parameter that the output does not depend on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.unused = nn.Linear(12, 12), nn.Parameter(torch.ones(2))
        self.last = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.last(torch.tanh(self.layer(torch.tanh(self.layer(x.flatten(1))))))
        return y


class FunctionalDropout(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(12, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layer(nn.functional.dropout(x.flatten(1), 0.5, self.training))
        return y


def frozen() -> nn.Module:
    module = MODELS["mlp"].build((1, 3, 4), CLASSES, hidden=6)
    next(module.parameters()).requires_grad_(False)
    return module


CASES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], type]] = {
    "linear": (lambda: MODELS["svm"].build((1, 3, 4), CLASSES), (1, 3, 4), LinearEngine),
    "mlp": (lambda: MODELS["mlp"].build((1, 3, 4), CLASSES, hidden=6), (1, 3, 4), LoopEngine),
    "grey cnn": (lambda: MODELS["cnn"].build((1, 8, 8), CLASSES, width=2), (1, 8, 8), LoopEngine),
    "colour cnn": (lambda: MODELS["cnn"].build((3, 8, 8), CLASSES, width=2), (3, 8, 8), LoopEngine),
    "resnet": (
        lambda: MODELS["resnet18"].build((3, 8, 8), CLASSES, width=2),
        (3, 8, 8),
        LoopEngine,
    ),
    "strided 1×1": (  # with channels last this one writes past its memory: see `loop._overruns`
        lambda: nn.Sequential(nn.Conv2d(3, 4, 1, stride=2), nn.Flatten(), nn.Linear(64, CLASSES)),
        (3, 8, 8),
        LoopEngine,
    ),
    "1-d": (
        lambda: nn.Sequential(nn.Conv1d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(12, CLASSES)),
        (2, 6),
        LoopEngine,
    ),
    "tied": (Tied, (12,), LoopEngine),
    "frozen": (frozen, (1, 3, 4), LoopEngine),
}


def engine_of(module: nn.Module, inputs: Tensor, targets: Tensor) -> Engine:
    statistics, random = find_side_effects(module, inputs)
    layout = Layout.of({name: p for name, p in module.named_parameters() if p.requires_grad})
    return select_engine(
        LoopEngine(module, layout, Objective(cross_entropy, False), statistics, random),
        inputs,
        targets,
    )


def case(name: str) -> tuple[nn.Module, LoopEngine, Tensor, Tensor, Tensor]:
    """A module, the engine chosen for it, models, inputs and targets, all of them different per client."""
    torch.manual_seed(3)
    build, shape, _ = CASES[name]
    module = build().eval()
    inputs = torch.rand(CLIENTS, BATCH, *shape)
    targets = torch.randint(CLASSES, (CLIENTS, BATCH))
    engine = engine_of(module, inputs[0], targets[0])
    x = flatten(p for p in module.parameters() if p.requires_grad).double()
    x = x + 0.1 * torch.randn(CLIENTS, len(x), dtype=torch.float64)
    return module.double(), engine, x, inputs.double(), targets  # type: ignore[return-value]


def by_hand(
    module: nn.Module, row: Tensor, inputs: Tensor, targets: Tensor
) -> tuple[Tensor, Tensor]:
    """Loss and gradient of one client with nothing but torch."""
    nn.utils.vector_to_parameters(row, [p for p in module.parameters() if p.requires_grad])
    module.zero_grad()
    loss = nn.functional.cross_entropy(module(inputs), targets)
    loss.backward()  # type: ignore[no-untyped-call]
    trained = [p for p in module.parameters() if p.requires_grad]
    parts = [torch.zeros_like(p) if p.grad is None else p.grad for p in trained]
    return loss.detach(), flatten(parts)


@pytest.fixture(params=[1, 2])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", CASES)
def test_gradients_losses_and_outputs_are_plain_autograd(name: str, threads: int) -> None:
    module, engine, x, inputs, targets = case(name)
    assert type(engine) is CASES[name][2]
    kept = x.clone()
    grads = engine.losses_and_gradients(x, inputs, targets, [0] * CLIENTS)[1]
    losses, outputs = (
        engine.losses_and_gradients(x, inputs, targets, None)[0],
        engine.outputs(x, inputs[0]),
    )
    assert torch.equal(x, kept)
    assert grads.shape == x.shape
    for client in range(CLIENTS):
        loss, slope = by_hand(module, x[client], inputs[client], targets[client])
        assert_close(losses[client], loss)
        assert_close(grads[client], slope)
        assert_close(outputs[client], module(inputs[0]).detach())
    assert torch.get_num_threads() == threads


def test_the_number_of_threads_changes_nothing() -> None:
    _, engine, x, inputs, targets = case("resnet")
    before, found = torch.get_num_threads(), []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found.append(
            engine.losses_and_gradients(x.float(), inputs.float(), targets, [0] * CLIENTS)[1]
        )
    torch.set_num_threads(before)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])


def test_frozen_parameters_have_no_column_and_unused_ones_no_gradient() -> None:
    module, engine, x, _, _ = case("frozen")
    assert x.shape[1] == engine.layout.size == sum(p.numel() for p in module.parameters()) - 12 * 6
    _, engine, x, inputs, targets = case("tied")
    assert not engine.layout.unflatten(
        engine.losses_and_gradients(x, inputs, targets, [0] * CLIENTS)[1]
    )["unused"].any()


def test_nothing_of_one_client_is_left_for_the_next() -> None:
    _, engine, x, inputs, targets = case("resnet")
    alone = [
        engine.losses_and_gradients(x[n : n + 1], inputs[n : n + 1], targets[n : n + 1], [0])[1]
        for n in range(CLIENTS)
    ]
    engine.outputs(torch.full_like(x, torch.nan), inputs[0])
    assert_close(engine.losses_and_gradients(x, inputs, targets, [0] * CLIENTS)[1][1:2], alone[1])
    assert len(engine.copies) <= torch.get_num_threads() + 1  # threads of the pool, and this one


def test_layout_finds_every_parameter() -> None:
    module = MODELS["cnn"].build((1, 8, 8), CLASSES)
    layout, row = Layout.of(dict(module.named_parameters())), flatten(module.parameters())
    assert layout.size == len(row)
    for name, parameter in module.named_parameters():
        assert torch.equal(layout.unflatten(row[None])[name][0], parameter)


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(12, 8), nn.Dropout(), nn.Linear(8, 4)),
        FunctionalDropout(),
    ],
)
def test_dropout_is_a_function_of_the_seed_it_is_given(module: nn.Module) -> None:
    inputs, targets = torch.rand(CLIENTS, BATCH, 12), torch.randint(CLASSES, (CLIENTS, BATCH))
    assert find_side_effects(module, inputs[0])[1]
    engine = engine_of(module.eval(), inputs[0], targets[0])
    x = flatten(module.parameters()).expand(CLIENTS, -1)
    state = torch.get_rng_state()
    first = engine.losses_and_gradients(x, inputs, targets, [5, 6, 7])[1]
    again = engine.losses_and_gradients(x[:2], inputs[:2], targets[:2], [5, 9])[1]
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(first[0], again[0])
    assert not torch.equal(first[1], again[1])
    without = engine.losses_and_gradients(x, inputs, targets, None)[1]
    plain = by_hand(module, x[0], inputs[0], targets[0])[1]
    assert_close(without[0], plain)


def test_batch_norm_is_refused_unless_its_buffers_are_pulled() -> None:
    module = nn.Sequential(
        nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES)
    )
    data = [(torch.rand(6, 12), torch.randint(CLASSES, (6,))) for _ in range(2)]
    with pytest.raises(
        InvalidInput, match=r"'2.running_mean' changes.*GroupNorm.*buffers=\"pull\""
    ):
        Learning(module, nn.CrossEntropyLoss(), data)
    with pytest.raises(InvalidInput, match=r"buffers must be 'pull' or None, got 'mix'"):
        Learning(module, nn.CrossEntropyLoss(), data, buffers="mix")  # type: ignore[arg-type]
    problem = Learning(module, nn.CrossEntropyLoss(), data, buffers="pull")
    assert problem.model.columns.running.names == (
        "2.running_mean",
        "2.running_var",
    )  # not num_batches_tracked
    assert problem.parameters == sum(p.numel() for p in module.parameters())
    assert_close(problem.statistics(0), torch.tensor([[0.0] * 8 + [1.0] * 8] * 2))
    with pytest.raises(InvalidInput, match=r"columns, got .* of them running statistics"):
        problem.evaluate(problem.start(0))


def test_runtimes_that_cannot_carry_statistics_refuse_them_in_one_sentence() -> None:
    data = [(torch.rand(6, 3), torch.randint(CLASSES, (6,))) for _ in range(2)]
    module = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.Linear(5, CLASSES))
    with pytest.raises(InvalidInput) as error:
        refuse_statistics(Learning(module, cross_entropy, data, buffers="pull"), "peers")
    assert str(error.value) == (
        "model must not keep running statistics on peers, got 10 of them; "
        "use torch.nn.GroupNorm instead of BatchNorm, or train in the simulator."
    )
    refuse_statistics(Learning(nn.Linear(3, CLASSES), cross_entropy, data), "peers")
    refuse_statistics(Quadratic.random(2, 3), "peers")


def test_constant_buffers_are_no_statistics() -> None:
    module = MODELS["resnet18"].build((3, 8, 8), CLASSES, width=2)
    assert list(module.buffers())
    statistics, random = find_side_effects(module, torch.rand(2, 3, 8, 8))
    assert statistics.names == ()
    assert not random


def test_statistics_are_found_even_where_a_few_samples_do_not_change_them() -> None:
    layer = nn.Linear(3, 3)
    nn.init.zeros_(layer.weight)
    nn.init.zeros_(layer.bias)
    found, _ = find_side_effects(nn.Sequential(layer, nn.BatchNorm1d(3)), torch.rand(4, 3))
    assert found.names == ("1.running_mean", "1.running_var")
    assert (
        find_side_effects(nn.BatchNorm1d(3, track_running_stats=False), torch.rand(4, 3))[0].names
        == ()
    )


def test_averages_that_count_batches_are_refused() -> None:
    with pytest.raises(
        InvalidInput, match=r"momentum to average over rounds, got None; use momentum=0.1"
    ):
        find_side_effects(nn.Sequential(nn.BatchNorm1d(3, momentum=None)), torch.rand(4, 3))


def test_a_module_that_cannot_train_says_so_in_a_sentence() -> None:
    module = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4))
    with pytest.raises(
        InvalidInput, match=r"failed on 1 sample of client 0: Expected more than 1 value.*2 or more"
    ):
        Learning(
            module,
            cross_entropy,
            [(torch.rand(1, 3), torch.zeros(1, dtype=torch.int64))],
            buffers="pull",
        )


def batch_norm_gradients(
    sizes: list[int], places: list[int]
) -> tuple[Tensor, Tensor, Tensor, Learning]:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))
    data = [(torch.randn(n, 6), torch.randint(CLASSES, (n,))) for n in sizes]
    problem = Learning(module, cross_entropy, data, buffers="pull", batch_size=4, same_start=False)
    rows = np.array(places)
    x = torch.cat([problem.start(0), problem.statistics(0)], 1)[places]
    before = x.clone()
    g = problem.grad(x, Minibatches(rows, np.repeat(rng.key(0, "batch"), len(rows)), rows, 1))
    return before, x, g, problem


def test_a_training_pass_refreshes_the_statistics_of_each_client_and_nothing_else() -> None:
    sizes, places = [4, 3, 4], [0, 1, 2]  # one client holds less than a batch
    before, after, g, problem = batch_norm_gradients(sizes, places)
    n = problem.parameters
    assert g.shape == (3, n)
    assert torch.equal(before[:, :n], after[:, :n])
    for client in places:
        module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES))
        nn.utils.vector_to_parameters(before[client, :n], module.parameters())
        mine = problem.client_indices[client]
        cross_entropy(
            module(problem.samples.inputs[mine]), problem.samples.targets[mine]
        ).backward()  # type: ignore[no-untyped-call]
        assert_close(g[client], flatten(p.grad for p in module.parameters() if p.grad is not None))
        assert_close(after[client, n:], flatten([module[1].running_mean, module[1].running_var]))  # type: ignore[list-item]


def test_exact_gradients_and_evaluation_use_the_statistics_and_leave_them() -> None:
    _, x, _, problem = batch_norm_gradients([4, 4], [0, 1])
    kept, n = x.clone(), problem.parameters
    losses, grads = problem.full(x, np.arange(2))
    assert torch.equal(x, kept)
    module = nn.Sequential(
        nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, CLASSES)
    ).eval()
    nn.utils.vector_to_parameters(x[1, :n], module.parameters())
    module[1].running_mean, module[1].running_var = x[1, n : n + 5].clone(), x[1, n + 5 :].clone()
    loss = cross_entropy(module(problem.samples.inputs[4:]), problem.samples.targets[4:])
    loss.backward()  # type: ignore[no-untyped-call]
    assert_close(losses[1], loss.detach())
    assert_close(grads[1], flatten(p.grad for p in module.parameters() if p.grad is not None))


def test_work_counts_every_place_a_convolution_visits() -> None:
    module = nn.Sequential(nn.Conv2d(3, 2, 3, padding=1), nn.Flatten(), nn.Linear(2 * 16, 5))
    conv, bias, dense = 2 * 3 * 9, 2, 32 * 5 + 5
    assert count_multiplications(module, torch.rand(2, 3, 4, 4)) == 16 * conv + bias + dense
    data = [(torch.rand(7, 3, 4, 4), torch.randint(5, (7,)))]
    assert Learning(module, cross_entropy, data).work == 7 * (16 * conv + bias + dense)
