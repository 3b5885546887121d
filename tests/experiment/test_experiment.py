"""Experiments: tables and recipes say the same, a seed is drawn in one place, objects are told apart."""

from __future__ import annotations

import dataclasses
import inspect
import json
import re
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st

import spodgt
from spodgt.errors import InvalidConfig, InvalidData, InvalidInput, InvalidNetwork
from spodgt.experiment import Classification, Experiment, RandomQuadratic, RunOptions
from spodgt.experiment.checks import check_files
from spodgt.network import GraphFile
from spodgt.network.graphs import RECIPES, KOut, RandomGeometric, Ring
from spodgt.participation import PARTICIPATIONS, Beta, Trace, TraceFile
from spodgt.problems import Quadratic
from spodgt.problems.data import PARTITIONS, Dirichlet, Explicit, LabelsPerClient
from spodgt.sweeps.api import SweepOptions
from spodgt.training import ExecutionOptions, TrainOptions
from tests.strategies import SEEDS

QUADRATIC = {"problem": {"kind": "quadratic", "parameters": 3}}
NEEDED: dict[str, dict[str, Any]] = {  # keys without a default
    "labels-per-client": {"labels": 2},
    "dirichlet": {"alpha": 0.5},
    "explicit": {"indices": [[0, 2], [1]]},
    "trace": {"path": "who.csv"},
    "together": {"of": [{"kind": "markov", "on": 3.0}, {"kind": "bursts", "of": {"kind": "beta"}}]},
}


# --- tables ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", RECIPES)
@pytest.mark.parametrize("weights", ["degree", "random"])
def test_every_network_survives_toml(kind: str, weights: str) -> None:
    again(Experiment.parse({"network": {"kind": kind, "clients": 12, "weights": weights}}))


@pytest.mark.parametrize("kind", PARTICIPATIONS)
def test_every_participation_survives_toml(kind: str) -> None:
    again(Experiment.parse({"participation": {"kind": kind, **NEEDED.get(kind, {})}}))


@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_partition_survives_toml(kind: str) -> None:
    problem = {"kind": "text"} if kind == "by-speaker" else {}
    again(
        Experiment.parse(
            {"problem": {**problem, "partition": {"kind": kind, **NEEDED.get(kind, {})}}}
        )
    )


@given(
    st.floats(0.01, 5),
    st.integers(1, 10**6),
    st.floats(1e-3, 1e3),
    st.one_of(st.integers(1, 9), st.lists(st.integers(0, 99), min_size=1, unique=True)),
)
def test_any_numbers_survive_toml(
    radius: float, rounds: int, alpha: float, seeds: int | list[int]
) -> None:
    again(
        Experiment.parse(
            {
                "run": {
                    "rounds": rounds,
                    "seeds": seeds,
                    "methods": [{"name": "k-gt", "local_steps": 2}],
                },
                "network": {"radius": radius},
                "participation": {"alpha": alpha},
            }
        )
    )


def again(experiment: Experiment) -> None:
    tables = experiment.to_dict()
    other = Experiment.parse(tomllib.loads(tomli_w.dumps(tables)))
    assert other == experiment
    assert other.to_dict() == tables
    assert experiment.override({}) == experiment
    json.dumps(tables)


def test_the_default_has_the_tables_it_always_had() -> None:
    """Cells of sweeps are named by a hash of these."""
    assert Experiment().to_dict() == {
        "run": {
            "methods": [
                "spod-gt",
                "spod-gt-memory",
                "ab-push-pull",
                "g-push-pull",
                "k-gt",
                "sporadic-k-gt",
            ],
            "seeds": 5,
            "delay": 5000.0,
            "dtype": "float32",
            "device": "cpu",
        },
        "network": {"kind": "random-geometric", "clients": 10, "radius": 0.4, "weights": "degree"},
        "participation": {"kind": "beta", "alpha": 0.5, "beta": 0.5, "floor": 0.0},
        "problem": {
            "kind": "classification",
            "data": "fashion-mnist-small",
            "model": "svm",
            "batch_size": 16,
            "partition": {"kind": "labels-per-client", "labels": 1},
        },
    }


def test_a_step_size_of_its_own_stays_when_the_common_one_changes() -> None:
    entries = [{"name": "spod-gt", "step_size": 0.01}, "k-gt", "gossip"]
    experiment = Experiment.parse({"run": {"methods": entries}}).override({"run.step_size": 0.5})
    steps = [vars(method).get("step_size") for method in experiment.methods]
    assert steps == [0.01, 0.5, None], "gossip has none"
    assert experiment.to_dict()["run"]["methods"] == entries


def test_kinds_change_with_their_keys() -> None:
    base = Experiment.parse({"network": {"clients": 7, "radius": 0.9, "weights": "random"}})
    ring = base.override({"network.kind": "ring"})
    assert (ring.network, ring.weights) == (Ring(7), "random"), "shared keys stay, others go"
    assert ring.override({"network.kind": "k-out", "network.out": 2}).network == KOut(7, 2)
    file = base.override({"network.path": "net.csv", "network.kind": "file"})
    assert file.network == GraphFile("net.csv")
    inner = base.override({"problem.partition.alpha": 0.3, "problem.partition.kind": "dirichlet"})
    assert isinstance(inner.problem, Classification)
    assert inner.problem.partition == Dirichlet(0.3)
    assert inner.network is base.network, "sections that are not named are not touched"


def test_tables_that_say_nothing_of_the_end_have_the_default_one() -> None:
    assert Experiment.parse({"run": {"seeds": 1}}).run.delay == 5000
    assert Experiment.parse({"run": {"rounds": 3}}).run.delay is None
    assert Experiment().override({"run.delay": None}).run.delay == 5000


# --- draws -------------------------------------------------------------------------------------------
@given(SEEDS)
def test_a_draw_is_a_pure_function_of_the_seed(seed: int) -> None:
    tables = {**QUADRATIC, "network": {"clients": 5, "radius": 0.9}}
    one, two = (Experiment.parse(tables).draw(seed) for _ in range(2))
    np.testing.assert_array_equal(one.network.A, two.network.A)
    np.testing.assert_array_equal(one.availability.p, two.availability.p)
    np.testing.assert_array_equal(
        one.availability.computes(range(9)), two.availability.computes(range(9))
    )
    assert torch.equal(one.start, two.start)
    assert one.start.shape == (5, 3)
    assert one.seed == seed


def test_a_draw_divides_the_data_anew_and_loads_them_once(monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[int] = []
    build = Classification.make

    def count(self: Classification, clients: int) -> Any:
        built.append(clients)
        return build(self, clients)

    monkeypatch.setattr(Classification, "make", count)
    experiment = Experiment()
    network, availability = experiment.draw_network(1)
    assert built == [], "the network alone needs no data"
    draws = [experiment.draw(seed) for seed in (0, 1)]
    assert built == [10]
    np.testing.assert_array_equal(draws[1].network.A, network.A)
    np.testing.assert_array_equal(draws[1].availability.p, availability.p)
    assert not np.array_equal(draws[0].availability.p, availability.p)


def test_fixed_objects_are_held_over_all_seeds() -> None:
    network, problem = spodgt.Network.ring(4), Quadratic.random(4, 2)
    experiment = Experiment.of("spod-gt", problem, network, rounds=3, seeds=[3, 5])
    assert experiment.run.seed_list == [3, 5]
    assert all(experiment.draw(seed).network is network for seed in (3, 5))
    assert all(experiment.draw(seed).problem is problem for seed in (3, 5))


def test_x0_is_for_all_or_for_each() -> None:
    one = Experiment.of("spod-gt", Quadratic.random(4, 2), Ring(4), rounds=3, x0=[1.0, 2.0])
    assert one.draw(0).start.tolist() == [[1.0, 2.0]] * 4
    each = dataclasses.replace(one, x0=np.arange(8.0).reshape(4, 2))
    assert each.draw(0).start.tolist() == np.arange(8.0).reshape(4, 2).tolist()


# --- objects of Python -------------------------------------------------------------------------------
def given_experiment(**changes: Any) -> Experiment:
    parts: dict[str, Any] = {
        "methods": ["spod-gt", spodgt.method("k-gt", local_steps=3)],
        "problem": Quadratic.random(4, 2, seed=1),
        "network": spodgt.Network.ring(4),
        "participation": Trace(np.ones((4, 4)), np.ones((3, 4))),
    }
    return Experiment.of(**(parts | changes), rounds=3)


def test_objects_are_described_so_that_another_can_be_told() -> None:
    tables = given_experiment().to_dict()
    assert {
        name: tables[name]["kind"] for name in ("network", "participation", "problem")
    } == dict.fromkeys(("network", "participation", "problem"), "given")
    assert tables["network"] | {"checksum": ""} == {
        "kind": "given",
        "class": "Network",
        "clients": 4,
        "links": 4,
        "checksum": "",
    }
    assert tables["run"]["methods"] == [
        {"name": "spod-gt", "step_size": 0.01},
        {"name": "k-gt", "step_size": 0.01, "local_steps": 3, "server_step": 1.0},
    ]
    assert tomllib.loads(tomli_w.dumps(tables)) == tables
    assert given_experiment().to_dict() == tables
    for changes in (
        {"network": spodgt.Network.draw(spodgt.graphs.Star(4))},
        {"network": spodgt.Network.ring(4, weights="random")},
        {"problem": Quadratic.random(4, 2, seed=2)},
        {"problem": Quadratic.random(4, 2, seed=1, noise=0.1)},
        {"participation": Trace(np.zeros((4, 4)), np.ones((3, 4)))},
        {"x0": [0.0, 1.0]},
    ):
        assert given_experiment(**changes).to_dict() != tables


@pytest.mark.parametrize("name", ["network", "participation", "problem"])
def test_a_description_is_no_config(name: str) -> None:
    tables = given_experiment().to_dict()
    with pytest.raises(InvalidConfig) as caught:
        Experiment.parse({name: tables[name]})
    assert str(caught.value) == (
        f"{name}.kind='given' was an object of Python, which a config cannot hold; "
        "pass it to spodgt.compare again."
    )


def test_objects_stay_when_other_keys_are_overridden() -> None:
    experiment = given_experiment()
    more = experiment.override({"run.rounds": 9})
    assert (more.run.rounds, more.network, more.problem) == (
        9,
        experiment.network,
        experiment.problem,
    )
    assert [method.name for method in more.methods] == ["spod-gt", "k-gt"]


def test_recipes_and_numbers_in_the_keyword_form_are_a_config() -> None:
    experiment = Experiment.of(
        "spod-gt",
        RandomQuadratic(3),
        RandomGeometric(6, 0.9),
        Beta(),
        delay=np.float32(20),  # type: ignore[arg-type]
        seeds=[3],
    )
    assert experiment.draw(3).start.shape == (6, 3)
    assert Experiment.parse(experiment.to_dict()).draw(3).network.clients == 6


# --- recipes -----------------------------------------------------------------------------------------
BAD: dict[str, tuple[Any, type[InvalidInput], str]] = {
    "unknown field": (
        lambda: RandomGeometric(10, radus=0.4),  # type: ignore[call-arg]
        InvalidNetwork,
        "radus=0.4 is not a key of RandomGeometric; did you mean 'radius'?",
    ),
    "missing field": (Ring, InvalidNetwork, "clients is missing; add clients=10."),
    "one argument too many": (
        lambda: Ring(3, 4),  # type: ignore[call-arg]
        InvalidNetwork,
        "Ring takes clients, got 4.",
    ),
    "default that does not fit": (
        lambda: KOut(3),
        InvalidNetwork,
        "out must be a whole number from 1 to clients - 1 = 2, got 3; use out=2.",
    ),
    "bool for a number": (
        lambda: Beta(floor=True),
        InvalidInput,
        "floor must be in [0, 1), got True; use floor=0.05.",
    ),
    "labels": (
        lambda: LabelsPerClient(0),
        InvalidData,
        "labels must be a whole number of classes for each client from 1 on, but is 0; use 1.",
    ),
    "indices": (
        lambda: Explicit([[0.5]]),  # type: ignore[list-item]
        InvalidData,
        "indices must be one sequence of whole numbers for each client, but 'float' object cannot be "
        "interpreted as an integer; write it like [[0, 2], [1]].",
    ),
    "option of another model": (
        lambda: Classification(hidden=3),
        InvalidInput,
        "hidden=3 is not a key of problem with model svm; choose from data, model, batch_size, partition, "
        "client_weights, augment, test_samples, validation.",
    ),
    "not a partition": (
        lambda: Classification(partition="iid"),  # type: ignore[arg-type]
        InvalidInput,
        "partition must be a partition, got 'iid'; use LabelsPerClient(1).",
    ),
    "curvature": (
        lambda: RandomQuadratic(condition=0.5),
        InvalidInput,
        "condition must be a number of at least 1, got 0.5; use condition=10.0.",
    ),
    "no end": (
        RunOptions,
        InvalidInput,
        "rounds or delay is required, got neither; use delay=5000.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_fields_are_refused_in_one_sentence(case: str) -> None:
    build, error, sentence = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        build()
    assert str(caught.value) == sentence
    assert type(caught.value) is error
    assert caught.value.__cause__ is None, "nobody needs to see pydantic"


@pytest.mark.parametrize(
    "made", [Ring(4), Beta(), LabelsPerClient(2), Classification(), RandomQuadratic()]
)
def test_recipes_are_values(made: Any) -> None:
    assert made == dataclasses.replace(made)
    assert hash(made) == hash(dataclasses.replace(made))
    with pytest.raises(dataclasses.FrozenInstanceError):
        made.clients = 5
    assert isinstance(made.name, str)


def test_numbers_of_numpy_become_plain() -> None:
    made = RandomGeometric(np.int64(5), np.float32(0.5))  # type: ignore[arg-type]
    assert (type(made.clients), type(made.radius)) == (int, float)


def test_files_are_read_when_they_are_needed(tmp_path: Path) -> None:
    tables = {
        "network": {"kind": "file", "path": str(tmp_path / "net.csv")},
        "participation": {"kind": "trace", "path": str(tmp_path / "who.csv")},
        **QUADRATIC,
    }
    experiment = Experiment.parse(tables)
    assert isinstance(experiment.participation, TraceFile)
    with pytest.raises(InvalidConfig, match=r"net\.csv' does not exist"):
        check_files(experiment)
    (tmp_path / "net.csv").write_text("0,1\n1,0\n")
    with pytest.raises(InvalidInput, match=r"who\.csv does not exist"):
        check_files(experiment)
    (tmp_path / "who.csv").write_text(
        "round,receiver,sender,up\n0,0,0,1\n0,1,1,1\n1,0,1,1\n1,1,0,1\n1,1,1,1\n"
    )
    draw = experiment.draw(0)
    assert draw.network.clients == 2
    assert draw.availability.length == 1


# --- one set of options --------------------------------------------------------------------------
def test_options_of_compare_are_the_keys_of_run() -> None:
    """A key of [run] that is missing in Python, or the other way round, is a mistake."""
    keys = {slot.name for slot in dataclasses.fields(RunOptions)}
    options = set(TrainOptions.__annotations__) - set(ExecutionOptions.__annotations__)
    of_methods = {"methods", "step_size", "layers"}  # a method that Python passes has its own
    assert options - {"x0", "weights", "time"} == keys - of_methods
    assert set(SweepOptions.__annotations__) - {"x0", "weights", "time"} == keys - {
        "methods",
        "workers",
    }


def test_run_takes_the_execution_options_of_compare() -> None:
    arguments = inspect.signature(spodgt.run).parameters
    assert set(arguments) - {"experiment"} == set(ExecutionOptions.__annotations__)


@pytest.mark.parametrize("option", ["step_size", "momentum"])
def test_compare_names_the_place_of_an_option_of_methods(option: str) -> None:
    sentence = f'set it for each method: spodgt.method("spod-gt", {option}=0.1).'
    with pytest.raises(InvalidInput, match=re.escape(sentence)):
        spodgt.compare(
            ["spod-gt"],
            Quadratic.random(3, 2),
            spodgt.graphs.Ring(3),
            rounds=1,
            **{option: 0.1},  # type: ignore[arg-type]
        )


def test_train_rejects_unknown_options_in_its_own_name() -> None:
    problem, network = Quadratic.random(3, 2), spodgt.graphs.Ring(3)
    for option, fix in (("step_size", "set it for each method"), ("roundz", "did you mean")):
        sentence = f"{option}=0.1 is not an option of train; {fix}"
        with pytest.raises(InvalidInput, match=re.escape(sentence)):
            spodgt.train("spod-gt", problem, network, rounds=1, **{option: 0.1})  # type: ignore[arg-type]


@pytest.mark.parametrize("function", ["compare", "sweep", "tune"])
def test_compare_sweep_and_tune_reject_unknown_options(function: str) -> None:
    options: dict[str, Any] = {"grid": {"step_size": [0.1]}} if function == "sweep" else {}
    sentence = f"roundz=3 is not an option of {function}; did you mean 'rounds'?"
    with pytest.raises(InvalidInput, match=re.escape(sentence)):
        getattr(spodgt, function)(
            ["spod-gt"], Quadratic.random(3, 2), spodgt.graphs.Ring(3), roundz=3, **options
        )


# --- deprecated names ----------------------------------------------------------------------------
def test_experiment_warns_of_deprecated_names() -> None:
    experiment = Experiment(problem=RandomQuadratic(3))
    with pytest.warns(DeprecationWarning, match=r"Experiment\.undivided is .*\.base_problem"):
        assert experiment.undivided is experiment.base_problem
    with pytest.warns(DeprecationWarning, match=r"Experiment\.beside is .*\.resolve_relative_to"):
        assert experiment.beside(Path(".")) is experiment
    with pytest.warns(DeprecationWarning, match=r"Experiment\.rounds is .*\.max_rounds"):
        assert experiment.rounds is experiment.max_rounds


@pytest.mark.parametrize("name", ["portable", "sources"])
def test_experiment_warns_of_properties_that_are_functions(name: str) -> None:
    experiment = Experiment(problem=RandomQuadratic(3))
    with pytest.warns(DeprecationWarning, match=rf"Experiment\.{name} is .*spodgt\.experiment\."):
        value = getattr(experiment, name)
    assert value in (True, {})


def test_experiment_warns_of_a_method_that_is_a_function() -> None:
    experiment = Experiment(Ring(3), problem=RandomQuadratic(3))
    with pytest.warns(DeprecationWarning, match=r"Experiment\.check is .*check_files"):
        experiment.check()
