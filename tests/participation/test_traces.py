"""Traces: arrays and logs say the same, by names or numbers, in rounds or times; what they refuse."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, Literal

import networkx as nx
import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

import spodgt
from spodgt.errors import InvalidInput
from spodgt.experiment import Experiment
from spodgt.network import Network
from spodgt.participation import Trace, TraceFile
from spodgt.peer.process.local_problem import read_capacity
from spodgt.types import Bools
from tests.strategies import SEEDS, networks

RING = Network.ring(3)
CITIES = Network.from_networkx(nx.DiGraph([("lima", "oslo"), ("oslo", "rome"), ("rome", "lima")]))


def tables(availability: Any, rounds: int) -> tuple[Bools, Bools]:
    return availability.computes(range(rounds + 1)), availability.links(range(1, rounds + 1)).pull


def same(one: Any, other: Any, rounds: int) -> None:
    for ours, theirs in zip(tables(one, rounds), tables(other, rounds), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_allclose(one.p, other.p)
    np.testing.assert_allclose(one.p_hat, other.p_hat)


def log_of(network: Network, computes: Bools, links: Bools) -> list[tuple[int, str, str, int]]:
    """(round, receiver, sender, up) of everything, ups and downs; the links of round 0 are down."""
    rows = [
        (k, network.label(i), network.label(i), int(up)) for (k, i), up in np.ndenumerate(computes)
    ]
    for (k, link), up in np.ndenumerate(links):
        assert isinstance(link, int)
        ends = network.label(network.receivers[link]), network.label(network.senders[link])
        rows.append((k + 1, *ends, int(up)))
    return rows


@st.composite
def recordings(draw: st.DrawFn) -> tuple[Network, Bools, Bools]:
    """A network, with names or without, and some rounds in which everybody takes part at least once."""
    network, rounds, seed = draw(networks(least=2, most=5)), draw(st.integers(1, 6)), draw(SEEDS)
    if draw(st.booleans()):
        names = ["n10", "n2", "7", "x y", "ö"][: network.clients]
        network = Network.from_adjacency(network.adjacency, names=names)
    draws = np.random.default_rng(seed)
    computes = draws.random((rounds + 1, network.clients)) < 0.5
    links = draws.random((rounds, network.links)) < 0.5
    computes[draws.integers(rounds + 1, size=network.clients), np.arange(network.clients)] = True
    links[draws.integers(rounds, size=network.links), np.arange(network.links)] = True
    return network, computes, links


# --- laws ----------------------------------------------------------------------------------------------
@given(recordings(), SEEDS)
def test_rounds_intervals_and_events_say_the_same(
    recorded: tuple[Network, Bools, Bools], seed: int
) -> None:
    network, computes, links = recorded
    rounds, expected = len(links), Trace(computes, links).draw(network, 0)
    draws, rows = np.random.default_rng(seed), log_of(network, computes, links)
    table = pd.DataFrame(rows, columns=["round", "receiver", "sender", "up"])
    table = table.iloc[draws.permutation(len(table))]  # the order of rows means nothing
    same(Trace.from_table(table).draw(network, 0), expected, rounds)
    length, begin = 2.5, 1000.0
    when = begin + length * table["round"]
    spans = table.assign(start=when, end=when + length)[table["up"] == 1].drop(
        columns=["round", "up"]
    )
    options: dict[str, Any] = {
        "round_length": length,
        "start": begin,
        "end": begin + length * (rounds + 1),
    }
    same(Trace.from_table(spans, **options).draw(network, 0), expected, rounds)
    events = table.assign(time=when).drop(columns="round")
    same(Trace.from_table(events, **options).draw(network, 0), expected, rounds)


@given(recordings())
def test_a_repeated_trace_is_periodic(recorded: tuple[Network, Bools, Bools]) -> None:
    network, computes, links = recorded
    links = np.concatenate([links[-1:], links])  # round 0 has links from the second pass on
    period = len(computes)
    drawn = Trace(computes, links, repeat=True).draw(network, 0)
    assert drawn.length is None
    whole, carried = tables(drawn, 3 * period)
    for k in range(3 * period):
        np.testing.assert_array_equal(whole[k], computes[k % period])
        assert k == 0 or np.array_equal(carried[k - 1], links[k % period])
    np.testing.assert_allclose(drawn.p, computes.mean(0))


@given(
    st.lists(st.tuples(st.floats(0, 9), st.floats(0, 9)), min_size=1, max_size=6),
    st.floats(0.05, 1),
)
def test_cover_is_the_fraction_of_a_round(spans: list[tuple[float, float]], cover: float) -> None:
    """Against a count of many instants."""
    rows = [{"client": "0", "start": min(span), "end": max(span)} for span in spans]
    rows += [{"client": "1", "start": 0.0, "end": 9.0}]
    trace = Trace.from_table(pd.DataFrame(rows), round_length=1.0, cover=cover, links="always")
    instants = (np.arange(9000) + 0.5) / 1000
    up = np.any([(instants >= min(span)) & (instants < max(span)) for span in spans], axis=0)
    fraction = up.reshape(9, 1000).mean(1)
    sure = np.abs(fraction - cover) > 0.01
    computes = np.asarray(trace.computes)[:, 0]
    np.testing.assert_array_equal(computes[sure], (fraction >= cover)[sure])


# --- numbers -------------------------------------------------------------------------------------------
DATED = {
    "client": ["a", "a", "b"],
    "start": ["2026-03-29 00:00", "2026-03-29 05:00", "2026-03-29 01:00"],
    "end": ["2026-03-29 03:30", "2026-03-29 07:00", None],
}


def dated(dates: Callable[[pd.Series], pd.Series]) -> pd.DataFrame:
    table = pd.DataFrame(DATED)
    return table.assign(start=dates(table["start"]), end=dates(table["end"]))


Unit = Literal["s", "ms", "us", "ns"]


def rounds_of(table: pd.DataFrame) -> np.ndarray[Any, Any]:
    trace = Trace.from_table(table, round_length=1800.0, links="always")
    return np.asarray(trace.computes)


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
@pytest.mark.parametrize("zone", [None, "UTC", "Asia/Kolkata"])
def test_datetime_columns_give_the_rounds_of_the_same_strings(unit: Unit, zone: str | None) -> None:
    def dates(column: pd.Series) -> pd.Series:
        return pd.to_datetime(column).dt.as_unit(unit).dt.tz_localize(zone)

    expected = rounds_of(pd.DataFrame(DATED))
    assert expected.shape == (14, 2)
    np.testing.assert_array_equal(rounds_of(dated(dates)), expected)


def test_datetime_columns_follow_their_zone_through_a_clock_change() -> None:
    """In Berlin the clock skips the hour from 2 to 3: 7 hours on the clock are 6."""

    def text(column: pd.Series) -> pd.Series:
        offsets = {"00:00": "+01:00", "01:00": "+01:00"}
        return column.map(lambda time: time + offsets.get(time[-5:], "+02:00"), na_action="ignore")

    local = dated(lambda column: pd.to_datetime(column).dt.tz_localize("Europe/Berlin"))
    assert rounds_of(local).shape == (12, 2)
    np.testing.assert_array_equal(rounds_of(local), rounds_of(dated(text)))


@pytest.mark.parametrize("unit", ["ms", "us", "ns"])
def test_parquet_logs_with_timestamps_give_the_rounds_of_the_same_strings(
    tmp_path: Path, unit: Unit
) -> None:
    table = dated(lambda column: pd.to_datetime(column).dt.as_unit(unit))
    table.to_parquet(tmp_path / "log.parquet")
    trace = Trace.read(tmp_path / "log.parquet", round_length=1800.0, links="always")
    np.testing.assert_array_equal(np.asarray(trace.computes), rounds_of(pd.DataFrame(DATED)))


def test_columns_of_python_datetimes_give_the_rounds_of_the_same_strings() -> None:
    def dates(column: pd.Series) -> pd.Series:
        return pd.Series(
            [datetime.fromisoformat(t) if t else None for t in column.fillna("")], dtype=object
        )

    np.testing.assert_array_equal(rounds_of(dated(dates)), rounds_of(pd.DataFrame(DATED)))


@pytest.mark.parametrize("unit", ["s", "ms", "us", "ns"])
def test_timedelta_columns_are_read_in_their_own_unit(unit: Unit) -> None:
    seconds = pd.DataFrame(
        {
            "client": ["a", "a", "b"],
            "start": [0.0, 18000.0, 3600.0],
            "end": [12600.0, 25200.0, np.nan],
        }
    )
    times = ["start", "end"]
    durations = seconds.assign(
        **{name: pd.to_timedelta(seconds[name], unit="s").dt.as_unit(unit) for name in times}
    )
    np.testing.assert_array_equal(rounds_of(durations), rounds_of(seconds))


def test_rounds_that_are_dates_are_refused() -> None:
    table = pd.DataFrame({"client": ["a"], "round": pd.to_datetime(["2026-03-29"]), "up": [1]})
    with pytest.raises(InvalidInput, match="round must be numbers, but row 0 of trace table has"):
        Trace.from_table(table, links="always")


def test_a_log_of_devices_with_dates(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text(
        "client,start,end\n"
        "lima,2026-03-01 00:00,2026-03-01 03:00\n"
        "oslo,2026-03-01T01:20:00,2026-03-01T04:00:00Z\n"
        "rome,2026-03-01 02:00+01:00,\n"
    )
    options: dict[str, Any] = {"path": str(path), "round_length": 3600.0, "links": "both-up"}
    drawn = TraceFile(**options).draw(CITIES, 0)
    assert drawn.length == 3
    # lima 0, 1, 2; oslo from 1:20 (two thirds of hour 1); rome from 1:00 to the end of the log
    assert drawn.computes(range(4)).astype(int).tolist() == [
        [1, 0, 0],
        [1, 1, 1],
        [1, 1, 1],
        [0, 1, 1],
    ]
    assert CITIES.receivers.tolist() == [0, 1, 2]
    assert drawn.links(range(1, 4)).pull.astype(int).tolist() == [[1, 1, 1], [1, 1, 1], [0, 0, 1]]
    shorter = TraceFile(**options, cover=0.9, end="2026-03-01 03:00").draw(CITIES, 0)
    assert shorter.computes(range(3)).astype(int).tolist() == [[1, 0, 0], [1, 0, 1], [1, 1, 1]]
    tables_of = {"kind": "trace", **options, "repeat": True, "start": "2026-03-01 00:00"}
    experiment = Experiment.parse({"participation": tables_of})
    assert Experiment.parse(experiment.to_dict()) == experiment
    assert experiment.to_dict()["participation"] == {
        **tables_of,
        "cover": 0.5,
        "computes": "recorded",
    }
    assert experiment.participation.draw(CITIES, 0).length is None


def test_the_example_of_the_docs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs/howto/participation.md").read_text(encoding="utf-8")
    (log,), tables_of = (
        re.findall(r"```csv[^\n]*\n(.*?)```", page, re.DOTALL),
        re.findall(r"```toml\n(.*?)```", page, re.DOTALL),
    )
    (tmp_path / "devices.csv").write_text(log)
    (tmp_path / "mine.toml").write_text(next(text for text in tables_of if "devices.csv" in text))
    monkeypatch.chdir(tmp_path)
    drawn = Experiment.read("mine.toml").participation.draw(CITIES, 0)
    assert drawn.length is None
    assert drawn.computes(range(8)).sum(0).tolist() == [6, 6, 6]


def numbered(table: pd.DataFrame, **numbers: int) -> pd.DataFrame:
    """The table without its last row, its names as numbers."""
    rows = table.iloc[:-1]
    return rows.assign(**{name: rows[name].map(numbers) for name in ("receiver", "sender")})


def test_names_numbers_and_clients() -> None:
    rows = [(k, name, name, 1) for k in range(3) for name in ("a", "b", "c")] + [(1, "b", "a", 1)]
    table = pd.DataFrame(rows, columns=["round", "receiver", "sender", "up"])
    named = Trace.from_table(table, clients=["c", "a", "b"])
    pair = Network.from_adjacency([[0, 1, 0], [0, 0, 1], [1, 1, 0]])  # 1 → 0, 2 → 1, 0 → 2, 1 → 2
    with pytest.raises(InvalidInput, match="link 1 → 0 never works"):
        named.draw(pair, 0)
    free = Trace(named.computes, named.links, p_hat=0.5, names=named.names, ends=named.ends).draw(
        pair, 0
    )
    assert free.links(range(1, 3)).pull.astype(int).tolist() == [[0, 0, 0, 1], [0, 0, 0, 0]]
    from_one = Network.from_networkx(nx.DiGraph([(1, 2), (2, 3), (3, 1)]))  # names are 1, 2, 3
    counted = numbered(table, a=1, b=2, c=3)
    assert Trace.from_table(counted, links="always").draw(from_one, 0).length == 2
    with pytest.raises(InvalidInput, match="'0', which the network lacks: its clients are 1 to 3"):
        Trace.from_table(numbered(table, a=0, b=1, c=2), links="always").draw(from_one, 0)


def test_a_log_of_links_alone_and_a_log_of_clients_alone() -> None:
    contacts = pd.DataFrame(
        {
            "time": [0, 0, 0, 2, 4],
            "receiver": [1, 2, 0, 0, 0],
            "sender": [0, 1, 2, 2, 2],
            "up": [1, 1, 1, 0, 1],
        }
    )
    drawn = Trace.from_table(contacts, round_length=1.0, end=5.0, computes="always").draw(RING, 0)
    assert drawn.computes(range(5)).all()
    assert drawn.links(range(1, 5)).pull[:, 0].tolist() == [True, False, False, True]
    with pytest.raises(InvalidInput, match="never computes; add rows, or use computes='always'"):
        Trace.from_table(contacts, round_length=1.0, end=5.0).draw(RING, 0)
    devices = pd.DataFrame({"round": [0, 1, 1, 1], "client": [0, 0, 1, 2], "up": True})
    with pytest.raises(
        InvalidInput, match="never works; add rows, or use links='both-up' or 'always'"
    ):
        Trace.from_table(devices).draw(RING, 0)
    assert Trace.from_table(devices, links="both-up").draw(RING, 0).links(range(1, 2)).pull.all()


def test_a_repeated_trace_runs_on(tmp_path: Path) -> None:
    path = tmp_path / "who.csv"
    path.write_text("round,client,up\n0,0,1\n0,1,1\n1,2,1\n")
    trace = Trace.read(path, links="always", repeat=True)
    result = spodgt.train("spod-gt", spodgt.Quadratic.random(3, 2), RING, trace, rounds=7)
    counts = result.participation.query("kind == 'client'")["gradients"]
    assert counts.tolist() == [4, 4, 4]
    assert "never" not in result.summary().to_string()


def test_peers_replay_their_own_column(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    path.write_text("client,start,end\nlima,0,2\nlima,3,4\noslo,1,4\n")
    section = {"kind": "trace", "path": str(path), "round_length": 1.0}
    lima, oslo = read_capacity(section, 0, 7, "lima"), read_capacity(section, 0, 3, "oslo")
    assert [lima.computes(k) for k in range(6)] == [True, True, False, True, True, True]
    assert (lima.p, oslo.p) == (0.75, 0.75)
    with pytest.raises(InvalidInput, match="never lets client rome compute; add its rows"):
        read_capacity(section, 0, 9, "rome")
    with pytest.raises(InvalidInput, match="speed=3 is not a key of compute"):
        read_capacity({**section, "speed": 3}, 0, 7, "lima")


# --- edges ---------------------------------------------------------------------------------------------
ONES = np.ones((4, 3))


def csv(text: str, **options: Any) -> Callable[[Path], Any]:
    def read(folder: Path) -> Any:
        (folder / "log.csv").write_text(text)
        return Trace.read("log.csv", **options).draw(RING, 0)

    return read


def arrays(computes: Any, links: Any, **options: Any) -> Callable[[Path], Any]:
    return lambda _: Trace(computes, links, **options).draw(RING, 0)


BAD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "ragged": (
        arrays([[1, 1, 1], [1]], ONES[:1]),
        "computes must be an array of 0 and 1, or of false and true, got [[1, 1, 1], [1]].",
    ),
    "text": (
        arrays([["up", "down", "up"]] * 2, ONES[:1]),
        "computes must be an array of 0 and 1, or of false and true, "
        "got [['up', 'down', 'up'], ['up', 'down', 'up']].",
    ),
    "nan": (
        arrays(ONES, np.full((3, 3), np.nan)),
        "links must be an array of 0 and 1, or of false and true, got nan.",
    ),
    "halves": (
        arrays(ONES / 2, ONES[:3]),
        "computes must be an array of 0 and 1, or of false and true, got 0.5.",
    ),
    "never computes": (
        arrays(ONES * [1, 0, 1], ONES[:3]),
        "the trace must let every client take part, but client 1 never computes; "
        "leave it out of the network or record it for longer.",
    ),
    "never works": (
        arrays(ONES, ONES[:3] * [1, 1, 0]),
        "the trace must let every link take part, but link 1 → 2 never works; "
        "leave it out of the network or record it for longer.",
    ),
    "no round 0": (
        arrays(ONES, ONES),
        "computes must have one round more than links (round 0 has no links), got 4 and 4.",
    ),
    "repeat without round 0": (
        arrays(ONES, ONES[:3], repeat=True),
        "computes must have as many rounds as links (from the second pass on round 0 has links), "
        "got 4 and 3.",
    ),
    "a table that is none": (
        lambda _: Trace.from_table(5),  # type: ignore[arg-type]
        "table must be a pandas table, got 5 (DataFrame constructor not properly called!).",
    ),
    "ends of others": (
        arrays(ONES, ONES[:3], names=(0, 1, 2), ends=[[0, 9]] * 3),
        "ends must be (links, 2) receivers and senders, each the place of one of the 3 names, "
        "got [[0, 9], [0, 9], [0, 9]].",
    ),
    "one name twice": (
        arrays(ONES, ONES[:3], names=(0, 0, 1)),
        "names must differ from each other, got (0, 0, 1); rename one.",
    ),
    "nothing recorded": (
        arrays("always", "always"),
        "the trace must record clients or links, got neither; use spodgt.Always().",
    ),
    "path 3": (lambda _: Trace.read(3), "path must be text in quotes, got 3; use path='file.csv'."),  # type: ignore[arg-type]
    "directory": (
        Trace.read,
        "trace {folder} cannot be read: [Errno 21] Is a directory: '{folder}'; give a CSV or Parquet file.",
    ),
    "round 10^11": (
        csv("round,client,up\n100000000000,0,1\n"),
        "trace log.csv has 1e+11 rounds of 2 clients and links, more than 2,147,483,648 entries in all; "
        "use longer rounds or a part of it.",
    ),
    "client 10^11": (
        csv("round,client,up\n1,100000000000,1\n"),
        "trace log.csv has client '100000000000', which the network lacks: its clients are 0 to 2; "
        "number them so, or give clients, a list of their names in that order.",
    ),
    "receiver 0.5": (
        csv("round,receiver,sender,up\n0,0.5,0.5,1\n"),
        "trace log.csv has client '0.5', which the network lacks: its clients are 0 to 2; "
        "number them so, or give clients, a list of their names in that order.",
    ),
    "round 0.5": (
        csv("round,client,up\n0.5,0,1\n"),
        "round must be whole numbers of at least 0, but row 0 of trace log.csv has '0.5'; correct it.",
    ),
    "round -1": (
        csv("round,client,up\n0,0,1\n-1,0,1\n"),
        "round must be whole numbers of at least 0, but row 1 of trace log.csv has '-1'; correct it.",
    ),
    "round in words": (
        csv("round,client,up\n0,0,1\nsoon,0,1\n"),
        "round must be numbers, but row 1 of trace log.csv has 'soon'; correct it.",
    ),
    "up 2": (
        csv("round,client,up\n0,0,2\n"),
        "up must be 1 or 0, but row 0 of trace log.csv has '2'; correct it.",
    ),
    "nobody": (
        csv("round,receiver,sender,up\n0,0,,1\n"),
        "trace log.csv must name a client or both ends of a link, but row 0 does not.",
    ),
    "no rows": (
        csv("round,client,up\n"),
        "trace log.csv must have rows, got none; record something.",
    ),
    "empty": (
        csv(""),
        "trace log.csv cannot be read: No columns to parse from file; give a CSV or Parquet file.",
    ),
    "two clocks": (
        csv("round,time,client,up\n0,0,0,1\n"),
        "trace log.csv must have one of round, start and time, got several; drop one.",
    ),
    "no end": (
        csv("client,start\n0,0\n", round_length=1.0),
        "trace log.csv must have columns start, client, end, but lacks end.",
    ),
    "no round_length": (
        csv("client,start,end\n0,0,1\n"),
        "trace log.csv has times, so round_length is required, got none; use round_length = 60.0.",
    ),
    "round_length of rounds": (
        csv("round,client,up\n0,0,1\n", round_length=1.0),
        "round_length is for a log with times, and trace log.csv has rounds; drop it.",
    ),
    "round_length 0": (
        csv("client,start,end\n0,0,1\n", round_length=0),
        "round_length must be a number above 0, got 0; use round_length=60.0.",
    ),
    "cover": (
        csv("client,start,end\n0,0,1\n", round_length=1.0, cover=0),
        "cover must be in (0, 1], got 0; use cover=0.5.",
    ),
    "too short": (
        csv("client,start,end\n0,0,1\n", round_length=5.0),
        "trace log.csv is shorter than one round of 5.0; use a shorter one.",
    ),
    "end before start": (
        csv("client,start,end\n0,0,9\n0,5,3\n", round_length=1.0),
        "end must not be before start, but row 1 of trace log.csv has '3'; correct it.",
    ),
    "time in words": (
        csv("client,start,end\n0,noon,9\n", round_length=1.0),
        "start must be numbers, or dates, but row 0 of trace log.csv has 'noon'; correct it.",
    ),
    "links would be ignored": (
        csv("round,receiver,sender,up\n1,1,0,1\n", links="always"),
        "trace log.csv has rows of links, which links='always' would ignore; drop it.",
    ),
    "unknown rule": (
        csv("round,client,up\n0,0,1\n", links="never"),
        "links='never' is not known; choose from recorded, both-up, always.",
    ),
    "unknown option": (
        csv("round,client,up\n0,0,1\n", speed=1),
        "speed=1 is not a key of TraceFile; choose from path, round_length, start, end, cover, clients, "
        "computes, links, repeat.",
    ),
    "client that clients lacks": (
        csv("round,client,up\n0,a,1\n", clients=["b"]),
        "trace log.csv has client 'a', which clients lacks; add it to clients.",
    ),
    "link that the network lacks": (
        csv("round,receiver,sender,up\n1,0,1,1\n", computes="always"),
        "trace log.csv has link 1 → 0, which the network lacks; add it to the network.",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_traces_are_refused_in_one_sentence(
    case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    build, sentence = BAD[case]
    with pytest.raises(InvalidInput) as caught:
        build(tmp_path)
    assert str(caught.value) == sentence.replace("{folder}", str(tmp_path))


@pytest.mark.parametrize(
    "made", [spodgt.Bernoulli([0.5, 0.0, 1.0], 1.0), spodgt.Bernoulli(1.0, [1.0, 0.0, 1.0])]
)
def test_names_stand_in_messages_about_p(made: Any) -> None:
    with pytest.raises(InvalidInput, match=r"client oslo has 0|link lima → oslo has 0"):
        made.draw(CITIES, 0)


@pytest.mark.parametrize("p", ["0.5", True, None, 1j, [[0.5], [0.5, 0.5]], 10**400, {1, 2}])
def test_probabilities_are_numbers(p: Any) -> None:
    with pytest.raises(InvalidInput, match="p must be numbers in"):
        spodgt.Bernoulli(p).draw(RING, 0)
    with pytest.raises(InvalidInput, match="p_hat must be numbers in"):
        spodgt.Bernoulli(0.5, p).draw(RING, 0)


def test_a_participation_every_so_many_rounds_has_a_limit() -> None:
    with pytest.raises(InvalidInput, match="rounds must be a whole number"):
        spodgt.EveryK(10**30)


def test_a_trace_without_links_is_told_what_to_add() -> None:
    with pytest.raises(InvalidInput, match="links is missing; add links='both-up'"):
        Trace(np.ones((3, 2)))  # type: ignore[call-arg]
