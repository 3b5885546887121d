"""Speeches by speaker, their windows, the transformer that continues them, and how packages are imported."""

from __future__ import annotations

import io
import json
import math
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.testing import assert_close

import spodgt
from spodgt.errors import InvalidData, InvalidInput
from spodgt.experiment import Experiment
from spodgt.problems import speeches
from spodgt.problems.data import IID, BySpeaker, import_, load, load_texts
from spodgt.problems.data.text_corpora import ALPHABET, encode, read_speeches, to_json_lines
from spodgt.problems.models.transformer import next_character, transformer

SMALL: dict[str, Any] = {"clients": 3, "context": 8, "width": 8, "depth": 1, "test_samples": 20}


def small(**changes: Any) -> spodgt.problems.Text:
    return speeches(**(SMALL | changes))


# --- laws --------------------------------------------------------------------------------------------
def test_a_character_sees_only_what_came_before() -> None:
    model = transformer(12, len(ALPHABET), width=8, depth=2, heads=2)
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, len(ALPHABET), (2, 12)))
    other = codes.clone()
    other[:, 7:] = 0
    assert_close(model(codes)[:, :7], model(other)[:, :7], rtol=0, atol=1e-6)
    assert not torch.allclose(model(codes)[:, 8:], model(other)[:, 8:])


def test_every_client_is_one_speaker_and_every_seed_deals_alike() -> None:
    problem = small()
    texts = load_texts("sotu-small", 8)
    assert problem.clients == 3
    for client in range(3):
        assert set(texts.speakers[problem.client_indices[client]]) == {client}
    assert problem.names[:1] == texts.names[:1]
    assert np.array_equal(problem.draw(5).client_indices.indices, problem.client_indices.indices)


def test_other_partitions_take_speakers_for_labels() -> None:
    mixed = small(partition=IID())
    first, second = mixed.draw(0), mixed.draw(1)
    speakers = load_texts("sotu-small", 8).speakers
    assert len(set(speakers[first.client_indices[0]])) == 43
    assert not np.array_equal(first.client_indices.indices, second.client_indices.indices)


def test_nothing_that_is_tested_was_trained_on() -> None:
    """The end of every speaker's text is held out; windows overlap in the one character they predict."""
    texts = load_texts("sotu-small", 32)
    assert texts.train.shape[1] == 33
    assert set(texts.test_speakers) == set(texts.speakers) == set(range(43))
    for who in (0, 42):
        train, test = texts.train[texts.speakers == who], texts.test[texts.test_speakers == who]
        assert torch.equal(train[1:, 0], train[:-1, -1])
        assert torch.equal(train[-1, -1], test[0, 0])
        assert len(test) == round(0.1 * (len(train) + len(test)))


def test_perplexity_is_the_exponential_of_the_loss() -> None:
    problem = small()
    found = problem.evaluate(problem.start(0))
    assert set(found.metrics) == {"perplexity"}
    assert_close(found.metrics["perplexity"], found.loss.exp())
    assert float(found.loss[0]) == pytest.approx(
        math.log(len(ALPHABET)), rel=0.2
    )  # it knows nothing yet


def test_the_loss_is_torchs_over_all_positions() -> None:
    outputs, targets = torch.randn(4, 5, 7), torch.randint(0, 7, (4, 5))
    whole = torch.nn.functional.cross_entropy(outputs.flatten(0, 1), targets.flatten())
    assert_close(next_character(outputs, targets), whole)
    assert_close(next_character(outputs[None], targets[None]), whole[None])


# --- numbers -----------------------------------------------------------------------------------------
def test_training_lowers_perplexity() -> None:
    methods = [
        spodgt.method("spod-gt-memory", step_size=0.01, adam=True),
        spodgt.method("spod-gt", step_size=0.5),
    ]
    result = spodgt.compare(
        methods,
        small(),
        spodgt.Network.ring(3),
        spodgt.Bernoulli(0.7, 0.7),
        rounds=40,
        evaluations=2,
    )
    for _, rows in result.frame.groupby("method"):
        assert rows["perplexity"].iloc[-1] < 0.6 * rows["perplexity"].iloc[0]
    assert "accuracy" not in result.frame or result.frame["accuracy"].isna().all()


def test_a_config_names_it() -> None:
    text = {"kind": "text", "context": 8, "width": 8, "depth": 1, "test_samples": 20}
    experiment = Experiment.parse({"problem": text, "network": {"clients": 3}})
    assert experiment.to_dict()["problem"]["partition"] == {"kind": "by-speaker"}
    assert Experiment.parse(experiment.to_dict()) == experiment
    draw = experiment.draw(0)
    assert draw.problem.clients == 3
    dealt = Experiment.parse(
        {"problem": text | {"partition": {"kind": "iid"}}, "network": {"clients": 3}}
    )
    assert dealt.to_dict()["problem"]["partition"] == {"kind": "iid"}


@pytest.mark.parametrize("name", ["speeches", "shakespeare"])
def test_the_examples_are_read(name: str) -> None:
    experiment = Experiment.read(Path(__file__).parents[2] / "examples" / f"{name}.toml")
    assert experiment.to_dict()["problem"]["kind"] == "text"
    assert experiment.network.clients >= 10


# --- edges -------------------------------------------------------------------------------------------
def test_characters_that_are_not_in_the_alphabet() -> None:
    text = "“Don’t”  —  ünder\t1 %\x02"
    assert "".join(ALPHABET[code] for code in encode(text)) == '"Don\'t" - nder 1 %'


def test_mistakes_are_named(tmp_path: Path) -> None:
    mistakes: list[tuple[Callable[[], object], str]] = [
        (
            lambda: small(clients=44),
            r"^clients must be at most 43, the number of speakers, but is 44",
        ),
        (
            lambda: small(context=10**6),
            r"^context=1000000 is longer than the text of .* in sotu-small; use a smaller",
        ),
        (lambda: small(width=9), r"^heads must divide width=9, got 2"),
        (lambda: load("sotu-small"), r"^dataset 'sotu-small' holds texts, not images"),
        (
            lambda: load_texts("sotu", 8, tmp_path),
            r"sotu.jsonl must be in .*; run `npm pack @stdlib",
        ),
        (
            lambda: spodgt.problems.data.get("sotu", tmp_path),
            r"^dataset 'sotu' has no home to get it from; run",
        ),
        (
            lambda: Experiment.parse({"problem": {"partition": {"kind": "by-speaker"}}}),
            r'partition "by-speaker" is for texts',
        ),
    ]
    for make, message in mistakes:
        with pytest.raises(InvalidInput, match=message):
            make()


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "sotu.jsonl"
    path.write_text('{"speaker": "A", "text": "a"}\n{"speaker": "B"}\n')
    with pytest.raises(
        InvalidData, match=r"sotu.jsonl must have lines .*, got another in line 2; do"
    ):
        read_speeches(path, "do")
    path.write_bytes(to_json_lines({"A": "ä", "B": "b"}))
    assert read_speeches(path, "do") == {"A": "ä", "B": "b"}


# --- import ------------------------------------------------------------------------------------------
def archive(path: Path, files: dict[str, str]) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text.encode())
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def test_addresses_are_imported_by_speaker(tmp_path: Path) -> None:
    files = {
        f"package/data/{year}.json": json.dumps(
            {"year": year, "name": name, "text": f"{name} in {year}. " * 9}
        )
        for year, name in ((1790, "Ann"), (1791, "Ann"), (1792, "Bob"))
    }
    source = archive(tmp_path / "p.tgz", files | {"package/package.json": '{"name": "p"}'})
    folder = import_("sotu", source, tmp_path / "data")
    texts = load_texts("sotu", 8, tmp_path / "data")
    assert folder == tmp_path / "data" / "sotu"
    assert texts.names == ("Ann", "Bob")
    with pytest.raises(
        InvalidData, match=r"must hold the files \*.json of its package, got none with text"
    ):
        import_("sotu", archive(tmp_path / "q.tgz", {"a.txt": "a"}), tmp_path / "data")


def test_roles_are_imported_by_play(tmp_path: Path) -> None:
    play = "A Play\n\nHAM.\n{}\n\n[Enter a ghost.]\n\nFirst Ghost.\n{}\n\nHAM.\nOnce more, once more.\n"
    files = {
        "s/shksprdata/texts/hamlet_gut.txt": play.format("To be. " * 60, "Boo! " * 80),
        "s/shksprdata/texts/sonnets_gut.txt": play.format("No. " * 90, "No. " * 90),
        "s/miltondata/texts/comus_gut.txt": play.format("No. " * 90, "No. " * 90),
    }
    folder = import_("shakespeare", archive(tmp_path / "s.tar.gz", files), tmp_path / "data")
    said = read_speeches(folder / "shakespeare.jsonl", "do")
    assert set(said) == {"Hamlet: Ham", "Hamlet: First Ghost"}
    assert said["Hamlet: Ham"].endswith("Once more, once more.\n")
    assert "Enter" not in "".join(said.values())


def test_the_partition_alone() -> None:
    parts = BySpeaker().split(torch.tensor([1, 0, 1, 2]), 2, 0)
    assert [part.tolist() for part in parts] == [[1], [0, 2]]
