from __future__ import annotations

import select
import threading
from typing import TYPE_CHECKING

import pytest

from npgxd.daemon.beside import Beside
from npgxd.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterator

PATIENCE_S = 60.0


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside()
    yield made
    made.close()


def test_what_is_begun_goes_before_what_can_wait_each_in_its_order_and_an_end_waits_for_all() -> None:
    beside, hold, done = Beside(), threading.Event(), list[str]()
    held = beside.begin(lambda: hold.wait(PATIENCE_S))
    beside.later(lambda: done.append("later"), "one")
    beside.later(lambda: done.append("last"), "two")
    first = beside.begin(lambda: done.append("first"))
    second = beside.begin(lambda: done.append("second"))
    assert not held.done()
    hold.set()
    first.result(PATIENCE_S)
    second.result(PATIENCE_S)
    beside.close()
    assert done == ["first", "second", "later", "last"]


def test_whoever_polls_is_woken_by_what_was_begun_alone(beside: Beside) -> None:
    beside.later(lambda: None, "nothing")
    beside.begin(lambda: None).result(PATIENCE_S)
    assert select.select([beside], [], [], PATIENCE_S)[0] == [beside]
    beside.rest()
    beside.rest()
    assert select.select([beside], [], [], 0)[0] == []


def test_an_error_is_told_to_who_began_it_and_the_next_act_is_done(beside: Beside) -> None:
    def fail() -> None:
        raise StoreError("no such luck")

    failed = beside.begin(fail)
    with pytest.raises(StoreError, match="no such luck"):
        failed.result(PATIENCE_S)
    assert beside.begin(lambda: 7).result(PATIENCE_S) == 7


@pytest.mark.parametrize("error", [StoreError("cannot"), OSError(5, "cannot"), ZeroDivisionError("cannot")])
def test_what_was_put_off_and_fails_is_in_the_log_and_the_next_act_is_done(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise error

    beside, done = Beside(), list[str]()
    beside.later(fail, "the tree")
    beside.later(lambda: done.append("another"), "another")
    beside.close()
    assert done == ["another"]
    assert "the tree" in caplog.text
    assert "cannot" in caplog.text


def test_an_end_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    beside, hold = Beside(), threading.Event()
    beside.later(lambda: hold.wait(PATIENCE_S), "what hangs")
    beside.close(limit_s=0.0)
    assert "did not answer" in caplog.text
    hold.set()


def test_where_no_thread_may_be_started_what_is_begun_is_done_at_once(
    beside: Beside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    done = list[str]()
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert beside.begin(lambda: 7).result(0) == 7
    assert select.select([beside], [], [], 0)[0] == [beside]
    beside.later(lambda: done.append("later"), "nothing")
    assert done == ["later"]
    assert "can't start new thread" in caplog.text
    monkeypatch.undo()
    assert beside.begin(threading.current_thread).result(PATIENCE_S).name == "disk"
