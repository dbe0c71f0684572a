from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING

import pytest

from npgxd.wire import memo_turn
from npgxd.wire.memo_turn import turn

if TYPE_CHECKING:
    from pathlib import Path


def never() -> bool:
    return False


@pytest.fixture
def lock(tmp_path: Path) -> str:
    return str(tmp_path / "tree.lock")


def is_free(lock: str) -> bool:
    """Whether one who does not wait would have the turn."""
    with turn(lock, lambda: True) as mine:
        return mine._lock is not None


def test_one_at_a_time_has_the_turn(lock: str) -> None:
    with turn(lock, never):
        assert not is_free(lock)
    assert is_free(lock)


def test_whoever_waits_goes_on_when_the_turn_is_given(lock: str) -> None:
    had, waiting = threading.Event(), threading.Event()

    def wait() -> None:
        def asked() -> bool:
            waiting.set()
            return False

        with turn(lock, asked):
            had.set()

    with turn(lock, never):
        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        assert waiting.wait(30)
        assert not had.is_set()
    assert had.wait(30)
    thread.join()


def test_whoever_is_silent_is_not_waited_for_and_whoever_is_at_work_is(lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    now, paused = 0.0, 0
    monkeypatch.setattr(memo_turn.time, "monotonic", lambda: now)
    works_until = 20.0
    with turn(lock, never) as mine:

        def pause(seconds: float) -> None:
            nonlocal now, paused
            now, paused = now + seconds, paused + 1
            if now < works_until:
                os.utime(lock, ns=(paused, paused))

        monkeypatch.setattr(memo_turn.time, "sleep", pause)
        with turn(lock, never):
            assert works_until - 0.1 < now - memo_turn.SILENCE_S < works_until + 0.1
        works_until, now = 1e9, 0.0
        with turn(lock, never):
            assert memo_turn.LONGEST_S <= now < memo_turn.LONGEST_S + 0.1
        mtime = os.stat(lock).st_mtime_ns  # noqa: PTH116
        now += memo_turn.SHOW_S
        mine.show()
        assert os.stat(lock).st_mtime_ns != mtime  # noqa: PTH116


def test_where_nobody_can_lock_nobody_waits(tmp_path: Path, lock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memo_turn.time, "sleep", lambda _: pytest.fail("it waited"))
    os.symlink("elsewhere", tmp_path / "link.lock")  # noqa: PTH211
    for place in (tmp_path / "nowhere" / "x.lock", tmp_path / "nul\0", tmp_path, tmp_path / "link.lock"):
        with turn(str(place), never) as mine:
            mine.show()
    with turn(lock, never), monkeypatch.context() as patched:
        own = os.geteuid()
        patched.setattr(os, "geteuid", lambda: own + 1)  # a lock of another user holds nobody up
        with turn(lock, never):
            pass
    monkeypatch.setattr(memo_turn.fcntl, "flock", _no_locks)
    with turn(lock, never):
        pass


def _no_locks(*_: object) -> None:
    raise OSError(37, "No locks available")


def test_a_child_that_was_forked_meanwhile_holds_nobody_up(lock: str) -> None:
    read, write = os.pipe()
    with turn(lock, never):
        child = os.fork()
        if child == 0:
            os.read(read, 1)
            os._exit(0)
    try:
        assert is_free(lock)
    finally:
        os.write(write, b"x")
        os.waitpid(child, 0)
        os.close(read)
        os.close(write)


def test_the_turn_ends_with_an_error_too(lock: str) -> None:
    with pytest.raises(KeyError), turn(lock, never):
        raise KeyError
    assert is_free(lock)
