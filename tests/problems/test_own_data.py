"""Data and models as people bring them: any batch, any output, own metrics, and what is trained and sent."""

from __future__ import annotations

import copy
import random
from collections import namedtuple
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch.utils.data import Dataset, TensorDataset

import spodgt
from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.problems.data.pytree import clone, concat, leaves, tree_map
from spodgt.problems.gradients.linear import LinearEngine
from spodgt.problems.gradients.loop import LoopEngine
from spodgt.problems.random_state import seeded
from spodgt.types import Minibatches

DRAWS = torch.Generator().manual_seed(4)
INPUTS = torch.randn(3, 12, 6, generator=DRAWS)
TARGETS = (INPUTS[..., :3].argmax(-1)).contiguous()
DATA = list(zip(INPUTS, TARGETS, strict=True))
ENTROPY = nn.CrossEntropyLoss()
RING = spodgt.Network.ring(3)
Pair = namedtuple("Pair", ["first", "second"])


def batches(clients: int, k: int = 1, seed: int = 0) -> Minibatches:
    rows = np.arange(clients)
    return Minibatches(rows, np.repeat(rng.key(seed, "batch"), clients), rows, k)


def columns(problem: spodgt.Learning, seed: int = 0) -> Tensor:
    return torch.cat([problem.start(seed), problem.statistics(seed)], 1).contiguous()


# --- trees ----------------------------------------------------------------------------------------------
def test_trees_keep_their_form() -> None:
    tree = {"a": [torch.ones(2), (torch.zeros(2, 3), "text")], "b": Pair(torch.ones(2), 5)}
    doubled: Any = tree_map(lambda leaf: 2 * leaf if isinstance(leaf, Tensor) else leaf, tree)
    assert doubled["a"][1][1] == "text"
    assert isinstance(doubled["b"], Pair)
    assert float(doubled["b"].first.sum()) == 4
    assert len(list(leaves(tree))) == 5
    both: Any = concat([tree, doubled])
    assert both["a"][0].tolist() == [1, 1, 2, 2]
    assert both["a"][1][0].shape == (4, 3)
    copied: Any = clone(tree)
    copied["a"][0] += 1
    assert tree["a"][0].tolist() == [1, 1]


def test_randomness_of_user_code_is_set_and_put_back() -> None:
    def draws() -> list[float]:
        return [float(torch.rand(())), float(np.random.rand()), random.random()]  # noqa: NPY002

    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    plain = draws() + draws()
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    random.seed(0)
    before = draws()
    with seeded(7):
        first = draws()
    with seeded(7):
        assert draws() == first
    assert before + draws() == plain


# --- sources --------------------------------------------------------------------------------------------
class Lazy(Dataset[Any]):
    """Counts how often it is read; adds noise of torch, numpy or Python."""

    def __init__(self, inputs: Tensor, targets: Tensor, noise: str = "") -> None:
        self.inputs, self.targets, self.noise, self.reads = inputs, targets, noise, 0

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, i: int) -> Any:
        self.reads += 1
        drawn: Any = 0.0
        if self.noise == "torch":
            drawn = torch.randn(6)
        elif self.noise == "numpy":
            drawn = float(np.random.randn())  # noqa: NPY002
        elif self.noise == "python":
            drawn = random.gauss(0, 1)
        return self.inputs[i] + drawn, int(self.targets[i])


def test_a_data_set_is_read_when_needed_and_gives_the_same_numbers_as_tensors() -> None:
    module = nn.Linear(6, 3)
    sets = [Lazy(*pair) for pair in DATA]
    lazy = spodgt.Learning(module, ENTROPY, sets, sets[0], batch_size=4)
    plain = spodgt.Learning(module, ENTROPY, DATA, DATA[0], batch_size=4)
    cached = spodgt.Learning(module, ENTROPY, sets, sets[0], batch_size=4, cache=True)
    assert isinstance(lazy.model.engine, LoopEngine)
    assert isinstance(cached.model.engine, LinearEngine)
    before = sum(each.reads for each in sets)
    x = columns(lazy)
    assert_close(lazy.grad(x, batches(3)), plain.grad(x, batches(3)), rtol=1e-4, atol=1e-6)
    assert sum(each.reads for each in sets) == before + 3 * 4
    assert_close(lazy.full(x, np.arange(3)), plain.full(x, np.arange(3)), rtol=1e-4, atol=1e-6)
    assert_close(lazy.evaluate(x).loss, plain.evaluate(x).loss, rtol=1e-5, atol=1e-7)
    assert_close(lazy.evaluate(x).metrics["accuracy"], plain.evaluate(x).metrics["accuracy"])
    assert lazy.sizes().tolist() == [12, 12, 12]
    with pytest.raises(
        InvalidInput, match=r"read one by one; give pairs of tensors, or cache=True"
    ):
        _ = lazy.samples


@pytest.mark.parametrize("noise", ["torch", "numpy", "python"])
def test_random_transforms_are_drawn_anew_and_are_a_function_of_seed_round_and_client(
    noise: str,
) -> None:
    sets = [Lazy(*pair, noise) for pair in DATA]
    problem = spodgt.Learning(nn.Linear(6, 3), ENTROPY, sets, batch_size=None)
    x = columns(problem)
    one, again, other = (problem.grad(x, batches(3, k)) for k in (1, 1, 2))
    assert torch.equal(one, again)
    assert not torch.equal(one, other)  # all samples are in every batch: only the transforms differ
    some = Minibatches(np.array([2]), np.repeat(rng.key(0, "batch"), 1), np.array([2]), 1)
    assert torch.equal(problem.grad(x[2:], some), one[2:])  # whoever else computes
    runs = [
        spodgt.train("spod-gt", problem, RING, rounds=4, seeds=seeds) for seeds in ([0, 1], [1])
    ]
    frames = [run.frame[run.frame["seed"] == 1].reset_index(drop=True) for run in runs]
    assert frames[0].equals(frames[1])


def test_numpy_pairs_and_dicts_of_clients() -> None:
    arrays = {
        name: (x.double().numpy(), y.numpy()) for name, (x, y) in zip("abc", DATA, strict=True)
    }
    module = nn.Linear(6, 3)
    ours = spodgt.Learning(module, ENTROPY, arrays, arrays["a"])
    theirs = spodgt.Learning(module, ENTROPY, DATA, DATA[0])
    x = columns(ours)
    assert_close(ours.grad(x, batches(3)), theirs.grad(x, batches(3)), rtol=1e-4, atol=1e-6)
    broken = arrays | {"b": (INPUTS[1].numpy(), TARGETS[1].numpy() + 5)}
    with pytest.raises(
        InvalidInput, match=r"client 'b' has target \d, but the model has 3 outputs"
    ):
        spodgt.Learning(module, ENTROPY, broken)
    with pytest.raises(
        InvalidInput, match=r"client 'b' has inputs of shape \(5,\), client 'a' of \(6,\)"
    ):
        spodgt.Learning(module, ENTROPY, arrays | {"b": (INPUTS[1][:, :5], TARGETS[1])})


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 3), nn.Linear(2, 3)

    def forward(self, a: Tensor, b: Tensor) -> dict[str, Any]:
        return {"scores": self.one(a) + self.two(b), "parts": (self.one(a), self.two(b))}


def scores_loss(outputs: Any, targets: Any) -> Any:
    classes = targets["class"] if isinstance(targets, dict) else targets
    return nn.functional.cross_entropy(outputs["scores"], classes) + 0 * outputs["parts"][1].sum()


FORMS: dict[str, Any] = {
    "list of tuples": lambda x, y: [((a[:4], a[4:]), b) for a, b in zip(x, y, strict=True)],
    "list of dicts": lambda x, y: [
        ({"a": a[:4], "b": a[4:]}, b) for a, b in zip(x, y, strict=True)
    ],
    "tuple of tensors": lambda x, y: ((x[:, :4], x[:, 4:]), y),
    "dict of arrays": lambda x, y: ({"a": x[:, :4].numpy(), "b": x[:, 4:].numpy()}, y.numpy()),
    "targets in dicts": lambda x, y: [
        ((a[:4], a[4:]), {"class": b}) for a, b in zip(x, y, strict=True)
    ],
    "data set": lambda x, y: Lazier(
        [(Pair(a[:4], a[4:]), int(b)) for a, b in zip(x, y, strict=True)]
    ),
}


class Lazier(Dataset[Any]):
    def __init__(self, samples: list[Any]) -> None:
        self.samples = samples

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, i: int) -> Any:
        return self.samples[i]


@pytest.mark.parametrize("form", FORMS)
def test_several_inputs_and_outputs_in_every_form(form: str) -> None:
    module = TwoInputs()
    data = [FORMS[form](*pair) for pair in DATA]
    problem = spodgt.Learning(module, scores_loss, data, data[0], batch_size=None)
    assert dict(problem.metrics) == {}
    x = columns(problem)
    g = problem.grad(x, batches(3))
    seen = copy.deepcopy(module)
    loss = nn.functional.cross_entropy(
        seen(INPUTS[1][:, :4], INPUTS[1][:, 4:])["scores"], TARGETS[1]
    )
    slopes = torch.autograd.grad(loss, list(seen.parameters()))
    assert_close(g[1], torch.cat([s.flatten() for s in slopes]), rtol=1e-4, atol=1e-6)
    result = spodgt.train(spodgt.SpodGT(step_size=0.5), problem, RING, rounds=20, every=20)
    assert result.frame["loss"].iloc[-1] < 0.8 * result.frame["loss"].iloc[0]


class Reader(nn.Module):
    """An LSTM over padded texts."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm, self.head = (
            nn.Embedding(9, 4),
            nn.LSTM(4, 5, batch_first=True),
            nn.Linear(5, 2),
        )

    def forward(self, tokens: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(
            self.words(tokens), lengths.cpu(), batch_first=True, enforce_sorted=False
        )
        _, (last, _) = self.lstm(packed)
        return self.head(last[-1])  # type: ignore[no-any-return]


def padded(samples: list[Any]) -> Any:
    texts, labels = zip(*samples, strict=True)
    tokens = nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    return (tokens, torch.tensor([len(text) for text in texts])), torch.tensor(labels)


def texts(clients: int = 3, count: int = 10) -> list[list[Any]]:
    draws = np.random.default_rng(0)
    found = []
    for _ in range(clients):
        each = [draws.integers(1, 9, draws.integers(2, 7)).tolist() for _ in range(count)]
        found.append([(text, int(text[0] > 4)) for text in each])
    return found


def test_ragged_text_with_a_collate() -> None:
    data = texts()
    problem = spodgt.Learning(Reader(), ENTROPY, data, data[0], batch_size=4, collate=padded)
    assert dict(problem.metrics) == {"accuracy": "up"}
    result = spodgt.train(spodgt.SpodGT(step_size=0.5), problem, RING, rounds=60, every=60)
    assert result.frame["loss"].iloc[-1] < result.frame["loss"].iloc[0]
    ragged = [[(torch.tensor(text), {"y": label}) for text, label in each] for each in data]
    with pytest.raises(InvalidInput, match=r"client 0 .*equal size.*give collate="):
        spodgt.Learning(Reader(), ENTROPY, ragged)


# --- loss(model, batch) ---------------------------------------------------------------------------------
class Tagger(nn.Module):
    """Dict in, dict out, with the loss inside, as Hugging Face has it."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, features: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.layer(features)
        return {"logits": logits} | ({} if labels is None else {"loss": ENTROPY(logits, labels)})


def own_loss(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return model(**batch)["loss"]  # type: ignore[no-any-return]


def own_accuracy(model: nn.Module, batch: dict[str, Tensor]) -> Any:
    assert not model.training
    return (model(batch["features"])["logits"].argmax(-1) == batch["labels"]).float().mean()


@pytest.mark.parametrize("listed", [True, False])
def test_a_loss_that_calls_the_model_gets_the_batch_as_it_is(listed: bool) -> None:
    module = Tagger()
    sets: list[Any] = [{"features": x, "labels": y} for x, y in DATA]
    if listed:
        sets = [[{"features": a, "labels": b} for a, b in zip(x, y, strict=True)] for x, y in DATA]
    problem = spodgt.Learning(
        module, own_loss, sets, sets[0], batch_size=5, metrics={"accuracy": own_accuracy}
    )
    plain = spodgt.Learning(module.layer, ENTROPY, DATA, DATA[0], batch_size=5)
    x = columns(problem)
    assert_close(problem.grad(x, batches(3)), plain.grad(x, batches(3)), rtol=1e-4, atol=1e-6)
    assert_close(problem.full(x, np.arange(3)), plain.full(x, np.arange(3)), rtol=1e-4, atol=1e-6)
    ours, theirs = problem.evaluate(x), plain.evaluate(x)
    assert_close(ours.loss, theirs.loss, rtol=1e-5, atol=1e-7)
    assert_close(ours.metrics["accuracy"], theirs.metrics["accuracy"], rtol=1e-6, atol=1e-7)
    with pytest.raises(
        InvalidInput, match=r"metrics\['f1'\] takes outputs and targets, but loss takes"
    ):
        spodgt.Learning(module, own_loss, sets, sets[0], metrics={"f1": lambda outputs, targets: 0})


def test_samples_that_are_no_pairs_are_explained() -> None:
    with pytest.raises(
        InvalidInput,
        match=r"client 0 must have samples \(input, target\), got .*loss\(model, batch\)",
    ):
        spodgt.Learning(Tagger(), ENTROPY, [{"features": x, "labels": y} for x, y in DATA])
    three = [TensorDataset(x[:, :4], x[:, 4:], y) for x, y in DATA]
    with pytest.raises(
        InvalidInput, match=r"got list of 3; give \(\(a, b\), target\) for several inputs"
    ):
        spodgt.Learning(TwoInputs(), scores_loss, three)


# --- metrics and tests ----------------------------------------------------------------------------------
def f1(outputs: Tensor, targets: Tensor) -> float:
    found, true = outputs.argmax(1) == 1, targets == 1
    return float(2 * (found & true).sum() / (found.sum() + true.sum()).clamp_min(1))


def test_metrics_see_all_test_samples_at_once() -> None:
    module = nn.Linear(6, 3)
    seen: list[int] = []

    def count(outputs: Tensor, targets: Tensor) -> int:
        seen.append(len(outputs))
        outputs.zero_()  # a copy
        return len(targets)

    test = (
        torch.cat([x for x, _ in DATA] * 8),
        torch.cat([y for _, y in DATA] * 8),
    )  # more than one block
    measured = {
        "f1": f1,
        "perplexity": (lambda o, t: float(ENTROPY(o, t).exp()), "down"),
        "samples": count,
    }
    for model in (module, nn.Sequential(nn.Linear(6, 3), nn.Dropout(0.0))):
        problem = spodgt.Learning(model, ENTROPY, DATA, test, metrics=measured)  # type: ignore[arg-type]
        assert dict(problem.metrics) == {
            "accuracy": "up",
            "f1": "up",
            "perplexity": "down",
            "samples": "up",
        }
        found = problem.evaluate(columns(problem)[:2])
        with torch.no_grad():
            outputs = model.eval()(test[0])
        assert float(found.metrics["f1"][1]) == pytest.approx(f1(outputs, test[1]))
        loss = float(ENTROPY(outputs, test[1]))
        assert float(found.loss[0]) == pytest.approx(loss, rel=1e-5)
        assert float(found.metrics["perplexity"][0]) == pytest.approx(np.exp(loss), rel=1e-5)
        assert float(found.metrics["accuracy"][0]) == pytest.approx(
            float((outputs.argmax(1) == test[1]).double().mean())
        )
        assert found.metrics["samples"].tolist() == [288, 288]
    assert set(seen) == {288}
    replaced = spodgt.Learning(
        module, ENTROPY, DATA, DATA[0], metrics={"accuracy": lambda o, t: 0.25}
    )
    assert replaced.evaluate(columns(replaced)).metrics["accuracy"].tolist() == [0.25] * 3


def test_metrics_reach_the_tables() -> None:
    problem = spodgt.Learning(nn.Linear(6, 3), ENTROPY, DATA, DATA[0], metrics={"f1": f1})
    frame = spodgt.train("spod-gt", problem, RING, rounds=3).frame
    assert frame["f1"].between(0, 1).all()


def test_regression_with_a_metric_has_no_accuracy() -> None:
    def r2(outputs: Tensor, targets: Tensor) -> float:
        return float(
            1 - (outputs - targets).square().sum() / (targets - targets.mean()).square().sum()
        )

    data = [(x, x[:, :1] - x[:, 1:2]) for x in INPUTS]
    problem = spodgt.Learning(
        nn.Linear(6, 1), nn.MSELoss(), data, data[0], batch_size=None, metrics={"r2": r2}
    )
    frame = spodgt.train(spodgt.SpodGT(step_size=0.2), problem, RING, rounds=200, every=200).frame
    assert "accuracy" not in frame
    assert frame["r2"].iloc[-1] > 0.99


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("lazy", [False, True])
def test_clients_are_tested_on_their_own_data(named: bool, lazy: bool) -> None:
    own: Any = [(x[: 4 + i], y[: 4 + i]) for i, (x, y) in enumerate(DATA)]
    tests: Any = [Lazy(*pair) for pair in own] if lazy else own
    clients: Any = DATA
    if named:
        clients, tests = (
            dict(zip("abc", DATA, strict=True)),
            dict(zip("cba", tests[::-1], strict=True)),
        )
    module = nn.Linear(6, 3)
    problem = spodgt.Learning(module, ENTROPY, clients, tests, metrics={"f1": f1})
    x = columns(problem)[:1].repeat(4, 1)
    found = problem.evaluate(x, np.array([0, 1, 2, -1]))
    pooled = torch.cat([a for a, _ in own]), torch.cat([b for _, b in own])
    with torch.no_grad():
        for n, (inputs, targets) in enumerate([*own, pooled]):
            assert float(found.loss[n]) == pytest.approx(
                float(ENTROPY(module(inputs), targets)), rel=1e-5
            )
            assert float(found.metrics["f1"][n]) == pytest.approx(f1(module(inputs), targets))
    assert_close(problem.evaluate(x[:1]).loss[0], found.loss[3])
    one = spodgt.Learning(module, ENTROPY, DATA, DATA[0])
    assert_close(one.evaluate(x, np.array([0, 1, 2, -1])).loss, one.evaluate(x).loss)


def test_a_cap_on_test_samples_spreads_over_the_test() -> None:
    inputs, targets = torch.eye(6).repeat(5, 1), torch.arange(30) // 10  # sorted by class
    module = nn.Linear(6, 3)
    problem = spodgt.Learning(module, ENTROPY, DATA, (inputs, targets), test_samples=6)
    with torch.no_grad():
        chosen = torch.arange(0, 30, 5)
        true = float(ENTROPY(module(inputs[chosen]), targets[chosen]))
    assert float(problem.evaluate(columns(problem)[:1]).loss) == pytest.approx(true, rel=1e-5)
    tests = [(inputs, targets)] * 2 + [(inputs[:3], targets[:3])]
    counted: list[int] = []

    def count(outputs: Tensor, targets: Tensor) -> int:
        counted.append(len(targets))
        return 0

    metrics: Any = {"n": count}
    problem = spodgt.Learning(module, ENTROPY, DATA, tests, test_samples=6, metrics=metrics)
    counted.clear()
    problem.evaluate(columns(problem), np.arange(3))
    problem.evaluate(columns(problem)[:1])
    assert counted == [6, 6, 3, 6]


# --- what is trained ------------------------------------------------------------------------------------
def network() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


def test_a_module_starts_as_it_was_given() -> None:
    module = network()
    problem = spodgt.Learning(module, ENTROPY, DATA, DATA[0])
    for seed in (0, 7):
        assert torch.equal(
            problem.start(seed)[2], nn.utils.parameters_to_vector(module.parameters()).detach()
        )
    with torch.no_grad():
        accuracy = (module(INPUTS[0]).argmax(1) == TARGETS[0]).double().mean()
    frame = spodgt.train("spod-gt", problem, RING, rounds=1, seeds=[0, 1]).frame
    assert frame[frame["round"] == 0]["accuracy"].tolist() == pytest.approx([float(accuracy)] * 2)


def test_a_start_of_ones_own() -> None:
    def init(module: nn.Module, seed: int) -> None:
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.uniform_(-1, 1)
            module[0].bias.fill_(seed % 7)  # type: ignore[index]

    problem = spodgt.Learning(network(), ENTROPY, DATA, init=init, same_start=False)
    first = problem.start(0)
    assert torch.equal(first, problem.start(0))
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first[0], problem.start(1)[0])
    with pytest.raises(InvalidInput, match=r"init failed: .*it is called with \(module, seed\)"):
        spodgt.Learning(network(), ENTROPY, DATA, init=lambda module, seed: 1 / 0).start(0)


def test_frozen_parameters_stay_and_are_never_sent() -> None:
    module = network()
    module[0].requires_grad_(False)
    for init in ("given", "fresh"):
        problem = spodgt.Learning(module, ENTROPY, DATA, DATA[0], init=init)
        assert problem.parameters == 5 * 3 + 3
        assert problem.layout.names == ("2.weight", "2.bias")
        result = spodgt.train("spod-gt", problem, RING, rounds=5, keep_states=True)
        x = result.states[0].x[-1, 0]
        state = problem.state_dict(x)
        assert set(state) == set(module.state_dict())
        assert torch.equal(state["0.weight"], module.state_dict()["0.weight"])
        assert not torch.equal(state["2.weight"], module.state_dict()["2.weight"])
    whole = spodgt.train("spod-gt", spodgt.Learning(network(), ENTROPY, DATA), RING, rounds=5)
    sent = [run.participation["bytes"].sum() for run in (result, whole)]
    assert sent[0] * 53 == sent[1] * 18  # numbers per message: 18 of 53


def test_personal_parameters_are_trained_where_they_are() -> None:
    module = network()
    problem = spodgt.Learning(
        module, ENTROPY, DATA, batch_size=None, personal=["2.*"], personal_step_size=0.5
    )
    assert problem.parameters == 6 * 5 + 5
    assert problem.private == 5 * 3 + 3
    x = columns(problem)
    assert x.shape == (3, 53)
    before = x.clone()
    g = problem.grad(x, batches(3))
    for client, (inputs, targets) in enumerate(DATA):
        seen = copy.deepcopy(module)
        slopes = torch.autograd.grad(ENTROPY(seen(inputs), targets), list(seen.parameters()))
        assert_close(g[client], torch.cat([s.flatten() for s in slopes[:2]]), rtol=1e-4, atol=1e-6)
        step = torch.cat([s.flatten() for s in slopes[2:]])
        assert_close(x[client, 35:], before[client, 35:] - 0.5 * step, rtol=1e-4, atol=1e-6)
    assert torch.equal(x[:, :35], before[:, :35])
    kept = x.clone()
    problem.full(x, np.arange(3))
    assert torch.equal(x, kept)
    same = spodgt.Learning(module, ENTROPY, DATA, shared=["0.weight", "0.bias"])
    assert same.layout.names == problem.layout.names
    assert torch.equal(problem.module(x[1])[2].bias, x[1, -3:])  # type: ignore[index]


def test_personal_heads_fit_clients_that_disagree() -> None:
    data = [(INPUTS[0], (INPUTS[0][:, i] > 0).long()) for i in range(3)]
    network_ = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    found = {}
    for personal in (None, "2.*"):
        problem = spodgt.Learning(
            network_,
            ENTROPY,
            data,
            data,
            batch_size=None,
            personal=personal,
            personal_step_size=0.5,
        )
        result = spodgt.train(spodgt.SpodGT(step_size=0.5), problem, RING, rounds=300, every=300)
        found[personal] = (
            float(result.frame["accuracy"].iloc[-1]),
            result.participation["bytes"].sum(),
        )
    assert found["2.*"][0] > 0.95 > found[None][0]
    assert found["2.*"][1] * (56 + 18) == found[None][1] * 56


def test_norms_of_ones_own() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    problem = spodgt.Learning(
        module, ENTROPY, DATA, personal="1.*"
    )  # statistics that stay need no buffers=
    assert problem.private == 4 * 5
    assert problem.statistics(0).shape == (3, 20)
    half = spodgt.Learning(module, ENTROPY, DATA, personal="1.running_*", buffers="pull")
    assert (half.private, half.parameters) == (10, problem.parameters + 10)
    x = columns(problem)
    problem.grad(x, batches(3))
    assert not torch.equal(x[0, -20:], x[1, -20:])
    spodgt.train("spod-gt", problem, RING, rounds=3)


def test_a_frozen_layer_keeps_its_statistics_when_others_start_anew() -> None:
    module = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 3))
    module[1].running_mean.fill_(3)  # type: ignore[operator]
    module[1].requires_grad_(False)
    problem = spodgt.Learning(module, ENTROPY, DATA, init="fresh", buffers="pull")
    assert problem.statistics(4)[0, :5].tolist() == [3.0] * 5


# --- one data set or several ----------------------------------------------------------------------------
@pytest.mark.parametrize("count", [3, 10])
@pytest.mark.parametrize("lists", [False, True])
def test_a_list_of_pairs_of_equal_length_is_one_test_set(count: int, lists: bool) -> None:
    """Autoencoders and language models: input and target of a sample are as long as each other."""
    clients: list[Any] = [(INPUTS[client], INPUTS[client]) for client in range(3)]
    if lists:
        clients = [list(zip(*client, strict=True)) for client in clients]
    test = [(torch.randn(6), torch.randn(6)) for _ in range(count)]
    problem = spodgt.Learning(nn.Linear(6, 6), nn.MSELoss(), clients, test)
    assert problem.data.test is not None
    assert problem.data.test.ranges is None
    assert len(problem.data.test) == count


def test_a_list_of_data_sets_is_one_per_client() -> None:
    clients = [(INPUTS[client], INPUTS[client]) for client in range(3)]
    problem = spodgt.Learning(nn.Linear(6, 6), nn.MSELoss(), clients, clients)
    assert problem.data.test is not None
    assert problem.data.test.ranges is not None
    with pytest.raises(InvalidInput, match="test must be one data set or 3"):
        spodgt.Learning(nn.Linear(6, 6), nn.MSELoss(), clients, clients[:2])


def test_test_data_are_copies() -> None:
    inputs = INPUTS[0].clone()
    array = INPUTS[0].numpy().copy()
    for given in (inputs, array):
        problem = spodgt.Learning(nn.Linear(6, 3), ENTROPY, DATA, (given, TARGETS[0]))
        models = columns(problem)
        before = problem.evaluate(models).loss.clone()
        given[:] = 0
        assert_close(problem.evaluate(models).loss, before)


def test_a_list_of_two_tensors_is_refused_where_it_may_be_two_samples() -> None:
    def loss(model: nn.Module, batch: Any) -> Tensor:
        outputs: Tensor = model(batch[0] if isinstance(batch, tuple | list) else batch)
        return outputs.square().mean()

    clients = [list(INPUTS[0]), list(INPUTS[1][:2])]
    with pytest.raises(
        InvalidInput, match="client 1 is a list of two tensors, which may be two samples"
    ):
        spodgt.Learning(nn.Linear(6, 3), loss, clients)
    assert len(spodgt.Learning(nn.Linear(6, 3), loss, [(INPUTS[0], TARGETS[0])] * 2).samples) == 24


def test_a_wrong_partition_is_told_of_one_that_exists() -> None:
    data = spodgt.problems.data.load("fashion-mnist-small")
    with pytest.raises(InvalidInput, match=r"use spodgt\.problems\.data\.IID\(\)"):
        spodgt.Learning.partitioned(nn.Linear(784, 10), ENTROPY, data, clients=2, partition="iid")  # type: ignore[arg-type]
    assert spodgt.problems.data.IID().split(data.train.targets, 2, 0)


@pytest.mark.parametrize("form", ["frame", "pair"])
def test_tables_of_pandas_are_refused_with_the_fix(form: str) -> None:
    table = pd.DataFrame({"a": [0.5, 1.5], "b": [1.0, 2.0], "y": [0, 1]})
    source: Any = table if form == "frame" else (table[["a", "b"]], table["y"])
    with pytest.raises(
        InvalidInput, match=r"holds a DataFrame; give arrays of its columns, such as \(frame"
    ):
        spodgt.Learning(nn.Linear(2, 2), ENTROPY, [source, source])


def test_read_only_arrays_as_of_pandas_are_copied_without_a_warning() -> None:
    inputs = np.ones((4, 2), np.float32)
    targets = np.array([0, 1, 0, 1])
    for array in (inputs, targets):
        array.flags.writeable = False
    spodgt.Learning(nn.Linear(2, 2), ENTROPY, [(inputs, targets)] * 2)  # warnings are errors
