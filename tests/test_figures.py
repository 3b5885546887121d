"""Figures: a method keeps its colour, axes fit their values, and networks are drawn where they are."""

from __future__ import annotations

import re
from pathlib import Path

import networkx as nx
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import spodgt
from spodgt import figures, report
from spodgt.errors import InvalidInput
from spodgt.record import Record

NAMES = [*spodgt.ALGORITHMS, "mine", "spod-gt step_size=0.1", "spod-gt step_size=0.2"]


@given(st.permutations(NAMES[:12]))
def test_a_colour_belongs_to_a_method_and_not_to_its_place(names: list[str]) -> None:
    assert figures.line_styles(names) == figures.line_styles(sorted(names))


@given(st.lists(st.sampled_from(NAMES), unique=True, max_size=8))
def test_up_to_eight_methods_have_eight_colours(names: list[str]) -> None:
    assert len({style.slot for style in figures.line_styles(names).values()}) == len(names)


@given(st.lists(st.sampled_from(NAMES), unique=True))
def test_no_two_methods_look_alike(names: list[str]) -> None:
    assert len(set(figures.line_styles(names).values())) == len(names)


def test_known_methods_have_the_same_colour_in_every_figure() -> None:
    alone = figures.line_styles(["spod-gt"])["spod-gt"]
    assert figures.line_styles(["k-gt", "mine", "ab", "spod-gt"])["spod-gt"] == alone
    label = "spod-gt step_size=0.1"
    assert figures.line_styles([label], {label: "spod-gt"})[label] == alone


def test_labels_with_settings_have_the_colour_of_their_method(tmp_path: Path) -> None:
    methods = [spodgt.method("k-gt", step_size=step_size) for step_size in (0.01, 0.02)]
    problem = spodgt.Quadratic.random(3, 2)
    result = spodgt.compare(methods, problem, spodgt.Network.ring(3), rounds=2, out=tmp_path)
    labels = ["k-gt step_size=0.01", "k-gt step_size=0.02"]
    assert result.method_names == dict.fromkeys(labels, "k-gt")
    styles = figures.line_styles(labels, result.method_names)
    assert styles[labels[0]] == figures.line_styles(["k-gt"])["k-gt"]
    assert Record.read(tmp_path).method_names == result.method_names


def test_more_methods_than_looks_are_still_drawn() -> None:
    assert len(figures.line_styles([f"m{n}" for n in range(100)])) == 100


@pytest.mark.parametrize(
    ("values", "logarithmic"),
    [
        ([1e-4, 1e-3, 1e-2, 1e-1], True),
        ([0.001, 0.1], True),
        ([10, 20, 40, 80], True),
        ([10, 20, 30, 40, 50], False),
        ([1, 2, 3, 5, 10], False),
        ([0.3, 0.4, 1.0], False),
        ([0.0, 1.0, 100.0], False),
        ([5], False),
    ],
)
def test_a_geometric_grid_has_a_logarithmic_axis(values: list[float], logarithmic: bool) -> None:
    assert figures.axis_positions(values) == (values, logarithmic)


def test_texts_stand_one_step_apart() -> None:
    assert figures.axis_positions(["always", "beta"]) == ([0, 1], False)
    assert figures.axis_positions([True, False]) == ([0, 1], False)


def test_positions_are_the_networks_or_a_layout() -> None:
    placed = spodgt.Network.random_geometric(6, radius=0.9, seed=0)
    np.testing.assert_array_equal(figures.client_positions(placed), placed.positions)
    for clients in (5, 100):
        layout = figures.client_positions(spodgt.Network.ring(clients))
        assert layout.shape == (clients, 2)
        assert len(np.unique(layout.round(6), axis=0)) == clients


def test_an_svg_has_every_client_and_link() -> None:
    network = spodgt.Network.random_geometric(6, radius=0.9, seed=0)
    text = figures.network_svg(network, np.full(6, 0.25), np.full(network.links, 0.5))
    assert text.count('class="client"') == 6
    assert text.count('class="link"') == network.links
    assert f"{network.senders[0]} → {network.receivers[0]}: p̂ 0.5" in text
    numbers = [float(n) for n in re.findall(r'c[xy]="([-\d.]+)"', text)]
    assert 0 < min(numbers) < max(numbers) < 480
    lone = spodgt.Network.draw(spodgt.graphs.Complete(1))
    assert "nan" not in figures.network_svg(lone, np.ones(1), np.ones(lone.links))


@pytest.mark.parametrize("style", ["screen", "column"])
def test_curves_are_drawn_in_the_colour_of_their_method(
    style: figures.FigureStyle, tmp_path: Path
) -> None:
    problem, network = spodgt.Quadratic.random(4, 2), spodgt.Network.ring(4)
    frame = spodgt.compare(["push-pull", "spod-gt"], problem, network, rounds=10, seeds=[2]).frame
    axes = figures.plot_curves(frame, "distance", "round", style=style).axes[0]
    drawn = {str(line.get_label()).split(" ")[0]: line.get_color() for line in axes.lines}
    assert drawn["spod-gt"] == figures.COLOURS[figures.line_styles(["spod-gt"])["spod-gt"].slot]
    assert axes.get_yscale() == "log"
    assert axes.get_ylabel() == "distance from the optimum"
    assert figures.plot_curves(frame, "loss", "round", style=style).axes[0].get_yscale() == "linear"


def test_names_stand_in_pictures_and_are_escaped() -> None:
    network = spodgt.Network.from_adjacency([[0, 1], [1, 0]], names=["lima", "<b>"])
    text = figures.network_svg(network, np.ones(2), np.ones(2))
    assert "<title>client lima: p 1</title>" in text
    assert "<title>lima → &lt;b&gt;: p̂ 1</title>" in text
    assert "<b>" not in text
    drawn = figures.draw_network(network, np.ones(2), np.ones(2))
    assert [label.get_text() for label in drawn.axes[0].texts] == ["lima", "<b>"]


@given(st.integers(1, 60), st.integers(0, 99), st.booleans())
def test_no_two_clients_overlap_in_a_picture(clients: int, seed: int, together: bool) -> None:
    at = np.random.default_rng(seed).random((clients, 2)) * (not together)
    gap = 0.3 / np.sqrt(clients)
    moved = figures.separate_overlaps(at, gap)
    assert moved.shape == at.shape
    assert np.isfinite(moved).all()
    distance = np.linalg.norm(moved[:, None] - moved[None], axis=-1)[~np.eye(clients, dtype=bool)]
    scale = np.ptp(moved, axis=0).max() or 1.0
    assert clients == 1 or distance.min() > 0.9 * gap * min(scale, 1.0)


# --- plots of results ----------------------------------------------------------------------------
@pytest.fixture(scope="module")
def compared() -> spodgt.Result:
    return spodgt.compare(
        ["spod-gt", "push-pull"],
        spodgt.Quadratic.random(4, 2, noise=0.1),
        spodgt.Network.ring(4),
        rounds=20,
        every=5,
        seeds=[0, 1],
    )


def test_lines_are_straight_between_evaluations(compared: spodgt.Result) -> None:
    axes = compared.plot(metric="loss", against="round")
    line = next(line for line in axes.lines if str(line.get_label()).startswith("spod-gt"))
    rows = compared.frame[compared.frame["method"] == "spod-gt"].groupby("round")["loss"].mean()
    assert np.array_equal(np.asarray(line.get_xdata()), rows.index.to_numpy())
    np.testing.assert_allclose(np.asarray(line.get_ydata(), float), rows.to_numpy())
    assert line.get_drawstyle() == "default"


def test_a_plot_on_given_axes_with_some_methods(compared: spodgt.Result) -> None:
    figure, panels = figures.new_figure(6, 3, columns=2)
    for ax, metric in zip(panels, ("loss", "distance"), strict=True):
        assert compared.plot(metric=metric, ax=ax, methods=["push-pull"]) is ax
        assert [line.get_label() for line in ax.lines] == ["push-pull"]
    assert figure.axes == list(panels)


def test_widths_of_a_paper_and_mistakes(compared: spodgt.Result, tmp_path: Path) -> None:
    sizes = {}
    for width in figures.FIGURE_STYLES:
        sizes[width] = compared.plot(width=width).figure.get_figwidth()  # type: ignore[union-attr]
    assert sizes["column"] == pytest.approx(3.35)
    assert sizes["page"] == pytest.approx(7.0)
    assert compared.plot(tmp_path / "column.pdf", width="column").stat().st_size > 1000
    with pytest.raises(InvalidInput, match="use 'column', 'page' or 'screen'"):
        compared.plot(width="slide")  # type: ignore[call-overload]
    with pytest.raises(InvalidInput, match="methods='sgd' is not one of this result"):
        compared.plot(methods=["sgd"])


def test_a_latex_table(compared: spodgt.Result) -> None:
    lines = compared.to_latex().splitlines()
    assert lines[0] == r"\begin{tabular}{lrrr}"
    assert lines[2] == r"method & loss & rounds & delay \\"
    assert {line.split(" & ")[0] for line in lines[4:6]} == {"spod-gt", "push-pull"}
    assert all(r" \pm " in line and line.endswith(r" \\") for line in lines[4:6])


@pytest.fixture(scope="module")
def classified() -> spodgt.Result:
    generator = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(4):
        inputs = torch.randn(40, 5, generator=generator)
        clients.append((inputs, (inputs[:, 0] > 0).long()))
    problem = spodgt.Learning(
        torch.nn.Linear(5, 2), torch.nn.CrossEntropyLoss(), clients, test=clients[0]
    )
    network = spodgt.Network.draw(spodgt.graphs.Complete(4))
    return spodgt.compare(["spod-gt", "dsgd"], problem, network, rounds=60, seeds=[0, 1])


@pytest.mark.parametrize("width", figures.FIGURE_STYLES)
def test_the_axis_of_accuracies_fits_the_curves(
    classified: spodgt.Result, width: figures.FigureStyle
) -> None:
    axes = classified.plot(width=width)
    low, high = axes.get_ylim()
    band = classified.frame.groupby(["method", "round"])["accuracy"].agg(["mean", "std"])
    assert 0 <= low <= (band["mean"] - band["std"] / 2**0.5).min()
    assert (band["mean"] + band["std"] / 2**0.5).max() <= high <= 1
    assert high - low < 1.2 * (band["mean"].max() - band["mean"].min() + 2 * band["std"].max())


def test_two_results_on_the_same_axes_are_both_visible(classified: spodgt.Result) -> None:
    _, ax = figures.new_figure(4, 3)
    classified.plot(ax=ax, against="round")
    before = ax.get_ylim()
    classified.plot(ax=ax, against="delay")
    delays = ax.get_xlim()
    classified.plot(ax=ax, against="round", methods=["dsgd"])  # shorter, with fewer values
    assert ax.get_xlim() == delays
    assert ax.get_ylim()[0] <= before[0]
    assert ax.get_ylim()[1] >= before[1]


def test_panels_that_share_an_axis_fit_all_curves(tmp_path: Path) -> None:
    """Of a sweep with two keys: each panel has other accuracies."""
    results = pd.DataFrame(
        {
            "method": "spod-gt",
            "seed": 0,
            "problem.batch_size": [1, 2, 1, 2],
            "network.radius": [0.4, 0.4, 0.8, 0.8],
            "accuracy": [0.31, 0.32, 0.91, 0.93],
        }
    )
    keys = ["problem.batch_size", "network.radius"]
    for panel in figures.plot_sweep(results, keys, "accuracy").axes:
        low, high = panel.get_ylim()
        assert low < 0.31
        assert high > 0.93


def test_a_latex_table_of_accuracies_is_aligned(classified: spodgt.Result) -> None:
    values = [line.split(" & ")[1] for line in classified.to_latex().splitlines()[4:6]]
    assert all(re.fullmatch(r"\$[01]\.\d{4} \\pm 0\.\d{4}\$", _plain(value)) for value in values)


def test_a_latex_table_names_the_data_and_prints_the_best_value_bold(
    classified: spodgt.Result,
) -> None:
    lines = classified.to_latex().splitlines()
    assert lines[2] == r"method & test accuracy & rounds & delay \\"
    assert [r"\mathbf{" in line for line in lines[4:6]] == [True, False]


def _plain(cell: str) -> str:
    """A cell without the bold face of the best value."""
    return re.sub(r"\\mathbf{(.*)}", r"\1", cell)


def test_a_latex_table_of_small_losses_and_seconds() -> None:
    result = spodgt.train(
        spodgt.method("spod-gt", step_size=0.5),
        spodgt.Quadratic([[[1.0]], [[1.0]]], [[1e-4], [2e-4]]),
        spodgt.Network.ring(2),
        rounds=40,
        time=spodgt.Time(0.1),
    )
    lines = result.to_latex().splitlines()
    assert lines[2] == r"method & loss & rounds & seconds \\"
    assert re.fullmatch(r"spod-gt & \$1\.\d+ \\cdot 10\^{-9}\$ & 40 & 4 \\\\", lines[4])


def test_a_latex_table_without_test_data() -> None:
    generator = torch.Generator().manual_seed(0)
    data = (torch.randn(8, 2, generator=generator), torch.zeros(8).long())
    problem = spodgt.Learning(torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss(), [data, data])
    result = spodgt.train("spod-gt", problem, spodgt.Network.ring(2), rounds=2)
    assert r"spod-gt & -- & 2 & " in result.to_latex()


def test_sweeps_are_short_in_a_shell_and_tables_in_a_notebook(tmp_path: Path) -> None:
    done = spodgt.sweep(
        "spod-gt",
        spodgt.Quadratic.random(3, 2),
        spodgt.Network.ring(3),
        grid={"step_size": [0.01, 0.1]},
        out=tmp_path / "steps",
        rounds=5,
    )
    assert repr(done) == "SweepResult(steps: 2 of 2 cells, run.step_size)"
    assert "<table" in done._repr_html_()


@pytest.fixture(scope="module")
def validated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that is evaluated on held-out samples."""
    generator = torch.Generator().manual_seed(0)
    clients = []
    for _ in range(3):
        inputs = torch.randn(40, 5, generator=generator)
        clients.append((inputs, (inputs[:, 0] > 0).long()))
    model = torch.nn.Linear(5, 2)
    problem = spodgt.Learning(model, torch.nn.CrossEntropyLoss(), clients, test=clients[0])
    folder = tmp_path_factory.mktemp("validated")
    spodgt.train(
        "spod-gt",
        problem,
        spodgt.Network.ring(3),
        rounds=20,
        evaluate_on="validation",
        out=folder,
    )
    return folder


def test_values_of_validation_data_are_not_labelled_test(validated: Path) -> None:
    result = spodgt.Result.read(validated)
    assert result.evaluated_on == "validation"
    assert result.plot().get_ylabel() == "validation accuracy"
    assert result.plot(metric="loss", width="column").get_ylabel() == "validation loss"
    assert "& validation accuracy &" in result.to_latex()
    assert "Evaluated on validation data" in str(result)
    labels = [facts["label"] for facts in result.as_dict()["metrics"].values()]
    assert not any(label.startswith("test ") for label in labels)


def test_a_report_of_validation_data_does_not_say_test(validated: Path) -> None:
    page = report.read(validated)
    html = report.render(page).replace("not on test data", "")
    assert "validation accuracy" in html
    assert "test accuracy" not in html
    assert "test loss" not in html
    report.draw(page)
    figure = (validated / "figure.svg").read_text()
    assert "validation accuracy" in figure


def test_a_network_is_drawn_in_the_middle_with_labels_off_its_links() -> None:
    network = spodgt.Network.from_networkx(nx.path_graph(["north", "south", "east", "west"]))
    figure = figures.draw_network(network, np.full(4, 0.5), np.full(network.links, 0.5))
    axes = figure.axes[0]
    figure.draw_without_rendering()  # lays it out
    box = axes.get_window_extent()
    labels = [text for text in axes.texts if text.get_text()]
    middle = np.array([(box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2])
    centers = axes.transData.transform(axes.collections[0].get_offsets())
    assert np.allclose((centers.min(0) + centers.max(0)) / 2, middle, atol=3)
    assert box.x0 < 0.05 * figure.bbox.width
    for text in labels:
        extent = text.get_window_extent()
        assert extent.x0 >= 0
        assert not any(extent.contains(*center) for center in centers)


def test_methods_of_similar_colours_have_different_dashes() -> None:
    styles = figures.line_styles(["spod-gt", "spod-gt-memory"])
    assert styles["spod-gt"].gaps == []
    assert styles["spod-gt-memory"].gaps[1] >= 2  # visible in a column
