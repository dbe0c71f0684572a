"""A disk that does not answer is told: once in the log, and in what people ask for while it lasts."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path

import pytest

from npgxd.daemon.keeping.disk_watch import CALM_S, SLOW_S, DiskWatch
from npgxd.store.under_way import UnderWay
from tests.daemon.test_publishing import Slow


@pytest.fixture
def clock() -> list[float]:
    return [100.0]


@pytest.fixture
def watched(parts, clock) -> tuple[DiskWatch, UnderWay]:
    disk = parts.stores.state.disk = type(parts.stores.state.disk)()
    disk.under_way = UnderWay(lambda: clock[0])
    return DiskWatch(parts.stores.state, lambda: clock[0]), disk.under_way


def test_a_disk_that_answers_is_nothing_to_tell(watched, clock, caplog) -> None:
    watch, under_way = watched
    with under_way.act("fsync", Path("/state/a")):
        clock[0] += SLOW_S / 2
        watch.look()
        assert watch.describe(clock[0]) == {"slow": False, "slow_s": 0.0, "waits_s": SLOW_S / 2, "waits_for": ""}
    assert caplog.text == ""


def test_a_disk_that_does_not_answer_is_told_once_with_what_waits_and_once_when_it_answers_again(watched, clock, caplog) -> None:
    watch, under_way = watched
    caplog.set_level(logging.INFO)
    for _ in range(3):  # slow with one act after the other
        with under_way.act("fsync", Path("/state/a")):
            clock[0] += 20.0
            watch.look()
            told = watch.describe(clock[0])
            assert (told["slow"], told["waits_s"], told["waits_for"]) == (True, 20.0, "fsync /state/a")
        watch.look()
        assert watch.describe(clock[0])["slow"], "it is not over between two acts"
    assert told["slow_s"] == 60.0
    clock[0] += CALM_S
    watch.look()
    watch.look()
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "does not answer: fsync /state/a has taken 20 s until now" in caplog.records[0].message
    assert "answers again: it was slow for 60 s" in caplog.records[1].message
    assert not watch.describe(clock[0])["slow"]


def test_a_disk_that_answers_again_while_it_is_asked_about_is_still_described(watched, clock, monkeypatch) -> None:
    watch, _ = watched
    known = iter([clock[0]])
    monkeypatch.setattr(DiskWatch, "_slow_since", property(lambda _watch: next(known, None)), raising=False)
    told = watch.describe(clock[0] + 7.0)
    assert (told["slow"], told["slow_s"]) == (True, 7.0)


def test_the_thread_looks_by_itself_and_ends(watched, clock, caplog, monkeypatch) -> None:
    monkeypatch.setattr("npgxd.daemon.keeping.disk_watch.LOOK_S", 0.01)
    watch, under_way = watched
    with under_way.act("fsync", Path("/state/a")):
        clock[0] += SLOW_S
        watch.begin()
        assert watch._thread is not None
        while not caplog.records:
            watch._thread.join(0.01)
    watch.close()
    assert not watch._thread.is_alive()


@pytest.mark.parametrize(("passes_s", "told"), [(SLOW_S - 1.0, True), (3600.0, False)])
def test_a_daemon_that_was_stopped_does_not_blame_the_disk(watched, clock, caplog, monkeypatch, passes_s, told) -> None:
    class Passing(threading.Event):
        turns = 0

        def wait(self, timeout: float | None = None) -> bool:
            clock[0] += passes_s
            self.turns += 1
            return self.turns > 2

    watch, under_way = watched
    monkeypatch.setattr(watch, "_end", Passing())
    with under_way.act("fsync", Path("/state/a")):
        watch._work()
    assert bool(caplog.records) is told


def test_compiled_kernels_that_wait_for_the_disk_are_shown_as_such_and_not_as_being_compiled(parts) -> None:
    slow = parts.stores.state.disk = Slow(parts.stores.state.kernels)
    taken = parts.submit(parts.session(), 16, 32)
    parts.drive(slow.asked.is_set)
    (job,) = parts.dispatcher.describe(0.0)["jobs"]
    assert (job["stage"], job["keys"], job["left"]) == ("publishing", 2, 2)
    now = slow.under_way.longest().since + SLOW_S
    told = parts.explainer.explain(taken.id, None, now)
    assert (
        told["why"] == "its kernels are compiled, and are being put into the store, but the disk does not answer: npgxctl doctor"
    )
    assert {each["state"] for each in told["waits_for"]} == {"publishing"}
    assert parts.explainer.explain(next(iter(taken.needs)), None, now)["state"] == "publishing"
    json.dumps(told)
    slow.go.set()
    parts.drive(lambda: taken.result is not None and not parts.dispatcher.busy)
    assert parts.dispatcher.describe(0.0)["jobs"] == []
