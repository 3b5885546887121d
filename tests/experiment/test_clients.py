"""Clients by name: network and data are joined by name, and so are all values that are given per client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch import Tensor, nn

import spodgt
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.record import Record
from tests.conftest import Cli

SIZES = {"north": 30, "south": 20, "east": 10, "west": 5, "village": 2}
SORTED = ("east", "north", "south", "village", "west")  # the order of a graph with names
RATES = {"north": 0.9, "south": 0.8, "east": 0.7, "west": 0.6, "village": 0.5}
LINKS = [
    ("north", "south"),
    ("south", "east"),
    ("east", "west"),
    ("west", "village"),
    ("village", "north"),
]
ENTROPY = nn.CrossEntropyLoss()


def samples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    inputs = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed))
    return inputs, inputs[:, :3].argmax(1)


DATA = {name: samples(size, seed) for seed, (name, size) in enumerate(SIZES.items())}
NETWORK = spodgt.Network.from_networkx(nx.DiGraph([*LINKS, ("north", "east")]))


def learning(clients: Any = DATA, test: Any = None, **options: Any) -> spodgt.Learning:
    torch.manual_seed(0)
    return spodgt.Learning(
        nn.Linear(4, 3), ENTROPY, clients, samples(9, 9) if test is None else test, **options
    )


def draw(problem: Any, network: Any, participation: Any = spodgt.Always()) -> Any:  # noqa: B008
    return Experiment.of("spod-gt", problem, network, participation, rounds=1).draw(0)


def test_network_and_data_are_joined_by_name() -> None:
    assert NETWORK.names == SORTED
    drawn = draw(learning(batch_size={name: size - 1 for name, size in SIZES.items()}), NETWORK)
    assert drawn.problem.client_names == SORTED
    assert drawn.problem.sizes().tolist() == [SIZES[name] for name in SORTED]
    assert drawn.problem.batches(np.arange(5)).tolist() == [SIZES[name] - 1 for name in SORTED]
    for client, name in enumerate(SORTED):
        held = drawn.problem.samples.inputs[drawn.problem.client_indices[client]]
        torch.testing.assert_close(held, DATA[name][0])


def test_training_is_that_of_data_in_the_order_of_the_network() -> None:
    by_name = spodgt.train("spod-gt", learning(), NETWORK, spodgt.Bernoulli(0.7, 0.7), rounds=20)
    ordered = learning([DATA[name] for name in SORTED])
    by_position = spodgt.train("spod-gt", ordered, NETWORK, spodgt.Bernoulli(0.7, 0.7), rounds=20)
    torch.testing.assert_close(by_name.models["spod-gt", 0], by_position.models["spod-gt", 0])


def test_tests_of_clients_follow_their_names() -> None:
    tests = {name: samples(3 + seed, 20 + seed) for seed, name in enumerate(reversed(SIZES))}
    problem = draw(learning(test=tests), NETWORK).problem
    ordered = draw(
        learning([DATA[n] for n in SORTED], test=[tests[n] for n in SORTED]), NETWORK
    ).problem
    models = torch.randn(5, 15, generator=torch.Generator().manual_seed(1))
    rows = np.arange(5)
    torch.testing.assert_close(
        problem.evaluate(models, rows).loss, ordered.evaluate(models, rows).loss
    )


def test_different_names_are_refused() -> None:
    clients = {("centre" if name == "village" else name): data for name, data in DATA.items()}
    with pytest.raises(
        InvalidInput, match="only the network has 'village', only the data has 'centre'"
    ):
        draw(learning(clients), NETWORK)
    with pytest.raises(InvalidInput, match="only the data has 'north', 'south'"):
        draw(
            learning(),
            spodgt.Network.from_adjacency(np.ones((3, 3)), names=["east", "west", "village"]),
        )


def test_names_of_one_side_are_used() -> None:
    drawn = draw(learning(), spodgt.Network.ring(5), spodgt.Bernoulli(RATES, 1.0))
    assert drawn.network.names == tuple(SIZES)
    assert drawn.availability.p.tolist() == list(RATES.values())
    drawn = draw(learning(list(DATA.values())), NETWORK)
    assert drawn.network.names == SORTED
    assert drawn.problem.sizes().tolist() == list(SIZES.values())
    with pytest.raises(InvalidInput, match="problem has 5 clients, but the network has 4"):
        draw(learning(), spodgt.Network.ring(4))


def test_keys_that_are_numbers_are_the_numbers_of_clients() -> None:
    problem = learning({2: samples(6, 2), 0: samples(4, 0), 1: samples(5, 1)})
    assert problem.client_names is None
    assert problem.sizes().tolist() == [4, 5, 6]


# --- values per client ----------------------------------------------------------------------------------
def test_participation_by_name() -> None:
    p_hat = dict(zip([*LINKS, ("north", "east")], np.linspace(0.1, 0.6, 6).tolist(), strict=True))
    text = {f"{sender}:{receiver}": rate for (sender, receiver), rate in p_hat.items()}
    for given in (p_hat, text):
        available = spodgt.Bernoulli(RATES, given).draw(NETWORK, 0)
        assert available.p.tolist() == [RATES[name] for name in SORTED]
        for link in range(NETWORK.links):
            ends = SORTED[NETWORK.senders[link]], SORTED[NETWORK.receivers[link]]
            assert available.p_hat[link] == p_hat[ends]
    regions = {"north": "a", "south": "a", "east": "b", "west": "b", "village": "b"}
    outages = spodgt.Outages(groups=regions, p=RATES, up=50.0, down=50.0).draw(NETWORK, 0)
    assert outages.p.tolist() == [RATES[name] / 2 for name in SORTED]
    bursts = spodgt.Markov(on={name: 1 + seed for seed, name in enumerate(SIZES)}, off=1.0).draw(
        NETWORK, 0
    )
    assert bursts.p[SORTED.index("village")] == pytest.approx(5 / 6)


@pytest.mark.parametrize("wrong", [{**RATES, "centre": 0.5}, dict.fromkeys(list(SIZES)[1:], 0.5)])
def test_wrong_names_of_values_are_refused_by_name(wrong: dict[str, float]) -> None:
    named = "'centre' is no client" if "centre" in wrong else "'north' is missing"
    with pytest.raises(InvalidInput, match=f"p must have one value for each client, but {named}"):
        spodgt.Bernoulli(wrong).draw(NETWORK, 0)
    with pytest.raises(InvalidInput, match=f"batch_size must .* {named}"):
        learning(batch_size=dict.fromkeys(wrong, 3))
    with pytest.raises(InvalidInput, match=f"client_weights must .* {named}"):
        learning(client_weights=wrong)
    method = spodgt.method("spod-gt", step_size=wrong)
    with pytest.raises(InvalidInput, match=f"step_size of spod-gt must .* {named}"):
        spodgt.train(method, learning(), NETWORK, rounds=1)
    with pytest.raises(
        InvalidInput, match="p_hat must have one value for each link, but 'north:west' is no"
    ):
        spodgt.Bernoulli(1.0, {("north", "west"): 0.5}).draw(NETWORK, 0)


@pytest.mark.parametrize("form", ["plain", "schedule", "momentum"])
def test_step_sizes_by_name_are_those_in_the_order_of_the_network(form: str) -> None:
    steps = {"north": 0.1, "south": 0.2, "east": 0.3, "west": 0.4, "village": 0.5}

    def trained(rates: Any) -> Tensor:
        if form == "schedule":
            rates = {"schedule": "inverse-sqrt", "start": rates}
        layers = {"momentum": 0.5} if form == "momentum" else {}
        method = spodgt.method("spod-gt", step_size=rates, **layers)
        return next(iter(spodgt.train(method, learning(), NETWORK, rounds=5).models.values()))

    torch.testing.assert_close(trained(steps), trained([steps[name] for name in SORTED]))


def test_test_data_with_a_wrong_name_are_refused_at_once() -> None:
    wrong = {("vilage" if name == "village" else name): data for name, data in DATA.items()}
    with pytest.raises(InvalidInput, match="only test has 'vilage', only clients has 'village'"):
        learning(test=wrong)
    with pytest.raises(InvalidInput, match="only test has 'a', 'b'"):
        learning(test={"a": samples(3, 1), "b": samples(3, 2)})


def test_a_dict_of_tensors_is_one_test_set() -> None:
    def loss(model: nn.Module, batch: Any) -> Any:
        return ENTROPY(model(batch["x"]), batch["y"])

    clients = {name: {"x": x, "y": y} for name, (x, y) in DATA.items()}
    problem = spodgt.Learning(
        nn.Linear(4, 3), loss, clients, {"x": DATA["north"][0], "y": DATA["north"][1]}
    )
    assert problem.data.test is not None
    assert problem.data.test.ranges is None
    problem = spodgt.Learning(nn.Linear(4, 3), loss, clients, dict(reversed(clients.items())))
    assert problem.data.test is not None
    assert problem.data.test.ranges is not None


# --- results --------------------------------------------------------------------------------------------
def test_results_use_names(tmp_path: Path, cli: Cli) -> None:
    participation = spodgt.Bernoulli(RATES, 0.9)
    result = spodgt.train(
        "relay", learning(), NETWORK, participation, rounds=5, out=tmp_path / "run"
    )
    assert result.clients["client_name"].tolist() == list(SORTED)
    assert result.clients["samples"].tolist() == [SIZES[name] for name in SORTED]
    village = result.state_dict(client="village")
    torch.testing.assert_close(village, result.state_dict(client=3))
    with pytest.raises(InvalidInput, match=r"client='centre' must be .*'village'"):
        result.model(client="centre")
    assert Record.read(tmp_path / "run").clients["client_name"].tolist() == list(SORTED)
    from spodgt.report.tables import final_table

    root = result.participation.query("root")["receiver_name"].item()
    assert f"client {root} (seed 0)" in final_table(result).note

    from safetensors.torch import load_file

    for client in ("village", "3"):
        file = tmp_path / f"{client}.safetensors"
        assert cli("export", str(tmp_path / "run"), str(file), "--client", client)[0] == 0
        torch.testing.assert_close(load_file(file), village)
    code, _, err = cli(
        "export", str(tmp_path / "run"), str(tmp_path / "x.safetensors"), "--client", "centre"
    )
    assert code == 2
    assert "--client='centre' must be" in err


def test_a_config_with_names_is_written_and_read_again() -> None:
    tables = {
        "run": {"methods": [{"name": "spod-gt", "step_size": {"a": 0.1, "b": 0.2}}], "rounds": 1},
        "participation": {
            "kind": "bernoulli",
            "p": {"a": 0.1, "b": 0.2},
            "p_hat": {"a:b": 0.5, "b:a": 1.0},
        },
    }
    experiment = Experiment.parse(tables)
    again = Experiment.parse(experiment.to_dict())
    assert again.to_dict() == experiment.to_dict()
    network = spodgt.Network.from_adjacency(np.ones((2, 2)), names=["b", "a"])
    assert again.participation.draw(network, 0).p.tolist() == [0.2, 0.1]


@pytest.mark.parametrize("time", [None, spodgt.Time(compute=0.1)])
def test_every_runtime_sees_the_same_clients(time: spodgt.Time | None) -> None:
    options: dict[str, Any] = {"rounds": 10, "time": time}
    named = spodgt.train("spod-gt", learning(client_weights="samples"), NETWORK, **options)
    ordered = learning([DATA[name] for name in SORTED], client_weights="samples")
    plain = spodgt.train("spod-gt", ordered, NETWORK, **options)
    torch.testing.assert_close(named.models["spod-gt", 0], plain.models["spod-gt", 0])
    assert named.clients["client_name"].tolist() == list(SORTED)
