"""`train` and `compare`: what comes back, what is refused, and what happens to a run that diverges."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import spodgt
from spodgt.errors import DivergenceWarning, InvalidInput
from spodgt.problems import Quadratic
from spodgt.record import statistics
from spodgt.record.metrics import METRICS
from spodgt.training import Progress

PROBLEM = Quadratic.random(4, 3, seed=1)
NETWORK = spodgt.Network.directed_geometric(4, 0.5, 1.0)
SOME = spodgt.Bernoulli(0.6, 0.6)


def run(*names: Any, **options: Any) -> spodgt.Result:
    settings: dict[str, Any] = {"rounds": 20, "dtype": torch.float64} | options
    return spodgt.compare(
        names or ["spod-gt"], PROBLEM, NETWORK, settings.pop("participation", SOME), **settings
    )


def test_the_frame_is_tidy() -> None:
    result = run("spod-gt", "k-gt", seeds=[2, 0], every=5)
    frame = result.frame
    assert list(frame.columns[:4]) == ["method", "seed", "round", "delay"]
    assert set(frame.columns[4:]) <= {"bytes", *METRICS}, "every column is explained"
    assert frame["method"].unique().tolist() == ["spod-gt", "k-gt"], "in the order given"
    assert not frame.duplicated(["method", "seed", "round"]).any()
    for _, rows in frame.groupby(["method", "seed"]):
        assert rows["round"].tolist() == [0, 5, 10, 15, 20]
        assert rows["delay"].is_monotonic_increasing
    assert frame["distance"].notna().all()
    assert frame.loc[frame["method"] == "k-gt", "tracking"].isna().all(), "k-gt has no tracker y"
    assert result.methods == ["spod-gt", "k-gt"]
    assert result.complete
    assert len(result.final()) == 4
    summary = result.summary()
    assert summary["method"].tolist() == ["spod-gt", "k-gt"]
    assert {"loss", "loss_std", "delay", "rounds", "seeds"} <= set(summary.columns)
    assert summary["seeds"].tolist() == [2, 2]


def test_metrics_are_what_they_say() -> None:
    result = run(keep_states=True, every=4)
    x, y = result.states[0].x, result.states[0].y
    for row in result.frame.to_dict("records"):
        models, average = x[row["round"]], x[row["round"]].mean(0)
        losses = [
            (0.5 * torch.einsum("ij,ijk,ik->i", z - PROBLEM.c, PROBLEM.H, z - PROBLEM.c)).mean()
            for z in models
        ]
        assert row["loss"] == pytest.approx(float(torch.stack(losses).mean()))
        assert row["consensus_x"] == pytest.approx(
            float(((models - average) ** 2).sum(1).mean().sqrt())
        )
        spread = y[row["round"]] - y[row["round"]].mean(0)
        assert row["consensus_y"] == pytest.approx(float((spread**2).sum(1).mean().sqrt()))
        gradient = torch.einsum("ijk,ik->ij", PROBLEM.H, average - PROBLEM.c).mean(0)
        assert row["gradient_norm"] == pytest.approx(float(gradient.norm()))
        away = models - PROBLEM.optimum()
        assert row["distance"] == pytest.approx(float((away**2).sum(1).mean().sqrt()))


def test_looks_are_spread_over_rounds_or_delay() -> None:
    assert len(run(rounds=100, evaluations=10).frame) == 11
    assert run(rounds=7, every=3).frame["round"].tolist() == [0, 3, 6, 7], (
        "the end is always looked at"
    )
    frame = run(rounds=None, delay=200, evaluations=10).frame
    grid = np.arange(11) * 20.0
    full = run(rounds=None, delay=200, every=1).frame
    for mark in grid:  # at every mark, the last model that is available by then was looked at
        last = full[full["delay"] <= mark]["round"].max()
        assert last in frame["round"].to_numpy()


@pytest.mark.parametrize("seeds", [[3], range(3, 4), np.arange(3, 4), (np.uint8(3),)])
def test_seeds_in_every_form(seeds: Any) -> None:
    frame = run(seeds=seeds).frame
    assert set(frame["seed"]) == {3}
    assert frame.equals(run(seeds=[3]).frame)


@pytest.mark.parametrize("count", [3, np.int64(3)])
def test_an_integer_is_the_number_of_seeds(count: Any) -> None:
    sentence = (
        r"^seeds=3 now means three seeds 0, 1, 2; it used to mean seed number 3; "
        r"write seeds=\[3\] for that one, seeds=range\(3\) for no warning\.$"
    )
    with pytest.warns(FutureWarning, match=sentence) as caught:
        result = run(seeds=count)
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)]
    assert result.frame.equals(run(seeds=range(3)).frame)


def test_an_integer_is_the_number_of_seeds_in_train_sweep_and_tune(tmp_path: Path) -> None:
    options: dict[str, Any] = {"rounds": 4, "seeds": 2}
    world = (PROBLEM, NETWORK, SOME)
    search = spodgt.Search(candidates=2, seeds=1)
    sentence = r"^seeds=2 now means two seeds 0, 1; it used to mean seed number 2;"
    with pytest.warns(FutureWarning, match=sentence) as of_train:
        trained = spodgt.train("spod-gt", *world, **options)
    with pytest.warns(FutureWarning, match=sentence) as of_sweep:
        swept = spodgt.sweep(
            ["spod-gt"], *world, grid={"step_size": [0.1]}, out=tmp_path, **options
        )
    with pytest.warns(FutureWarning, match=sentence) as of_tune:
        tuned = spodgt.tune(["spod-gt"], *world, search=search, **options)
    caught = [*of_train, *of_sweep, *of_tune]
    assert [Path(warning.filename) for warning in caught] == [Path(__file__)] * 3
    assert set(trained.frame["seed"]) == set(swept.results["seed"]) == {0, 1}
    assert tuned.experiment.run.seed_list == [0, 1]


def test_seed_zero_is_the_default_and_does_not_warn() -> None:
    assert set(run().frame["seed"]) == {0}


@pytest.mark.parametrize("count", [True, False, 0, -3])
def test_a_number_of_seeds_below_one_is_refused(count: int) -> None:
    with pytest.raises(
        InvalidInput, match=rf"^seeds must be how many \(at least 1\).*got {count};"
    ):
        run(seeds=count)


def test_numbers_of_numpy_are_numbers() -> None:
    assert run(rounds=np.int64(20)).frame.equals(run().frame)
    assert run(rounds=None, delay=np.float32(20)).frame["delay"].max() <= 20


def test_x0_for_all_or_for_each() -> None:
    one, each = (
        run(x0=[1.0, 2, 3], keep_states=True),
        run(x0=np.tile([1, 2, 3], (4, 1)), keep_states=True),
    )
    torch.testing.assert_close(one.states[0].x, each.states[0].x)
    digits = [0.1, 0.2, 0.3]  # a list keeps its digits in float64
    assert run(x0=digits, keep_states=True).states[0].x[0, 0].tolist() == digits


def test_the_start_is_not_changed_by_the_run() -> None:
    x0 = torch.ones(4, 3, dtype=torch.float64)
    run(x0=x0)
    assert (x0 == 1).all()


def test_kept_states_are_all_different() -> None:
    """A compiled step works in place: what is kept must be a copy."""
    for name in ("spod-gt", "spod-gt-memory", "k-gt"):
        x = run(name, keep_states=True, participation=spodgt.Always()).states[0].x
        assert len(x) == 21
        assert all(not torch.equal(a, b) for a, b in itertools.pairwise(x))


def test_float32_is_the_default_and_near_float64() -> None:
    single, double = run(dtype=torch.float32, keep_states=True), run(keep_states=True)
    assert single.states[0].x.dtype == torch.float32
    torch.testing.assert_close(
        single.states[0].x.double(), double.states[0].x, rtol=1e-4, atol=1e-5
    )


def test_one_method_needs_no_list() -> None:
    assert spodgt.compare("spod-gt", PROBLEM, NETWORK, rounds=3).methods == ["spod-gt"]
    assert spodgt.compare(spodgt.KGT(), PROBLEM, NETWORK, rounds=3).methods == ["k-gt"]  # type: ignore[arg-type]


def test_two_of_a_name_are_told_apart_by_what_differs() -> None:
    result = run(spodgt.SpodGT(step_size=0.1), spodgt.SpodGT(step_size=0.2), "k-gt")
    assert result.methods == ["spod-gt step_size=0.1", "spod-gt step_size=0.2", "k-gt"]


def test_step_size_per_client_and_recipes_of_weights() -> None:
    steps = [0.01, 0.02, 0.03, 0.04]
    method, ring = spodgt.method("spod-gt", step_size=steps), spodgt.graphs.Ring(4)
    result = spodgt.compare([method], PROBLEM, ring, SOME, rounds=20, weights="random")
    assert np.isfinite(result.frame["loss"]).all()
    assert result.draws[0].network.a.std() > 0


def test_a_run_is_a_pure_function_of_its_arguments() -> None:
    torch.manual_seed(0)
    first = run("spod-gt", "k-gt", seeds=range(3))
    torch.manual_seed(1)
    np.random.seed(7)  # noqa: NPY002
    second = run("spod-gt", "k-gt", seeds=range(3))
    assert first.frame.equals(second.frame)
    assert first.participation.equals(second.participation)


@pytest.mark.filterwarnings("ignore::spodgt.errors.DivergenceWarning")
def test_a_diverging_method_stops_alone() -> None:
    wild = spodgt.method("spod-gt", step_size=1e6)
    result = run(wild, "spod-gt-memory", seeds=[0, 1], rounds=400, dtype=torch.float32)
    assert {stop.method for stop in result.diverged} == {"spod-gt"}
    assert {stop.seed for stop in result.diverged} == {0, 1}
    for stop in result.diverged:
        assert 0 <= stop.finite_at < stop.round < 400
        assert str(stop) == (
            f"spod-gt (seed {stop.seed}) diverged by round {stop.round}, finite at round {stop.finite_at}, "
            "with step_size=1000000.0; use a smaller step_size."
        )
    assert result.complete
    tame = result.frame[result.frame["method"] == "spod-gt-memory"]
    assert tame["round"].max() == 400
    alone = run("spod-gt-memory", seeds=[0, 1], rounds=400, dtype=torch.float32).frame
    assert tame.reset_index(drop=True)[alone.columns].equals(alone)
    assert (result.frame.loc[result.frame["method"] == "spod-gt", "round"] < 400).all()


def test_one_run_of_a_batch_diverges_and_the_others_go_on(tmp_path: Path) -> None:
    """Seed by seed: only the client of one seed has a step that is too long; the others do not hide it."""

    class Steep(Quadratic):
        def draw(self, seed: int) -> Steep:
            return Steep(self.H * (1e6 if seed == 1 else 1), self.c)

    problem = Steep(PROBLEM.H, PROBLEM.c)
    with pytest.warns(DivergenceWarning, match=r"spod-gt \(seed 1\) diverged by round"):
        result = spodgt.train("spod-gt", problem, NETWORK, SOME, rounds=300, seeds=[0, 1, 2])
    assert [stop.seed for stop in result.diverged] == [1]
    last = result.final().set_index("seed")
    assert last["diverged"].tolist() == [False, True, False]
    assert last["loss"].isna().tolist() == [False, True, False], (
        "the last finite model is not what it came to"
    )
    assert result.summary()["loss"].isna().all(), "a mean of the others would hide it"
    assert result.summary()["diverged"].tolist() == [1]
    ends = result.final().set_index("seed")["round"]
    assert ends[0] == ends[2] == 300
    assert ends[1] < 300
    alone = spodgt.train("spod-gt", problem, NETWORK, SOME, rounds=300, seeds=[2]).frame
    kept = result.frame[result.frame["seed"] == 2].reset_index(drop=True)
    np.testing.assert_allclose(kept["loss"], alone["loss"], rtol=1e-5)
    result.plot(tmp_path / "loss.png", "loss")
    _, band = statistics.lines(result.frame, "loss", "round")["spod-gt"]
    assert np.isnan(band.mean[-1])
    assert np.isfinite(band.mean[0])


def test_a_trace_ends_the_run() -> None:
    trace = spodgt.Trace(np.ones((9, 4)), np.ones((8, NETWORK.links)))
    assert run(rounds=None, delay=1e9, participation=trace).frame["round"].max() == 8
    assert run(rounds=5, participation=trace).frame["round"].max() == 5
    assert run("ab-push-pull", rounds=20, participation=trace).frame["round"].max() == 20, (
        "it needs no trace"
    )


def test_progress_is_told() -> None:
    seen: list[Progress] = []
    run("spod-gt", "k-gt", rounds=30, progress=seen.append)
    assert [(g.method, g.number, g.total, g.k, g.fraction) for g in seen if g.fraction == 1] == [
        ("spod-gt", 1, 2, 30, 1.0),
        ("k-gt", 2, 2, 30, 1.0),
    ]
    assert all(0 <= now.fraction <= 1 for now in seen)


def test_a_singular_quadratic_has_no_distance_but_trains() -> None:
    flat = Quadratic(torch.zeros(4, 2, 2), torch.zeros(4, 2))
    result = spodgt.train("spod-gt", flat, NETWORK, rounds=3)
    assert result.frame["distance"].isna().all()


def test_plots(tmp_path: Path) -> None:
    result = run("spod-gt", "k-gt", seeds=range(3))
    for suffix in (".png", ".svg", ".pdf"):
        assert result.plot(tmp_path / f"loss{suffix}", "loss").stat().st_size > 1000
    assert result.plot(tmp_path / "deep" / "rounds.png", "distance", "round").exists()
    assert result.plot_network(tmp_path / "network.png").exists()
    assert not list(tmp_path.rglob(".*")), "nothing half-drawn stays"


def test_plot_of_a_run_that_was_stopped_at_once(tmp_path: Path) -> None:
    result = run(rounds=3)
    result.frame = result.frame[result.frame["round"] == 0]
    result.plot(tmp_path / "loss.png", "loss")
    result.frame = result.frame.assign(loss=np.inf)
    result.plot(tmp_path / "loss.png", "loss")


def test_many_curves_have_different_looks() -> None:
    from spodgt.figures import line_styles

    assert (
        len(
            set(
                line_styles(
                    [f"method {n}" for n in range(20)] + [f"m{n}" for n in range(20)]
                ).values()
            )
        )
        == 40
    )


def test_a_large_network_is_drawn_quickly(tmp_path: Path) -> None:
    from spodgt import figures

    large = spodgt.Network.draw(spodgt.graphs.KRegular(5000, 20))
    figure = figures.draw_network(large, np.full(5000, 0.5), np.full(large.links, 0.5))
    assert "(20,000 drawn)" in figure.axes[0].get_title()
    figures.save(figure, tmp_path / "large.png")


def test_empty_result_has_its_columns() -> None:
    result = run(rounds=1)
    empty = spodgt.Result(
        result.frame.iloc[:0], result.participation.iloc[:0], result.networks.iloc[:0], {}, {}
    )
    assert isinstance(empty.summary(), pd.DataFrame)
    assert len(empty.summary()) == 0


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"out": 5}, "out must be the path of a folder, got 5; use out='runs/mine'."),
        ({"out": "\0"}, "out must be the path of a folder, got '\\x00'; use out='runs/mine'."),
        ({"callbacks": 5}, "callbacks must be a list of functions, got 5; use callbacks=[print]."),
        (
            {"callbacks": [5]},
            "callbacks must be a list of functions, got [5]; use callbacks=[print].",
        ),
        (
            {"problem": spodgt.Quadratic},
            "problem must be a spodgt.Learning or spodgt.Quadratic, got the class Quadratic itself; "
            "use spodgt.problems.fashion_mnist_svm().",
        ),
    ],
    ids=["number", "zero byte", "no list", "no function", "class"],
)
def test_bad_arguments_are_one_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        spodgt.train(
            **{
                "method": "spod-gt",
                "problem": PROBLEM,
                "network": NETWORK,
                "rounds": 1,
                **options,
            }
        )
    assert str(caught.value) == sentence


def test_what_requires_gradients_is_taken_as_numbers() -> None:
    step, x0 = (
        torch.full(shape, 0.1, requires_grad=True) for shape in ((4, 1), (PROBLEM.parameters,))
    )
    ours = spodgt.train(spodgt.method("spod-gt", step_size=step), PROBLEM, NETWORK, rounds=3, x0=x0)
    theirs = spodgt.train(
        spodgt.method("spod-gt", step_size=[0.1] * 4), PROBLEM, NETWORK, rounds=3, x0=x0.detach()
    )
    np.testing.assert_allclose(ours.frame["loss"], theirs.frame["loss"], rtol=1e-6)


def test_a_picture_needs_a_column_of_numbers_and_a_path(tmp_path: Path) -> None:
    result = run(rounds=1)
    with pytest.raises(InvalidInput, match="metric='method' is not a column of the result"):
        result.plot(tmp_path / "x.png", "method")
    with pytest.raises(InvalidInput, match="picture '5' must end in"):
        result.plot(5)  # type: ignore[call-overload]


def test_a_folder_no_file_system_takes_is_one_sentence() -> None:
    with pytest.raises(  # "used" up to Python 3.13, whose `Path.exists` raises
        InvalidInput, match=r"cannot be (used|written): File name too long; choose another folder\."
    ):
        run(rounds=1, out="x" * 300)
