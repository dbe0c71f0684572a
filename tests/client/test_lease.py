from __future__ import annotations

import fcntl
import os
from contextlib import suppress
from pathlib import Path

import pytest

from npgxd.client.lease import LeaseGone, StoreNotVisible, below, hold, store_root
from npgxd.wire.messages import LeaseOffer, Welcome
from tests.client.fake_daemon import STORE_ID, VIEW, is_locked

LEASE = "d" * 32
OFFER = LeaseOffer(LEASE, f"leases/{LEASE}", f"views/{VIEW}")


def welcome(path: object) -> Welcome:
    return Welcome(version=1, instance="1" * 32, session="2" * 32, daemon="d", store_id=STORE_ID, store_path=str(path))


def test_the_store_is_where_the_daemon_says_or_where_it_is_mounted(store, tmp_path):
    assert store_root(welcome(store), {}) == store
    assert store_root(welcome("/nowhere"), {"NPGXD_STORE": str(store)}) == store


@pytest.mark.parametrize("what", ["absent", "other", "link", "pipe", "directory", "huge", "relative"])
def test_another_store_is_not_taken_for_the_daemons(store, tmp_path, what):
    root, mark = store, store / "STORE_ID"
    if what == "relative":
        root = "store"
    else:
        mark.rename(tmp_path / "mark")
    if what == "other":
        mark.write_text("6" * 32 + "\n")
    elif what == "link":
        mark.symlink_to(tmp_path / "mark")
    elif what == "pipe":
        os.mkfifo(mark)
    elif what == "directory":
        mark.mkdir()
    elif what == "huge":
        mark.write_text(STORE_ID + " " * 100_000 + "x")
    if what == "huge":
        assert store_root(welcome(root), {}) == root  # the id is read, the rest is not
        return
    with pytest.raises(StoreNotVisible) as caught:
        store_root(welcome(root), {})
    assert "NPGXD_STORE" in caught.value.hint


def test_an_offered_lease_is_locked_for_life_and_gives_the_view(store):
    (store / "leases" / LEASE).touch(mode=0o444)
    lease = hold(store, OFFER)
    assert lease.view == store / "views" / VIEW
    assert is_locked(store / "leases" / LEASE)
    assert fcntl.fcntl(lease.descriptor, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY


def test_several_processes_may_hold_one_lease_file(store):
    (store / "leases" / LEASE).touch()
    with (store / "leases" / LEASE).open() as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert hold(store, OFFER).view == store / "views" / VIEW
    assert is_locked(store / "leases" / LEASE)


def test_a_lease_file_that_is_gone_already_is_gone_not_invisible(store):
    with pytest.raises(LeaseGone):
        hold(store, OFFER)


def test_a_lease_that_the_daemon_takes_back_is_gone(store):
    (store / "leases" / LEASE).touch()
    with (store / "leases" / LEASE).open() as collector:
        fcntl.flock(collector, fcntl.LOCK_EX)
        with pytest.raises(LeaseGone):
            hold(store, OFFER)


def test_a_lease_that_was_removed_before_it_was_locked_is_gone(store, monkeypatch):
    path = store / "leases" / LEASE
    path.touch()
    lock = fcntl.flock

    def remove_first(descriptor: int, how: int) -> None:
        path.unlink()
        lock(descriptor, how)

    monkeypatch.setattr(fcntl, "flock", remove_first)
    with pytest.raises(LeaseGone, match="was removed"):
        hold(store, OFFER)


@pytest.mark.parametrize("what", ["link", "pipe", "directory", "linked parent"])
def test_only_a_plain_lease_file_is_locked(store, tmp_path, what):
    path = store / "leases" / LEASE
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / LEASE).touch()
    if what == "link":
        path.symlink_to(elsewhere / LEASE)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "directory":
        path.mkdir()
    elif what == "linked parent":
        path.parent.rmdir()
        path.parent.symlink_to(elsewhere)
    with pytest.raises(StoreNotVisible):
        hold(store, OFFER)
    assert [opened for opened in opened_by_this_process() if opened.is_relative_to(tmp_path.resolve())] == []


def opened_by_this_process():
    for descriptor in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # that of this look itself, or of another thread
            yield descriptor.readlink()


@pytest.mark.parametrize("path", ["", "/", "..", "a/../b", "/etc/passwd", "./views", "views/", "views//x", "absent"])
def test_nothing_outside_the_store_is_named(store, path):
    with pytest.raises(StoreNotVisible):
        below(store, path)
