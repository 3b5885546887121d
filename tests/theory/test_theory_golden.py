"""Constants against values computed with 60 digits, and their behaviour at the edges."""

import json
import math
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spodgt import theory
from spodgt.errors import InvalidInput
from spodgt.network import Network, graphs
from spodgt.record.run_folder import plain
from spodgt.theory import Constants, Data, Infeasible, Start
from spodgt.theory.constants import Variant
from tests.theory.coverings import greedy_covering

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "theory.json").read_text())
CASES = {case["inputs"]["name"]: case for case in GOLDEN["cases"]}


def network_of(entry: dict[str, Any]) -> Network:
    adjacency = np.zeros((entry["m"], entry["m"]), dtype=bool)
    for sender, receiver in entry["links"]:
        adjacency[receiver, sender] = True
    return Network.from_adjacency(adjacency)


def constants_of(case: dict[str, Any], variant: Variant) -> Constants:
    given_, network = case["inputs"], network_of(case["inputs"])
    p_hat = np.array(given_["p_hat_matrix_receiver_sender"])[network.receivers, network.senders]
    assumed = {name: given_[name] for name in ("L", "sigma0", "sigma1", "delta0", "delta1")}
    return theory.constants(
        network,
        given_["p"],
        p_hat,
        Data(**assumed, samples=given_["D"], batch=given_["B"]),
        given_["eta"],
        gamma2=given_["G2"],
        gamma3=given_["G3"],
        variant=variant,
    )


def start_of(case: dict[str, Any]) -> tuple[Start, int]:
    start = case["theorem_terms"]
    errors = Start(start["F0_minus_Fstar"], start["model_error0"], start["tracking_error0"])
    return errors, start["k"] + 1


@pytest.mark.parametrize("graph", GOLDEN["graphs"], ids=lambda graph: graph["name"])
def test_graph_quantities(graph: dict[str, Any]) -> None:
    network = network_of(graph)
    found = asdict(theory.edge_utility(network)) | {"greedy_covering": greedy_covering(network)}
    assert found == {name: graph[name] for name in found}


@pytest.mark.parametrize("variant", ["paper", "corrected"])
@pytest.mark.parametrize("name", CASES)
def test_constants(name: str, variant: Variant) -> None:
    found = constants_of(CASES[name], variant)
    for field, expected in CASES[name][variant].items():
        value = getattr(found, field)
        if expected is None:
            assert isinstance(value, Infeasible), field
            assert len(value.reason) > 20
        else:
            tolerance = 1e-9 if field.startswith("log_") else 1e-12
            np.testing.assert_allclose(value, expected, rtol=tolerance, atol=0, err_msg=field)


@pytest.mark.parametrize("name", CASES)
def test_theorem_terms(name: str) -> None:
    terms = theory.theorem_terms(constants_of(CASES[name], "paper"), *start_of(CASES[name]))
    expected = CASES[name]["theorem_terms"]["terms"]
    if expected is None:
        assert isinstance(terms, Infeasible)
    else:
        assert isinstance(terms, np.ndarray)
        np.testing.assert_allclose(terms, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", CASES)
def test_rigorous_bound(name: str) -> None:
    bound = theory.rigorous_bound(constants_of(CASES[name], "corrected"), *start_of(CASES[name]))
    expected = CASES[name]["rigorous_bound"]
    if expected is None:
        assert isinstance(bound, Infeasible)
    else:
        assert bound == pytest.approx(expected, rel=1e-12)
    assert not theory.rigorous_bound(constants_of(CASES[name], "paper"), *start_of(CASES[name]))


def test_what_is_infeasible_says_why() -> None:
    found = constants_of(CASES["irregular5_infeasible"], "paper")
    assert not found.kappa6
    assert str(found.kappa6).startswith("infeasible: 1 - rho_tilde_A = -11.2 must be positive")
    written = plain(vars(found))
    assert written["kappa6"] == str(found.kappa6)
    assert json.loads(json.dumps(written, allow_nan=False))["phi"] == found.phi.tolist()


@pytest.mark.parametrize(
    ("m", "log_A", "log_B"),
    [(4, 2.0e-8, 7.8e-11), (10, 6.9e-25, 2.8e-35)],
    ids=["complete4", "complete10"],
)
def test_thresholds_beyond_the_floats(m: int, log_A: float, log_B: float) -> None:
    ones = np.ones(m)
    found = theory.constants(
        Network.draw(graphs.Complete(m)), 1, 1, Data(ones, 0, 0, 0, 0, 1, 1), 0.1
    )
    assert math.exp(found.log_one_minus_r_A) == pytest.approx(log_A, rel=0.05)
    assert math.exp(found.log_one_minus_r_B) == pytest.approx(log_B, rel=0.05)
    almost = theory.constants(
        Network.draw(graphs.Complete(m)), 1, 1 - 2**-53, Data(ones, 0, 0, 0, 0, 1, 1), 0.1
    )
    assert almost.p_hat_ge_r_A == (m == 4)


def test_centralised_step_size() -> None:
    """B18: the claimed 1/(16 √5 max L) is what the bound gives for one client; no client has to wait."""
    L = 3.0
    found = theory.constants(Network.from_adjacency([[0]]), 1, [], Data(L, 0, 0, 0, 0, 1, 1), 1e-3)
    assert found.lr_bound_prop1 == pytest.approx(1 / (16 * math.sqrt(5) * L), rel=1e-12)
    assert isinstance(found.q, float)
    assert isinstance(found.term_const, Infeasible)


positive = st.floats(1e-150, 1e150)
small = st.floats(0, 1e150)
probability = st.floats(1e-300, 1)


@settings(deadline=None, max_examples=150)
@given(
    seed=st.integers(0, 99),
    clients=st.integers(1, 5),
    probabilities=st.tuples(probability, probability),
    data=st.tuples(positive, small, small, small, small),
    batch=st.integers(1, 7),
    run=st.fixed_dictionaries(
        {
            "step_size": st.floats(1e-320, 1e150),
            "variant": st.sampled_from(["paper", "corrected"]),
        }
    ),
)
def test_no_exception_and_no_nan(
    seed: int,
    clients: int,
    probabilities: tuple[float, float],
    data: tuple[float, float, float, float, float],
    batch: int,
    run: dict[str, Any],
) -> None:
    network = (
        Network.draw(graphs.ErdosRenyi(clients, 0.7), seed=seed)
        if clients > 1
        else Network.from_adjacency([[0]])
    )
    p, p_hat = probabilities
    assumed = Data(*data, samples=7, batch=batch)
    found = theory.constants(network, p, p_hat, assumed, **run)
    uneven = 10.0 ** np.random.default_rng(seed).uniform(-40, 0, network.links)
    assert_sound(found)
    assert_sound(theory.constants(network, p, uneven, assumed, **run))


def assert_sound(found: Constants) -> None:
    for field in fields(found):
        value = getattr(found, field.name)
        assert isinstance(value, Infeasible | str) or not np.isnan(value).any(), field.name
    json.dumps(plain(vars(found)), allow_nan=False)
    for condition in theory.conditions(found):
        assert condition.factor >= 0
        assert condition.holds <= (condition.factor <= 1)
    theory.theorem_terms(found, Start(1.0, 1.0, 1.0), 10)
    theory.rigorous_bound(found, Start(1.0, 1.0, 1.0), 10)


def test_conditions_say_by_what_factor() -> None:
    found: Any = constants_of(CASES["star4_p_only"], "paper")
    conditions = {condition.name: condition for condition in theory.conditions(found)}
    assert conditions["step size: eta < Proposition lr"].holds
    step = conditions["step size: eta < Proposition loss"]
    assert not step.holds
    assert step.factor == pytest.approx(found.eta_max / found.lr_bound_prop2)
    clients = next(
        condition for name, condition in conditions.items() if name.startswith("clients")
    )
    assert clients.factor == pytest.approx(max((1 - found.p) / (1 - found.min_p)))
    assert all(
        condition.holds
        for condition in theory.conditions(constants_of(CASES["ring3_no_sporadicity"], "corrected"))
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "printed"}, "variant must be 'paper' or 'corrected', got 'printed'; use "),
        ({"p": [1, 0, 1]}, r"p\[1\] must be in \(0, 1\], got 0.0; "),
        ({"p": [1, 1]}, r"p must be one number or 3, got shape \(2,\); use p=1.0"),
        ({"p_hat": 1.5}, r"p_hat\[0\] must be in \(0, 1\], got 1.5; "),
        ({"L": -1}, r"L\[0\] must be positive and finite, got -1.0; use L=1"),
        ({"L": [1, 1]}, r"L must be one number or 3 \(one per client\), got shape \(2,\); use L=1"),
        ({"batch": 8}, r"batch\[0\] must be from 1 to 7, the client's samples, got 8; use batch=1"),
        ({"gamma3": 1.0}, "gamma3 must be a finite number above 1, got 1.0; use gamma3=2.0"),
        ({"step_size": math.nan}, r"step_size\[0\] must be positive and finite, got nan; use "),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], message: str) -> None:
    assumed: dict[str, Any] = {"L": 1, "samples": 7, "batch": 1}
    assumed |= dict.fromkeys(("sigma0", "sigma1", "delta0", "delta1"), 1.0)
    data = Data(**(assumed | {name: value for name, value in change.items() if name in assumed}))
    others: dict[str, Any] = {"p": 1, "p_hat": 1, "data": data, "step_size": 0.1}
    others |= {name: value for name, value in change.items() if name not in assumed}
    with pytest.raises(InvalidInput, match=message):
        theory.constants(Network.ring(3), **others)
