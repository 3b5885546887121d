"""Work in stages: every task once, no stage before the one ahead of it is done, whatever the threads do."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spodgt import compiled
from spodgt.kernels.stages import Work, in_stages


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 5), max_size=12), st.integers(1, 4))
def test_all_tasks_of_a_stage_come_before_those_of_the_next(sizes: list[int], team: int) -> None:
    seen: list[tuple[int, int]] = []

    def stages() -> Iterator[tuple[int, Work]]:
        for number, size in enumerate(sizes):
            yield size, lambda task, number=number: seen.append((number, task))  # type: ignore[misc]

    in_stages(team, stages())
    assert [number for number, _ in seen] == [n for n, size in enumerate(sizes) for _ in range(size)]
    assert sorted(seen) == [(n, task) for n, size in enumerate(sizes) for task in range(size)]


def test_a_thread_that_is_slow_does_less() -> None:
    done: dict[int, int] = {}

    def work(_: int) -> None:
        me = threading.get_ident()
        done[me] = done.get(me, 0) + 1
        time.sleep(0 if me == threading.main_thread().ident else 0.2)

    in_stages(2, iter([(20, work)]))
    assert sum(done.values()) == 20
    assert all(count <= 2 for me, count in done.items() if me != threading.main_thread().ident)


def test_nobody_waits_for_a_thread_that_never_begins(monkeypatch: pytest.MonkeyPatch) -> None:
    class Never:
        def submit(self, *_: object) -> Never:
            return self

        def cancel(self) -> None:
            pass

    monkeypatch.setattr(compiled, "_pool", lambda _: Never())
    seen: list[int] = []
    in_stages(3, iter([(4, seen.append), (2, seen.append)]))
    assert seen == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize("team", [1, 3])
def test_the_first_error_ends_all_stages(team: int) -> None:
    seen: list[int] = []

    def fails(task: int) -> None:
        if task == 1:
            raise ValueError("here")

    threads = torch.get_num_threads()
    with pytest.raises(ValueError, match="here"):
        in_stages(team, iter([(3, fails), (3, seen.append)]))
    assert not seen
    assert torch.get_num_threads() == threads


def test_ctrl_c_while_the_main_thread_waits_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    begun, later = threading.Event(), list[int]()

    def first(_: int) -> None:
        if threading.current_thread() is threading.main_thread():
            begun.wait(5)  # the other one has a task, too
        else:
            begun.set()
            time.sleep(0.3)

    def interrupted(_: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(compiled, "time", type("", (), {"sleep": staticmethod(interrupted)}))
    with pytest.raises(KeyboardInterrupt):
        in_stages(2, iter([(2, first), (50, later.append)]))
    time.sleep(0.6)
    assert not later


def test_an_error_between_stages_is_raised() -> None:
    def stages() -> Iterator[tuple[int, Work]]:
        yield 2, lambda _: None
        raise ValueError("between")

    with pytest.raises(ValueError, match="between"):
        in_stages(2, stages())


def test_a_thread_leaves_the_core_of_the_one_that_woke_it(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[int]] = []
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5, 6}, raising=False)
    monkeypatch.setattr("os.sched_setaffinity", lambda _, cores: asked.append(cores), raising=False)
    monkeypatch.setattr(compiled, "core", lambda: 5)
    in_stages(2, iter([(3, lambda _: time.sleep(0.05))]))
    assert asked == [{3, 6}, {3, 5, 6}]
    asked.clear()
    compiled.leave(-1)  # the system does not say
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {5}, raising=False)
    compiled.leave(5)  # there is no other
    assert not asked


def test_threads_stay_free_to_run_anywhere() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("the system does not say")
    before = os.sched_getaffinity(0)
    compiled.leave(compiled.core())
    assert os.sched_getaffinity(0) == before
