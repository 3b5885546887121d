"""Reports: what they say is what the tables hold, and a browser shows it without a complaint."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats

import spodgt
from spodgt import report
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.report import collect, pictures, statistics
from spodgt.report.page import duration, payload
from spodgt.sweeps import grid as experiments
from spodgt.sweeps import sweep
from spodgt.sweeps.cell import Job, perform

CONFIG = Experiment.parse(
    {
        "run": {"methods": ["spod-gt", "spod-gt-memory", "k-gt"], "seeds": 3, "delay": 40, "evaluations": 5},
        "network": {"clients": 5, "radius": 0.8},
        "problem": {"partition": {"labels": 2}},
    }
)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A small comparison on the embedded data."""
    folder = tmp_path_factory.mktemp("runs") / "small"
    assert perform(Job("small", CONFIG.to_dict(), str(folder)), lambda event: None).complete
    report.write(folder)
    return folder


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
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


# --- statistics -------------------------------------------------------------------------------------
def looks(values: dict[str, list[float]], metric: str = "accuracy") -> pd.DataFrame:
    rows = [
        {"algorithm": name, "seed": seed, metric: value}
        for name, column in values.items()
        for seed, value in enumerate(column)
    ]
    return pd.DataFrame(rows)


def test_paired_differences_agree_with_scipy():
    a, b = [0.7, 0.8, 0.75, 0.6], [0.6, 0.65, 0.72, 0.63]
    (one,) = statistics.paired(looks({"spod-gt": a, "k-gt": b}), "accuracy", "spod-gt")
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    np.testing.assert_allclose([one.low, one.high], [low, high])
    assert one.mean == pytest.approx(np.mean(a) - np.mean(b))
    assert (one.ahead, one.seeds, one.verdict) == (3, 4, "open")


def test_a_lead_in_loss_is_a_smaller_loss():
    (one,) = statistics.paired(looks({"spod-gt": [1.0, 1.1], "k-gt": [2.0, 2.1]}, "loss"), "loss", "spod-gt")
    assert one.mean == pytest.approx(1.0)
    assert one.ahead == 2


def test_one_seed_has_no_interval():
    (one,) = statistics.paired(looks({"spod-gt": [0.7], "k-gt": [0.6]}), "accuracy", "spod-gt")
    assert np.isnan(one.low)
    assert one.verdict == "one seed"


def test_only_seeds_of_both_are_paired():
    frame = looks({"spod-gt": [0.7, 0.8], "k-gt": [0.6]})
    (one,) = statistics.paired(frame, "accuracy", "spod-gt")
    assert one.seeds == 1


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.34, "2.3 s"), (59.6, "60 s"), (75, "1 min 15 s"), (7300, "2 h 1 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


# --- content ----------------------------------------------------------------------------------------
def test_the_page_loads_nothing_and_says_everything(run):
    page = text_of(run)
    assert not re.search(r"(src|href)\s*=|@import|url\(['\"]?http", page)
    assert "default-src &#x27;none&#x27;" in page or "default-src 'none'" in page
    for row in json.loads((run / "summary.json").read_text())["algorithms"]:
        assert f"{row['accuracy']:.3f}" in page
        assert row["name"] in page
    assert html.escape((run / "config.toml").read_text()) in page
    assert f"spodgt run {run}/config.toml" in page
    assert spodgt.record.record.versions()["torch"] in page
    assert "Hardly heard" in page or "heard every client" in page


def test_the_data_in_the_page_are_the_looks(run):
    inside = re.search(r'<script type="application/json" id="data">(.*?)</script>', text_of(run), re.S)
    data = json.loads(inside.group(1))
    frame = pd.read_parquet(run / "metrics.parquet")
    one = frame[(frame["algorithm"] == "k-gt") & (frame["seed"] == 1)]
    np.testing.assert_allclose(data["runs"][0]["looks"]["k-gt"]["1"]["accuracy"], one["accuracy"], rtol=1e-4)
    assert data["methods"] == ["spod-gt", "spod-gt-memory", "k-gt"]


def test_the_network_is_the_one_that_was_drawn(run):
    network, availability = CONFIG.draw_network(1)
    drawn = collect.networks(collect.read_run(run))[1]
    np.testing.assert_allclose(drawn["places"], network.positions)
    np.testing.assert_array_equal(drawn["links"][:, 0], network.senders)
    np.testing.assert_allclose(drawn["p"], availability.p)


def test_participation_is_counted_in_rounds(run):
    data = collect.read_run(run)
    one = collect.seen(data)["k-gt"][0]
    assert (one["clients"] == 1).all()  # every client computes in every round, round 0 included
    rounds = data.frame.query("algorithm == 'k-gt' and seed == 0")["round"].max()
    assert one["rounds"] == rounds


def test_every_text_is_escaped(swept):
    page = text_of(swept)
    assert "Two keys &amp; &lt;more&gt;" in page
    assert "<more>" not in page
    evil = collect.read(swept)
    object.__setattr__(evil, "title", "</script><script>alert(1)</script>")
    object.__setattr__(evil, "failures", {"<b>": "<img src=x>"})
    page = report.render(evil)
    assert "<script>alert" not in page
    assert "<img" not in page


def test_methods_with_markup_in_their_name_stay_text(run, tmp_path):
    copy = tmp_path / "evil"
    shutil.copytree(run, copy)
    for name in ("metrics", "participation"):
        table = pd.read_parquet(copy / f"{name}.parquet")
        table["algorithm"] = table["algorithm"].replace("k-gt", "</script><b>k")
        table.to_parquet(copy / f"{name}.parquet")
    page = report.write(copy).read_text()
    assert "<b>k" not in page
    assert page.count("</script>") == 2


def test_a_sweep_has_a_row_for_every_cell(swept):
    page = text_of(swept)
    frame = pd.read_parquet(swept / "results.parquet")
    cell = frame[(frame["run.step_size"] == 0.1) & (frame["participation.kind"] == "beta")]
    for value in cell.groupby("algorithm")["accuracy"].mean():
        assert f"{value:.3f}" in page
    data = payload(collect.read(swept))
    assert data["sweep"]["keys"]["run.step_size"]["log"]
    assert not data["sweep"]["keys"]["participation.kind"]["numbers"]
    assert len(data["runs"]) == 4


def test_figures_come_in_every_format_and_the_same_each_time(run, swept):
    for folder in (run, swept):
        first = {suffix: (folder / f"figure.{suffix}").read_bytes() for suffix in pictures.FORMATS}
        assert first["pdf"].startswith(b"%PDF")
        assert first["png"].startswith(b"\x89PNG")
        report.draw(collect.read(folder))
        assert (folder / "figure.svg").read_bytes() == first["svg"]


def test_a_run_from_python_has_a_report(tmp_path):
    problem = spodgt.Quadratic.random(4, 3)
    network = spodgt.Network.ring(4)
    spodgt.compare(["spod-gt", "ab"], problem, network, rounds=20, seeds=range(2), out=tmp_path / "mine")
    page = report.write(tmp_path / "mine").read_text()
    assert "lead in loss" in page
    assert "run from Python" in page


def test_an_unfinished_sweep_says_so(swept, tmp_path):
    copy = tmp_path / "part"
    shutil.copytree(swept, copy)
    note = json.loads((copy / "sweep.json").read_text())
    note["cells"][0] |= {"complete": False, "error": "it broke"}
    note["cells"][1] |= {"complete": False, "error": ""}
    (copy / "sweep.json").write_text(json.dumps(note))
    page = report.write(copy).read_text()
    assert "it broke" in page
    assert "not finished" in page


def test_a_folder_of_something_else_is_one_sentence(tmp_path):
    with pytest.raises(InvalidInput, match="neither a run"):
        report.write(tmp_path)
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(InvalidInput, match="not a whole run directory"):
        report.write(tmp_path)


# --- in a browser -----------------------------------------------------------------------------------
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
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
addEventListener("load", () => setTimeout(() => {
  const all = (what) => [...document.querySelectorAll(what)];
  const shown = (line) => line.getAttribute("d").length > 20;
  const drawn = (id) => all(`#${id} .series .line`).filter(shown).length;
  const button = (id, name) => all(`#${id}-legend button`).find((each) => each.dataset.method === name);
  const point = (id, kind, x, y, more) => {
    const picture = document.querySelector(`#${id} svg`), box = picture.getBoundingClientRect();
    const place = { clientX: box.left + x * box.width, clientY: box.top + y * box.height };
    picture.dispatchEvent(new PointerEvent(kind, { ...place, pointerType: "mouse", bubbles: true, ...more }));
  };
  const choose = (id, value) => {
    const box = document.getElementById(id); box.value = value; box.dispatchEvent(new Event("change"));
  };
  const said = {};
  for (const id of ["curves", "sweep"]) {
    if (!document.getElementById(id)) continue;
    const one = (said[id] = { before: drawn(id) });
    button(id, "k-gt").click();
    one.hidden = drawn(id);
    one.left = all(`#${id} .series`).map((each) => each.dataset.method);
    button(id, "k-gt").click();
    one.back = drawn(id);
    point(id, "pointermove", 0.6, 0.5, {});
    const tip = document.querySelector(`#${id} .tip`);
    one.tip = tip.hidden ? "" : tip.textContent;
    const ticks = () => all(`#${id} svg > text`).map((each) => each.textContent).join("|");
    const whole = ticks(), reset = document.getElementById(`${id}-reset`);
    point(id, "pointerdown", 0.4, 0.5, { button: 0, buttons: 1 });
    point(id, "pointermove", 0.7, 0.5, { buttons: 1 });
    one.selecting = all(`#${id} .select`).length;
    point(id, "pointerup", 0.7, 0.5, {});
    one.zoomed = ticks() !== whole && !reset.hidden;
    reset.click();
    one.restored = ticks() === whole && reset.hidden;
  }
  choose("metric", "consensus_x");
  said.title = document.querySelector("#curves .title:last-of-type").textContent;
  said.log = document.getElementById("log").checked;
  said.consensus = drawn("curves");
  document.getElementById("seeds").click();
  said.seeds = all("#curves .run").length;
  said.clients = all("#network .client").length;
  said.arrows = all("#network .arc").length;
  said.points = all("#participation circle").length;
  if (document.getElementById("run")) {
    choose("run", "1");
    said.panels = all("[data-run]:not([hidden])").map((each) => each.dataset.run);
  }
  document.getElementById("theme").click();
  said.theme = document.documentElement.dataset.theme;
  said.complaints = complaints;
  const note = document.createElement("pre");
  note.id = "said";
  note.textContent = JSON.stringify(said);
  document.body.append(note);
}, 300));
</script>"""


def browse(folder: Path, tmp_path: Path) -> dict:
    if BROWSER is None:
        pytest.skip("no Chromium here: install chromium to test reports in a browser")
    page = text_of(folder).replace("<head>", "<head>" + WATCH, 1).replace("</body>", HANDS + "</body>")
    (tmp_path / "page.html").write_text(page, encoding="utf-8")
    command = [BROWSER, *FLAGS, f"--user-data-dir={tmp_path}/profile", "--window-size=1100,900", "--dump-dom"]
    address = (tmp_path / "page.html").as_uri()
    shown = subprocess.run([*command, address], capture_output=True, text=True, timeout=120, check=True)
    found = re.search(r'<pre id="said">(.*?)</pre>', shown.stdout, re.S)
    assert found, shown.stderr[-2000:]
    return json.loads(html.unescape(found.group(1)))


def check_chart(said: dict, methods: int) -> None:
    assert said["before"] == said["back"] == methods
    assert said["hidden"] == methods - 1
    assert "k-gt" not in said["left"]
    assert "spod-gt" in said["tip"]
    assert re.search(r"0\.\d", said["tip"])
    assert said["selecting"] == 1
    assert said["zoomed"]
    assert said["restored"]


def test_a_browser_shows_a_run(run, tmp_path):
    said = browse(run, tmp_path)
    assert said["complaints"] == []
    check_chart(said["curves"], 3)
    assert said["title"] == "distance of models from their average"
    assert said["log"]
    assert said["consensus"] == 3
    assert said["seeds"] == 9
    assert said["clients"] == 5
    assert said["arrows"] > 4
    assert said["points"] == said["arrows"] + said["clients"]
    assert said["theme"] in ("dark", "light")


def test_a_browser_shows_a_sweep(swept, tmp_path):
    said = browse(swept, tmp_path)
    assert said["complaints"] == []
    check_chart(said["curves"], 3)
    check_chart(said["sweep"], 3)
    assert set(said["panels"]) == {"1"}
