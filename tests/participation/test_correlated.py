"""Bursts: the same draws however they are asked for; frequencies and correlations against closed forms."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import tomli_w
import torch
from hypothesis import given
from hypothesis import strategies as st

import spodgt
from spodgt import rng
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.network import Network, graphs
from spodgt.participation import PARTICIPATIONS, correlated, delay
from spodgt.participation.samplers import split_into_regions
from spodgt.problems import Quadratic
from spodgt.types import Bools, Floats
from tests.strategies import SEEDS, bursts, networks

CORRELATED = {kind for kind, c in PARTICIPATIONS.items() if c.__module__ == correlated.__name__}
ROUNDS = 40_000
NETWORK = Network.directed_geometric(12, seed=4)
SIGMAS = 5.0


def within(found: float, expected: float, sigma: float) -> None:
    assert abs(found - expected) <= SIGMAS * sigma, f"{found} is not {expected} ± {sigma:.2g}"


def autocovariance(table: Bools, p: Floats | float, lag: int) -> float:
    """The mean over columns of E (v_k - p)(v_{k+lag} - p)."""
    v = table - np.asarray(p, float)
    return float((v[: len(v) - lag] * v[lag:]).mean())


def long_variance(p: float, factor: float) -> float:
    """Rounds times the variance of the mean of a chain with this autocorrelation per round."""
    return p * (1 - p) * (1 + factor) / (1 - factor)


# --- laws ----------------------------------------------------------------------------------------------
@given(st.data(), SEEDS)
def test_rounds_are_the_same_however_they_are_asked_for(data: st.DataObject, seed: int) -> None:
    network = data.draw(networks())
    recipe = data.draw(bursts(network))
    whole, parts = recipe.draw(network, seed), recipe.draw(network, seed)
    computes, links = whole.computes(range(60)), whole.links(range(60)).pull
    for first, last in data.draw(
        st.lists(st.tuples(st.integers(0, 59), st.integers(0, 60)), max_size=6)
    ):
        rounds = range(first, max(first, last))
        np.testing.assert_array_equal(parts.computes(rounds), computes[rounds.start : rounds.stop])
        np.testing.assert_array_equal(parts.links(rounds).pull, links[rounds.start : rounds.stop])
    assert ((whole.p > 0) & (whole.p <= 1)).all()
    assert ((whole.p_hat > 0) & (whole.p_hat <= 1)).all()
    assert whole.idle_clients or computes.all()
    assert whole.idle_links or links.all()


@given(st.floats(1, 40), st.floats(1, 40), SEEDS, st.integers(0, 300))
def test_a_chain_is_the_plain_recursion(up: float, down: float, seed: int, first: int) -> None:
    key, stay, come = rng.key(seed, "chain"), 1 - 1 / up, 1 / down
    state = rng.uniform(key, 0, 0) < up / (up + down)
    for k in range(1, first + 1):
        state = rng.uniform(key, k, 0) < (stay if state else come)
    given = (np.array([value]) for value in (up / (up + down), stay, come))
    found = rng.markov(key, range(first, first + 1), *given)
    assert found.shape == (1, 1)
    assert found[0, 0] == state


@given(networks(least=2), SEEDS)
def test_a_burst_of_one_round_is_independent(network: Network, seed: int) -> None:
    draw = spodgt.Bursts(spodgt.Bernoulli(0.3, 0.6), length=1.0).draw(network, seed)
    chances = np.full(network.clients, 0.3)
    expected = rng.bernoulli(rng.key(seed, "client chains"), range(50), chances)
    np.testing.assert_array_equal(draw.computes(range(50)), expected)


def test_a_region_fails_as_one() -> None:
    groups = np.arange(NETWORK.clients) % 3
    draw = spodgt.Outages(8, 4, groups=groups.tolist()).draw(NETWORK, 1)
    computes, links = draw.computes(range(500)), draw.links(range(500)).pull
    for group in range(3):
        assert (computes[:, groups == group] == computes[:, [group]]).all()
    up = computes[:, :3]
    into, out = groups[NETWORK.receivers], groups[NETWORK.senders]
    np.testing.assert_array_equal(links, up[:, into] & up[:, out])


def test_regions_of_positions_are_near_and_equal() -> None:
    where = np.random.default_rng(0).random((100, 2))
    region = split_into_regions(where, 4)
    assert np.bincount(region).tolist() == [25] * 4
    spread = np.mean([where[region == each].std(0) for each in range(4)])
    assert spread < 0.6 * where.std(0).mean()
    assert sorted(np.bincount(split_into_regions(where, 7)).tolist()) == [14] * 5 + [15] * 2
    assert np.bincount(split_into_regions(where[:3], 3)).tolist() == [1, 1, 1]


# --- numbers: every frequency and correlation against its closed form -----------------------------------
@pytest.mark.parametrize(
    ("on", "off"), [(20.0, 5.0), (3.0, 7.5), (1.0, 1.0), (1.2, 1.5), (1.0, 4.0)]
)
def test_markov(on: float, off: float) -> None:
    draw = spodgt.Markov(on, off, links_on=off, links_off=on).draw(NETWORK, 7)
    factor = 1 - 1 / on - 1 / off
    for table, p, each in (
        (draw.computes(range(ROUNDS)), on / (on + off), draw.p),
        (draw.links(range(ROUNDS)).pull, off / (on + off), draw.p_hat),
    ):
        np.testing.assert_allclose(each, p, rtol=1e-12)
        deviation = (long_variance(p, factor) / table.size) ** 0.5 if factor > -1 else 1 / ROUNDS
        within(table.mean(), p, deviation)
        memory = (1 + abs(factor)) / (1 - abs(factor)) if factor > -1 else 1.0
        for lag in (1, 2, 5, 12):
            within(
                autocovariance(table, p, lag),
                p * (1 - p) * factor**lag,
                (memory / table.size) ** 0.5,
            )


def test_times_up_and_down_are_geometric() -> None:
    on, off = 6.0, 3.0
    v = spodgt.Markov(on, off).draw(NETWORK, 3).computes(range(ROUNDS))[:, 0]
    turns = np.flatnonzero(v[1:] != v[:-1]) + 1
    lengths, up = np.diff(turns), v[turns[:-1]]
    for which, mean in ((up, on), (~up, off)):
        own = lengths[which]
        within(own.mean(), mean, (mean * (mean - 1) / len(own)) ** 0.5)
        for length in (1, 2, 5):
            chance = (1 - 1 / mean) ** (length - 1) / mean
            within((own == length).mean(), chance, (chance / len(own)) ** 0.5)


def test_bursts_keep_frequencies() -> None:
    base = spodgt.Beta(floor=0.05).draw(NETWORK, 5)
    draw = spodgt.Bursts(spodgt.Beta(floor=0.05), length=4.0).draw(NETWORK, 5)
    np.testing.assert_array_equal(draw.p, base.p)
    np.testing.assert_array_equal(draw.p_hat, base.p_hat)
    table = draw.computes(range(ROUNDS))
    for i, p in enumerate(draw.p):
        within(table[:, i].mean(), p, (long_variance(p, 0.75) / ROUNDS) ** 0.5)
    variance = float((draw.p * (1 - draw.p)).mean())
    for lag in (1, 3, 9):
        within(autocovariance(table, draw.p, lag), variance * 0.75**lag, (7 / table.size) ** 0.5)


def test_gilbert_elliott() -> None:
    good, bad, high, low = 12.0, 4.0, 0.9, 0.2
    draw = spodgt.GilbertElliott(good, bad, high, low, p=0.4).draw(NETWORK, 2)
    pi, factor = good / (good + bad), 1 - 1 / good - 1 / bad
    p_hat = pi * high + (1 - pi) * low
    np.testing.assert_allclose(draw.p_hat, p_hat, rtol=1e-12)
    np.testing.assert_array_equal(draw.p, 0.4)
    table, clients = draw.links(range(ROUNDS)).pull, draw.computes(range(ROUNDS))
    within(clients.mean(), 0.4, (0.24 / clients.size) ** 0.5)
    within(autocovariance(clients, 0.4, 1), 0.0, (0.24**2 / clients.size) ** 0.5)
    within(table.mean(), p_hat, (long_variance(p_hat, factor) / table.size) ** 0.5)
    for lag in (1, 2, 6):
        expected = (high - low) ** 2 * pi * (1 - pi) * factor**lag
        within(
            autocovariance(table, p_hat, lag),
            expected,
            (long_variance(0.5, factor) / table.size) ** 0.5,
        )


def test_day_and_night() -> None:
    recipe = spodgt.DayNight(7, 13, p_day=0.8, p_night=0.1, p_hat_day=0.9, p_hat_night=0.3)
    draw, cycle = recipe.draw(NETWORK, 6), 20
    rounds = range(cycle * 2000)
    computes, links = draw.computes(rounds), draw.links(rounds).pull
    np.testing.assert_allclose(draw.p, (7 * 0.8 + 13 * 0.1) / 20, rtol=1e-12)
    by_hour = computes.reshape(2000, cycle, -1).mean(
        0
    )  # chances of every hour: 0.8 by day and 0.1 by night
    day = by_hour > 0.45
    assert (day.sum(0) == 7).all()
    assert ((by_hour[1:] > 0.45) != (by_hour[:-1] > 0.45)).sum(0).max() <= 2, "one day in a cycle"
    assert np.abs(by_hour - np.where(day, 0.8, 0.1)).max() < SIGMAS * (0.25 / 2000) ** 0.5
    both = day[:, NETWORK.receivers] & day[:, NETWORK.senders]
    np.testing.assert_allclose(draw.p_hat, 0.3 + 0.6 * both.mean(0), rtol=1e-12)
    hourly = links.reshape(2000, cycle, -1).mean(0)
    assert np.abs(hourly - np.where(both, 0.9, 0.3)).max() < SIGMAS * (0.25 / 2000) ** 0.5
    for lag in (1, 6, 20, 33):  # days lag rounds apart overlap in 7 - lag or lag - 13 hours
        shift = lag % cycle
        overlap = (max(0, 7 - shift) + max(0, 7 - (cycle - shift))) / cycle
        expected = 0.7**2 * (overlap - 0.35**2)
        within(autocovariance(computes, draw.p, lag), expected, (1 / computes.size) ** 0.5)


def test_phases_can_be_given_or_follow_the_sun() -> None:
    given = spodgt.DayNight(5, 5, p_night=0.0, phase=[i / 12 for i in range(12)], p_hat_night=0.1)
    computes = given.draw(NETWORK, 0).computes(range(10))
    for i in range(12):
        expected = (np.arange(10) + int(i / 12 * 10)) % 10 < 5
        np.testing.assert_array_equal(computes[:, i], expected)
    sun = spodgt.DayNight(5, 5, p_night=0.0, phase="east-west").draw(NETWORK, 0).computes(range(10))
    assert NETWORK.positions is not None
    order = np.argsort(NETWORK.positions[:, 0])
    dawn = (-np.argmax(sun & ~np.roll(sun, 1, 0), 0) % 10)[order]
    assert (np.diff(dawn) >= 0).all()


def test_outages() -> None:
    up, down, groups = 10.0, 5.0, [i % 3 for i in range(12)]
    draw = spodgt.Outages(up, down, groups=groups, p=0.5, p_hat=0.8).draw(NETWORK, 9)
    pi, factor = up / (up + down), 1 - 1 / up - 1 / down
    inside = np.array(groups)[NETWORK.receivers] == np.array(groups)[NETWORK.senders]
    np.testing.assert_allclose(draw.p, 0.5 * pi, rtol=1e-12)
    np.testing.assert_allclose(draw.p_hat, 0.8 * np.where(inside, pi, pi**2), rtol=1e-12)
    computes, links = draw.computes(range(ROUNDS)), draw.links(range(ROUNDS)).pull
    independent = ROUNDS * 3 * (1 - factor) / (1 + factor)  # regions and rounds that count
    within(computes.mean(), 0.5 * pi, (0.25 / independent) ** 0.5)
    for which in (inside, ~inside):
        within(links[:, which].mean(), draw.p_hat[which].mean(), (0.25 / independent) ** 0.5)
    v = computes - draw.p
    for one, other, expected in ((0, 3, 0.25 * pi * (1 - pi)), (0, 1, 0.0)):
        for lag in (0, 1, 4):
            found = float((v[: ROUNDS - lag, one] * v[lag:, other]).mean())
            within(found, expected * factor**lag, (3 * 0.25**2 / independent) ** 0.5)


def test_together_multiplies() -> None:
    recipe = spodgt.Intersection(
        [spodgt.Markov(4, 2), spodgt.GilbertElliott(6, 3, p=0.7), spodgt.Bernoulli(0.9, 0.8)]
    )
    draw = recipe.draw(NETWORK, 0)
    np.testing.assert_allclose(draw.p, 4 / 6 * 0.7 * 0.9)
    np.testing.assert_allclose(draw.p_hat, (6 + 0.3) / 9 * 0.8)
    computes, links = draw.computes(range(ROUNDS)), draw.links(range(ROUNDS)).pull
    within(computes.mean(), draw.p[0], (1.5 / computes.size) ** 0.5)
    within(links.mean(), draw.p_hat[0], (1.5 / links.size) ** 0.5)


STATIONARY = (  # every kind, with p = 0.75
    spodgt.Markov(30, 10, 5, 45),
    spodgt.Bursts(spodgt.Bernoulli(0.75, 0.1), 50),
    spodgt.GilbertElliott(3, 27, 1.0, 0.0, p=0.75),
    spodgt.DayNight(75, 25, 1.0, 0.0),
    spodgt.Outages(30, 10, groups=[*range(12)]),
    spodgt.Intersection([spodgt.Markov(30, 10), spodgt.GilbertElliott(3, 27, 1.0, 0.0)]),
)


def test_every_correlated_kind_is_tested_in_single_rounds() -> None:
    assert {recipe.name for recipe in STATIONARY} == CORRELATED


@pytest.mark.parametrize("recipe", STATIONARY, ids=lambda recipe: recipe.name)
def test_round_0_and_every_other_is_like_all(recipe: Any) -> None:
    """No burn-in: over seeds, a client computes in rounds 0, 1 and 77 as often as ever."""
    draws = [recipe.draw(NETWORK, seed) for seed in range(300)]
    p_hat = np.mean([draw.p_hat.mean() for draw in draws])  # days: of the phases drawn
    for k in (0, 1, 77):
        computes = np.array([draw.computes(range(k, k + 1))[0] for draw in draws])
        links = np.array([draw.links(range(k, k + 1)).pull[0] for draw in draws])
        within(computes.mean(), 0.75, (0.75 * 0.25 / computes.size) ** 0.5)
        within(links.mean(), p_hat, (p_hat * (1 - p_hat) / len(draws)) ** 0.5 / 2)


# --- what the rest of the house makes of them -----------------------------------------------------------
def test_the_clock_and_importance_weights_use_the_stationary_chances() -> None:
    draw = spodgt.Markov(30, 10, links_on=2, links_off=8).draw(NETWORK, 0)
    clock = delay.costs(NETWORK, draw)
    np.testing.assert_allclose(clock.clients, 1 / (12 * 0.75))
    degrees = 1 / NETWORK.in_degree[NETWORK.receivers] + 1 / NETWORK.out_degree[NETWORK.senders]
    np.testing.assert_allclose(clock.links, degrees / (12 * 0.2))


def test_memory_removes_the_bias_of_bursts() -> None:
    """Some clients are away often and for long: memory still finds the optimum, dropped gradients do not."""
    problem = Quadratic.random(6, 3, seed=1)
    participation = spodgt.Markov(
        on=[20, 20, 20, 4, 4, 4], off=[2, 2, 2, 16, 16, 16], links_on=8, links_off=8
    )
    methods = [spodgt.method(name, step_size=0.04) for name in ("spod-gt", "spod-gt-memory")]
    options: dict[str, Any] = {
        "rounds": 6_000,
        "seeds": [0],
        "dtype": torch.float64,
        "every": 6_000,
    }
    result = spodgt.compare(
        methods, problem, Network.draw(graphs.Complete(6)), participation, **options
    )
    last = result.frame.groupby("method")["gradient_norm"].last()
    assert last["spod-gt-memory"] < 1e-9
    assert last["spod-gt"] > 1e-2


REQUIRED: dict[str, dict[str, Any]] = {  # keys of a config without a default
    "together": {
        "of": [
            {"kind": "markov", "on": 3.0, "off": 2.0},
            {"kind": "outages", "groups": [0, 0, 1, 1, 2]},
        ]
    },
}


@pytest.mark.parametrize("kind", sorted(set(PARTICIPATIONS) - {"trace"}))  # traces: test_traces.py
def test_every_kind_runs_from_a_file_and_resumes(kind: str, tmp_path: Path) -> None:
    table = {"kind": kind} | REQUIRED.get(kind, {})
    tables: dict[str, Any] = {
        "run": {"methods": ["spod-gt", "spod-gt-memory"], "seeds": 2, "rounds": 30, "every": 10},
        "network": {"kind": "directed-geometric", "clients": 5},
        "participation": table,
        "problem": {"kind": "quadratic", "parameters": 3},
    }
    (tmp_path / "e.toml").write_text(tomli_w.dumps(tables))
    experiment = Experiment.read(tmp_path / "e.toml")
    whole = spodgt.run(experiment)
    spodgt.run(experiment.override({"run.rounds": 20}), out=tmp_path / "out")
    rest = spodgt.run(experiment, out=tmp_path / "out", resume=True)
    pd.testing.assert_frame_equal(rest.frame, whole.frame, check_exact=True)


# --- edges ----------------------------------------------------------------------------------------------
BAD: list[tuple[Callable[[], object], str]] = [
    (
        lambda: spodgt.Markov(on=0.5),
        "on must be numbers of rounds of at least 1, got 0.5; use on=20.0.",
    ),
    (
        lambda: spodgt.Markov(off=float("nan")),
        "off must be numbers of rounds of at least 1, got nan",
    ),
    (lambda: spodgt.Markov(off=True), "off must be numbers of rounds of at least 1, got True"),
    (
        lambda: spodgt.Markov(links_on=3),
        "links_off=None lacks the number beside the other one; use links_off=20.0.",
    ),
    (
        lambda: spodgt.Markov(on=[2.0, 3.0]).draw(NETWORK, 0),
        "on must be one number or 12 (one per client), got shape (2,); use on=20.0.",
    ),
    (
        lambda: spodgt.GilbertElliott(p_bad=1.5),
        "p_bad must be numbers in [0, 1], got 1.5; use p_bad=0.5.",
    ),
    (
        lambda: spodgt.GilbertElliott(p_good=0, p_bad=0).draw(NETWORK, 0),
        "p_hat must be in (0, 1], but link",
    ),
    (
        lambda: spodgt.DayNight(day=0),
        "day must be a whole number of at least 1, got 0; use day=50.",
    ),
    (lambda: spodgt.DayNight(p_day=2), "p_day must be in [0, 1], got 2"),
    (
        lambda: spodgt.DayNight(phase="noon"),
        "phase must be 'random' or 'east-west', or numbers in [0, 1)",
    ),
    (
        lambda: spodgt.DayNight(phase=[0.5]).draw(NETWORK, 0),
        "phase must be one number or 12 (one per client)",
    ),
    (
        lambda: spodgt.Outages().draw(Network.ring(5), 0),
        "regions needs a network with positions of clients; use groups=[0, 0, 1].",
    ),
    (
        lambda: spodgt.Outages(groups=[0, 1]).draw(NETWORK, 0),
        "groups must be 12 regions, one per client, got 2",
    ),
    (
        lambda: spodgt.Outages(groups=[]),
        "groups must be a list of names or numbers, one per client, got []",
    ),
    (
        lambda: spodgt.Bursts(spodgt.OneLink()).draw(NETWORK, 0),
        "bursts are of independent draws, got one-link",
    ),
    (lambda: spodgt.Bursts(0.5), "participation must be one of always"),  # type: ignore[arg-type]
    (
        lambda: spodgt.Intersection([spodgt.Always()]),
        "of must be a list of at least two participations",
    ),
    (
        lambda: spodgt.Intersection([spodgt.DayNight(), spodgt.DayNight(3, 4)]).draw(NETWORK, 0),
        "together takes at most one participation with fixed times, got day-night and day-night",
    ),
]


@pytest.mark.parametrize("kind", sorted(set(PARTICIPATIONS) - {"trace"}))
def test_every_number_of_a_participation_is_checked(kind: str) -> None:
    """A field whose default is a number refuses -1 and names itself."""
    recipe: Any = PARTICIPATIONS[kind]
    for field in dataclasses.fields(recipe):
        if isinstance(field.default, int | float) and not isinstance(field.default, bool):
            with pytest.raises(InvalidInput, match=rf"^{field.name} must be .*-1"):
                recipe(**{field.name: -1}).draw(NETWORK, 0)


@pytest.mark.parametrize(("make", "message"), BAD, ids=[message[:30] for _, message in BAD])
def test_bad_input_is_one_sentence(make: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        make()


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({"kind": "markov", "onn": 3}, "onn=3 is not a key of participation; did you mean 'on'?"),
        (
            {"kind": "markov", "on": 0},
            "participation.on must be numbers of rounds of at least 1, got 0",
        ),
        (
            {"kind": "bursts", "of": {"kind": "betta"}},
            "participation.of.kind='betta' is not known; did you mean 'beta'?",
        ),
        (
            {"kind": "bursts", "of": {"kind": "beta", "alpha": -1}},
            "participation.of.alpha must be a number above 0, got -1.0; use alpha=0.5.",
        ),
    ],
)
def test_bad_tables_are_one_sentence(table: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(message)):
        Experiment.parse({"participation": table})


def test_regions_may_be_numbers_of_numpy() -> None:
    network = Network.ring(3)
    plain = spodgt.Outages(groups=[0, 1, 1]).draw(network, 0)
    for groups in ([np.int64(0), np.int64(1), np.int64(1)], np.array([0, 1, 1])):
        drawn = spodgt.Outages(groups=groups).draw(network, 0)  # type: ignore[arg-type]
        assert (drawn.computes(range(50)) == plain.computes(range(50))).all()
    with pytest.raises(InvalidInput, match="groups must be a list of names or numbers"):
        spodgt.Outages(groups=[0.5, 1, 1])  # type: ignore[list-item]
