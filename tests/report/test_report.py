"""Reports: what they say is what the tables hold, and a browser shows it without a complaint."""

from __future__ import annotations

import ast
import dataclasses
import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import spodgt
from spodgt import figures, report
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.record import Record
from spodgt.record.record import versions
from spodgt.report.page import toml
from spodgt.report.render import duration
from spodgt.sweeps import grid as experiments
from spodgt.sweeps import sweep
from spodgt.sweeps.cell import Job, run_job

CONFIG = Experiment.parse(
    {
        "run": {
            "methods": ["spod-gt", "spod-gt-memory", "k-gt"],
            "seeds": 3,
            "delay": 40,
            "evaluations": 5,
        },
        "network": {"clients": 5, "radius": 0.8},
        "problem": {"partition": {"labels": 2}},
    }
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small comparison on the embedded data."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert run_job(Job("small", CONFIG.to_dict(), str(folder)), lambda event: None).complete
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over two keys, one of them not a number."""
    folder = tmp_path_factory.mktemp("sweeps")
    text = CONFIG.override({"run.delay": 15, "run.seeds": 2}).to_dict()
    spec = experiments.Spec(
        "two",
        Experiment.parse(text),
        {"run.step_size": [0.001, 0.1], "participation.kind": ["always", "beta"]},
        title="Two keys & <more>",
    )
    sweep.run(spec, folder / "two", workers=1)
    report.write(folder / "two")
    return folder / "two"


def text_of(folder: Path) -> str:
    return (folder / report.NAME).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.34, "2.3 s"), (59.6, "60 s"), (75, "1 min 15 s"), (7300, "2 h 1 min")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


# --- content ----------------------------------------------------------------------------------------
def data_of(folder: Path) -> dict[str, Any]:
    inside = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', text_of(folder), re.S
    )
    assert inside
    found: dict[str, Any] = json.loads(inside.group(1))
    return found


def test_the_page_loads_nothing_and_says_everything(run: Path) -> None:
    page = text_of(run)
    assert not re.search(r"(src|href)\s*=|@import|url\(['\"]?http", page)
    assert "default-src 'none'" in page
    for row in json.loads((run / "summary.json").read_text())["methods"]:
        assert f"{row['accuracy']:.3f}" in page
        assert row["method"] in page
    settings = re.search(r"Settings</summary><pre>(.*?)</pre>", page, re.S)
    assert settings
    assert html.unescape(settings.group(1)) == (run / "config.toml").read_text()
    assert f"spodgt run {run}/config.toml" in page
    assert versions()["torch"] in page
    assert "Rarely participating" in page or "every client computed" in page


def test_the_data_in_the_page_are_the_statistics(run: Path) -> None:
    data, frame = data_of(run), pd.read_parquet(run / "metrics.parquet")
    one = frame[(frame["method"] == "k-gt") & (frame["seed"] == 1)]
    np.testing.assert_allclose(
        data["runs"][0]["seeds"]["k-gt"][1]["accuracy"], one["accuracy"], rtol=1e-3
    )
    assert list(data["methods"]) == ["spod-gt", "spod-gt-memory", "k-gt"]
    axis = data["runs"][0]["axes"]["delay"]
    mean, sigma = axis["bands"]["loss"]["k-gt"]
    last = frame[frame["method"] == "k-gt"].groupby("seed")["loss"].last()
    end = frame.loc[frame["method"] == "k-gt", "delay"].max()
    at = axis["x"].index(pytest.approx(end, rel=1e-6))
    assert mean[at] == pytest.approx(last.mean(), rel=1e-3), "a curve ends with the last model"
    assert sigma[at] == pytest.approx(last.std(ddof=0), rel=0.05)
    assert mean[at + 1 :] == [None] * (len(axis["x"]) - at - 1), "and is not drawn beyond"
    assert axis["x"] == sorted(set(axis["x"]))
    assert data["runs"][0]["final"]["loss"]["k-gt"] == pytest.approx(last.mean(), rel=1e-3)


def test_a_report_needs_no_config(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "small"
    shutil.copytree(run, copy)
    for name in ("config.toml", "checkpoint.zip"):
        (copy / name).unlink(missing_ok=True)
    page = report.write(copy).read_text(encoding="utf-8")
    assert page.replace(str(copy), str(run)) == text_of(run)


def test_the_network_is_the_one_that_was_drawn(run: Path) -> None:
    drawn = Record.read(run).drawn()
    page = text_of(run)
    assert page.count('class="link"') == sum(net.links for net in drawn.values())
    assert page.count('class="client"') == sum(net.clients for net in drawn.values())
    net = drawn[1]
    assert f"{net.senders[0]} → {net.receivers[0]}: p̂ {net.p_hat[0]:.3g}" in page


def test_a_network_of_many_is_not_half_shown(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once there was an empty chart, and "not known" beside it."""
    monkeypatch.setattr(sys.modules["spodgt.report.chart_data"], "MAX_CLIENTS", 2)
    page = report.write(Path(shutil.copytree(run, tmp_path / "run"))).read_text(encoding="utf-8")
    assert "Networks of more than 2 clients are not drawn here." in page
    assert 'id="participation"' not in page
    assert 'id="clients"' not in page
    assert "Rarely participating" in page or "every client computed" in page


def test_every_text_is_escaped(swept: Path) -> None:
    page = text_of(swept)
    assert "Two keys &amp; &lt;more&gt;" in page
    assert "<more>" not in page
    evil = report.read(swept)
    evil.sweep.title = "</script><script>alert(1)</script>"
    evil.sweep.cells[0] = dataclasses.replace(evil.sweep.cells[0], name="<b>", error="<img src=x>")
    page = report.render(evil)
    assert "<script>alert" not in page
    assert "<img" not in page


def test_methods_with_markup_in_their_name_stay_text(run: Path, tmp_path: Path) -> None:
    copy = tmp_path / "evil"
    shutil.copytree(run, copy)
    for name in ("metrics", "participation"):
        table = pd.read_parquet(copy / f"{name}.parquet")
        table["method"] = table["method"].replace("k-gt", "</script><b>k")
        table.to_parquet(copy / f"{name}.parquet")
    page = report.write(copy).read_text()
    assert "<b>k" not in page
    assert page.count("</script>") == 2


def test_a_sweep_has_a_row_for_every_cell_and_every_method_at_its_best(swept: Path) -> None:
    page = text_of(swept)
    frame = pd.read_parquet(swept / "results.parquet")
    cell = frame[(frame["run.step_size"] == 0.1) & (frame["participation.kind"] == "beta")]
    for value in cell.groupby("method")["accuracy"].mean():
        assert f"{value:.3f}" in page
    data = data_of(swept)
    assert data["sweep"]["keys"]["run.step_size"]["log"]
    assert data["sweep"]["keys"]["participation.kind"]["at"] == [0, 1]
    assert len(data["sweep"]["cells"]) == len(data["runs"]) == 4
    best = page.split("Each method at its best")[1]
    for method, rows in frame.groupby("method"):
        means = rows.groupby(["run.step_size", "participation.kind"])["accuracy"].mean()
        row = re.search(rf"<td>{method}</td>(.*?)</tr>", best, re.S)
        assert row
        assert f"{means.max():.3f}" in row.group(1)


def test_the_reference_can_be_chosen(run: Path, swept: Path, tmp_path: Path) -> None:
    for folder in (run, swept):
        page = text_of(folder)
        for method in ("spod-gt", "spod-gt-memory", "k-gt"):
            shown = "" if method == "spod-gt" else " hidden"
            assert f'<div data-reference="{method}"{shown}>' in page
    copy = tmp_path / "other"
    shutil.copytree(run, copy)
    assert '<div data-reference="k-gt">' in report.write(copy, reference="k-gt").read_text()
    with pytest.raises(InvalidInput, match="--reference='dsgd' is not a method of this result"):
        report.write(copy, reference="dsgd")


def test_figures_come_in_every_format_and_the_same_each_time(run: Path, swept: Path) -> None:
    for folder in (run, swept):
        first = {suffix: (folder / f"figure{suffix}").read_bytes() for suffix in figures.SUFFIXES}
        assert first[".pdf"].startswith(b"%PDF")
        assert first[".png"].startswith(b"\x89PNG")
        report.draw(report.read(folder))
        assert (folder / "figure.svg").read_bytes() == first[".svg"]


def test_a_run_from_python_has_a_report(tmp_path: Path) -> None:
    problem = spodgt.Quadratic.random(4, 3)
    network = spodgt.Network.ring(4)
    spodgt.compare(
        ["spod-gt", "ab"], problem, network, rounds=20, seeds=range(2), out=tmp_path / "mine"
    )
    page = report.write(tmp_path / "mine").read_text()
    assert "lead in loss" in page
    assert "run from Python" in page


def test_names_of_clients_stand_in_the_page(tmp_path: Path) -> None:
    network = spodgt.Network.from_adjacency([[0, 1], [1, 0]], names=["lima", "oslo"])
    rare = spodgt.Bernoulli([1.0, 1e-9], 1.0)
    spodgt.train(
        "spod-gt", spodgt.Quadratic.random(2, 3), network, rare, rounds=5, out=tmp_path / "mine"
    )
    page = report.write(tmp_path / "mine").read_text()
    assert '"names":["lima","oslo"]' in page
    assert "<title>client oslo: p 1e-09</title>" in page
    assert "oslo (p = 1e-09)" in page


@pytest.fixture(scope="module")
def predicted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a prediction in its record."""
    folder = tmp_path_factory.mktemp("runs") / "predicted"
    problem, network = spodgt.Quadratic.random(4, 3), spodgt.Network.ring(4)
    result = spodgt.compare(["spod-gt"], problem, network, rounds=20, seeds=range(2), out=folder)
    line: dict[str, Any] = {"method": "spod-gt", "seeds": [0, 1], "floor": 0.0105, "rate": 0.593}
    line |= {"rounds": [0, 10, 20], "measured": [2.0, 0.2, 0.0123]}
    line |= {"predicted": [2 * 0.77**k for k in range(21)]}
    result.prediction = {"lines": [line]}
    result.write(folder)
    report.write(folder)
    return folder


def test_a_prediction_of_the_record_is_shown(predicted: Path) -> None:
    page = text_of(predicted)
    rows = page.split("Measured and predicted")[1].split("</table>")[0]
    for text in (
        "0.0123",
        f"{2 * 0.77**20:.3g}",
        "0.0105",
        "0.593",
        f"{np.log(100) / -np.log(0.593):.3g}",
    ):
        assert f"<td>{text}</td>" in rows
    assert len(data_of(predicted)["prediction"][0]["predicted"]) == 21


def test_an_unfinished_sweep_says_so(swept: Path, tmp_path: Path) -> None:
    copy = tmp_path / "part"
    shutil.copytree(swept, copy)
    note = json.loads((copy / "sweep.json").read_text())
    note["cells"][0] |= {"complete": False, "error": "it broke"}
    note["cells"][1] |= {"complete": False, "error": ""}
    (copy / "sweep.json").write_text(json.dumps(note))
    page = report.write(copy).read_text()
    assert "it broke" in page
    assert "not finished" in page


def test_a_folder_of_something_else_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="neither a run"):
        report.write(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(InvalidInput, match="not a whole run directory"):
        report.write(tmp_path)


def test_a_report_imports_only_records_and_figures() -> None:
    allowed = {"record", "figures", "errors", "report"}
    for path in Path(report.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and str(node.module).startswith("spodgt"):
                rooms = {str(node.module).split(".")[1]} if "." in str(node.module) else set()
                assert (rooms or {name.name for name in node.names}) <= allowed, path.name


# --- in a browser -----------------------------------------------------------------------------------
BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = [
    "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
    "--hide-scrollbars", "--virtual-time-budget=4000",
]  # fmt: skip
WATCH = """<script>
window.complaints = [];
addEventListener("error", (event) => complaints.push(String(event.message)));
addEventListener("securitypolicyviolation", (event) => complaints.push(event.violatedDirective));
for (const kind of ["error", "warn"]) console[kind] = (...words) => complaints.push(words.join(" "));
</script>"""
HANDS = """<script>
addEventListener("load", () => setTimeout(async () => {
  const settle = () => new Promise((done) => setTimeout(done, 30)); // uPlot draws after the event
  const all = (what) => [...document.querySelectorAll(what)];
  const plot = (id) => document.getElementById(id).chart;
  const named = (id) => plot(id).series.filter((one) => one.name && one.show).map((one) => one.name);
  const ink = (id) => {
    const { canvas } = plot(id).ctx;
    const pixels = plot(id).ctx.getImageData(0, 0, canvas.width, canvas.height).data;
    return pixels.reduce((sum, value, n) => sum + (n % 4 === 3 && value > 0), 0);
  };
  const button = (id, name) => all(`#${id}-legend button`).find((each) => each.dataset.method === name);
  const choose = (id, value) => {
    const box = document.getElementById(id); box.value = value; box.dispatchEvent(new Event("change"));
  };
  const mouse = (id, kind, x, y) => {
    const over = plot(id).over, box = over.getBoundingClientRect();
    const at = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
    const target = kind === "mouseup" ? document : over;
    target.dispatchEvent(new MouseEvent(kind, { ...at, movementX: 9, button: 0, bubbles: true }));
  };
  const said = {};
  for (const id of ["curves", "sweep", "prediction"]) {
    if (!document.getElementById(id)) continue;
    const one = (said[id] = { before: named(id), ink: ink(id) });
    const name = one.before.at(-1);
    button(id, name).click();
    one.after = named(id);
    one.pressed = button(id, name).getAttribute("aria-pressed");
    button(id, name).click();
    one.back = named(id);
    mouse(id, "mousemove", 0.6, 0.5);
    const tip = document.querySelector(`#${id} .tip`);
    one.tip = tip.hidden ? "" : tip.textContent;
    const whole = plot(id).scales.x.max - plot(id).scales.x.min;
    mouse(id, "mousedown", 0.3, 0.5); mouse(id, "mousemove", 0.6, 0.5); mouse(id, "mouseup", 0.6, 0.5);
    await settle();
    one.zoomed = (plot(id).scales.x.max - plot(id).scales.x.min) / whole;
    mouse(id, "dblclick", 0.5, 0.5);
    await settle();
    const { min, max } = plot(id).scales.y;
    mouse(id, "mousedown", 0.3, 0.2); mouse(id, "mousemove", 0.6, 0.7); mouse(id, "mouseup", 0.6, 0.7);
    await settle();
    one.tall = plot(id).scales.y.min > min && plot(id).scales.y.max < max;
    mouse(id, "dblclick", 0.5, 0.5);
    await settle();
    one.whole = plot(id).scales.y.min === min && plot(id).scales.y.max === max;
    one.restored = (plot(id).scales.x.max - plot(id).scales.x.min) / whole;
  }
  choose("metric", all("#metric option").map((each) => each.value).find((name) => name === "consensus_x"));
  said.title = plot("curves").axes[1].label;
  said.log = plot("curves").scales.y.distr === 3;
  said.consensus = named("curves").length;
  const before = plot("curves").series.length;
  document.getElementById("seeds").click();
  said.seeds = plot("curves").series.length - before;
  const visible = (what) => all(what).filter((each) => each.checkVisibility());
  said.clients = visible(".network .client").length;
  said.arrows = visible(".network .link").length;
  said.rows = all("#clients tbody tr").length;
  const points = plot("participation").data.slice(1, 3).flat();
  said.points = points.filter((value) => typeof value === "number").length;
  const first = document.querySelector("#reference");
  if (first) {
    choose("reference", "k-gt");
    said.references = visible("[data-reference]").map((each) => each.dataset.reference);
  }
  if (document.getElementById("run")) {
    choose("run", "1");
    said.panels = all("[data-run]:not([hidden])").map((each) => each.dataset.run);
    choose("sweep-key", "participation.kind");
    said.kinds = plot("sweep").axes[0].values();
  }
  const colour = () => plot("curves").series[1].stroke();
  const day = colour();
  document.getElementById("theme").click();
  said.theme = [document.documentElement.dataset.theme, day !== colour()];
  said.wide = document.documentElement.scrollWidth <= innerWidth;
  said.complaints = complaints;
  const note = document.createElement("pre");
  note.id = "said";
  note.textContent = JSON.stringify(said);
  document.body.append(note);
}, 300));
</script>"""


def browse(folder: Path, tmp_path: Path, width: int = 1100) -> dict[str, Any]:
    if BROWSER is None:
        pytest.skip("no Chromium here: install chromium to test reports in a browser")
    page = (
        text_of(folder).replace("<head>", "<head>" + WATCH, 1).replace("</body>", HANDS + "</body>")
    )
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [
        BROWSER,
        *FLAGS,
        f"--user-data-dir={tmp_path}/profile",
        f"--window-size={width},900",
        "--dump-dom",
    ]
    address = (tmp_path / "page.html").as_uri()
    shown = subprocess.run(
        [*command, address], capture_output=True, text=True, timeout=120, check=True
    )
    found = re.search(r'<pre id="said">(.*?)</pre>', shown.stdout, re.S)
    assert found, shown.stderr[-2000:]
    said: dict[str, Any] = json.loads(html.unescape(found.group(1)))
    return said


def check_chart(said: dict[str, Any], methods: list[str]) -> None:
    assert said["before"] == said["back"] == methods
    assert said["after"] == methods[:-1]
    assert said["pressed"] == "false"
    assert said["ink"] > 5000, "something is drawn"
    assert methods[0] in said["tip"]
    assert re.search(r"\d\.\d", said["tip"])
    assert said["zoomed"] < 0.5
    assert said["restored"] == pytest.approx(1)
    assert said["tall"], "a tall box zooms both axes"
    assert said["whole"]


METHODS = ["spod-gt", "spod-gt-memory", "k-gt"]


@pytest.mark.parametrize("width", [1100, 500])
def test_a_browser_shows_a_run(run: Path, tmp_path: Path, width: int) -> None:
    said = browse(run, tmp_path, width)
    assert said["complaints"] == []
    check_chart(said["curves"], METHODS)
    assert said["title"] == "distance of models from their average"
    assert said["log"]
    assert said["consensus"] == 3
    assert said["seeds"] == 9
    net = Record.read(run).drawn()[0]
    assert (said["clients"], said["arrows"], said["rows"]) == (5, net.links, 5)
    assert said["points"] == net.links + 5
    assert said["references"] == ["k-gt"]
    assert said["theme"][0] in ("dark", "light")
    assert said["theme"][1], "the charts follow the theme"
    assert said["wide"], "nothing stands out at the side"


def test_a_browser_shows_a_sweep(swept: Path, tmp_path: Path) -> None:
    said = browse(swept, tmp_path)
    assert said["complaints"] == []
    check_chart(said["curves"], METHODS)
    check_chart(said["sweep"], METHODS)
    assert set(said["panels"]) == {"1"}
    assert set(said["references"]) == {"k-gt"}
    assert said["kinds"] == ["always", "beta"]


def test_a_browser_shows_a_prediction(predicted: Path, tmp_path: Path) -> None:
    said = browse(predicted, tmp_path)
    assert said["complaints"] == []
    check_chart(said["prediction"], ["spod-gt"])
    assert said["points"] == 4 + 4, "those of the same probability, too"


def test_changes_by_hand_are_shown_as_they_can_be_typed() -> None:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.11 or later")
    methods = ["spod-gt", {"name": "relay", "running_mean": 0.2, "tags": [True, 1e-5, 'a "b"']}]
    assert tomllib.loads(f"methods={toml(methods)}") == {"methods": methods}
