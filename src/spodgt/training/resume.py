"""Resuming: whether a folder holds the same experiment, and where its runs continue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from numpy.typing import ArrayLike

from spodgt.code_references import is_reference, map_texts
from spodgt.errors import InvalidInput
from spodgt.experiment.run_options import LIMITS
from spodgt.experiment.toml import Table, checksum
from spodgt.problems.protocols import HasIdentity
from spodgt.runtimes.loop import Stop
from spodgt.runtimes.world import Run
from spodgt.training.checkpoint import MAX_STATE_BYTES, MethodLog
from spodgt.types import Availability

_MAX_SAMPLED_DRAWS = 2**22  # draws of clients and links that identify a participation
_MAX_SAMPLED_ROUNDS = 256


# --- where runs continue -------------------------------------------------------------------------
class ResumeGroup(NamedTuple):
    """Runs of one method that continue in the same round, side by side."""

    runs: list[int]
    is_new: bool  # whether they start at round 0, without checkpoints


def group_by_round(log: MethodLog, runs: Sequence[Run], stop: Stop) -> list[ResumeGroup]:
    """The runs of a method that are not finished, in groups of the same round.

    Raises:
        InvalidInput: for a run to be extended if its final state was too large to be kept.
    """
    new_runs: list[int] = []
    by_round: dict[int, list[int]] = {}
    for number, run in enumerate(runs):
        if log.is_finished(number, stop):
            continue
        checkpoint = log.checkpoints.get(number)
        if checkpoint is None:
            new_runs.append(number)
            continue
        if not set(run.algorithm.traits.state) <= checkpoint.state.keys():
            raise InvalidInput(
                f"{log.label} cannot be extended: its states take more than "
                f"{MAX_STATE_BYTES // 2**20} MiB, so they were not kept at its end; "
                "run it again with the new limits in another folder."
            )
        by_round.setdefault(checkpoint.k, []).append(number)
    groups = [ResumeGroup(by_round[k], False) for k in sorted(by_round)]
    if new_runs:
        groups.append(ResumeGroup(new_runs, True))
    return groups


def update_if_newer(log: MethodLog, number: int, seed: int, part: MethodLog) -> None:
    """Take over the log of one run, unless `log` has a later checkpoint of it."""
    saved = part.checkpoints.get(0)
    current = log.checkpoints.get(number)
    if saved is None:
        return
    if current is None or saved.k > current.k or (saved.k == current.k and 0 in part.endings):
        log.update(number, seed, part)


# --- whether it is the same experiment -----------------------------------------------------------
def identify(runs: Sequence[Run]) -> Table:
    """Checksums of what a config only names: data, networks in files, recorded participation."""
    settings: Table = {}
    data = {}
    participation = []
    links = []
    for run in runs:
        if isinstance(run.problem, HasIdentity):
            problem_settings, arrays = run.problem.identity
            settings = settings or problem_settings
            data.update({id(array): array for array in arrays})  # seeds share most of them
        participation += _sample_participation(run.availability)
        network = run.network
        links += [network.receivers, network.senders, network.a, network.b]
        if network.w is not None:
            links.append(network.w)
    return {
        "links": checksum(*links),
        "problem's settings": settings,
        "data": checksum(*data.values()),
        "who takes part": checksum(*participation),
    }


def _sample_participation(availability: Availability) -> list[ArrayLike]:
    """The active clients and links of the first rounds; of a recorded trace, of all rounds."""
    rounds = availability.length
    if rounds is None:
        draws_per_round = len(availability.p) + len(availability.p_hat)
        rounds = min(max(_MAX_SAMPLED_DRAWS // draws_per_round, 1), _MAX_SAMPLED_ROUNDS)
    span = range(1, 1 + rounds)
    links = availability.links(span)
    return [availability.computes(span), links.pull, links.pushing]


def is_extension(old: Table, new: Table, folder: str) -> bool:
    """Whether an experiment is that of a folder with later limits.

    Args:
        old: the facts of the experiment in the folder.
        new: the facts of this experiment.

    Raises:
        InvalidInput: if it is another experiment, or one with earlier limits.
    """
    old = _without_folders(old)
    new = _without_folders(new)
    old_run = dict(old["run"])
    new_run = dict(new["run"])
    old_limits = {key: old_run.pop(key, None) for key in LIMITS}  # these may grow
    new_limits = {key: new_run.pop(key, None) for key in LIMITS}
    if not ("evaluations" in old_run and "evaluations" in new_run):  # the default in one of them
        old_run.pop("evaluations", None)
        new_run.pop("evaluations", None)
    difference = _find_difference({**old, "run": old_run}, {**new, "run": new_run})
    if difference is not None:
        raise InvalidInput(
            f"{folder} holds another run: {difference}; use the same settings or another folder."
        )
    for key in LIMITS:
        before = old_limits[key]
        now = new_limits[key]
        if now is not None and now != before and (before is None or now < before):
            raise InvalidInput(
                f"{folder} holds another run: {key} is {before!r} there and {now!r} here; "
                "a run can be extended but not shortened, so use a later end or another folder."
            )
    return old_limits != new_limits


def _without_folders(facts: Table) -> Table:
    """Facts in which code of the user is named by its file, without the folder of the file.

    A run folder holds a copy of the code; its content is compared by its checksum.
    """
    renamed: Table = {}
    for key, value in facts.items():
        renamed[_file_name(key)] = map_texts(value, _file_name)
    renamed.get("problem", {}).pop("folder", None)
    return renamed


def _file_name(text: str) -> str:
    """`problem.py:build` of a text such as `folder/problem.py:build`; other texts unchanged."""
    if not is_reference(text) or ".py:" not in text:
        return text
    prefix = "source of " if text.startswith("source of ") else ""
    where, _, name = text.removeprefix(prefix).rpartition(":")
    return f"{prefix}{Path(where).name}:{name}"


def _find_difference(old: object, new: object, path: str = "") -> str | None:
    """The first key in which two tables differ, with both values; None if they are equal."""
    if not isinstance(old, Mapping) or not isinstance(new, Mapping):
        return None if old == new else f"{path} is {old!r} there and {new!r} here"
    for key in dict.fromkeys([*old, *new]):  # keys that a user sets precede checksums
        inner = f"{path}.{key}" if path else key
        difference = _find_difference(old.get(key), new.get(key), inner)
        if difference is not None:
            return difference
    return None
