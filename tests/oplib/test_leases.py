from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import stat
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import StoreError
from tests.store.made import names
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from tests.oplib.conftest import Holders, OpLibrary


def test_fc41_a_lease_lives_as_long_as_its_process_however_that_ends(oplib: OpLibrary, holders: Holders) -> None:
    view = oplib.view("a", "b")
    for end in (signal.SIGKILL, signal.SIGTERM, signal.SIGINT):
        lease = oplib.offer(view)
        process = holders.hold(oplib.path(lease))
        assert oplib.leases.confirm(lease.lease) == view.digest
        assert oplib.leases.is_held(lease.lease)
        assert oplib.leases.release_dead() == []
        assert oplib.leases.views_in_use() == {view.digest}
        process.send_signal(end)
        process.communicate()
        assert not oplib.leases.is_held(lease.lease)
        assert [gone.lease for gone in oplib.leases.release_dead()] == [lease.lease]
        assert not oplib.path(lease).exists()
        assert oplib.leases.views_in_use() == set()
        assert oplib.leases.count() == 0


def test_a_lease_file_is_readable_by_all_and_says_whose_it_is(oplib: OpLibrary) -> None:
    old = os.umask(0o077)
    try:
        lease = oplib.offer(oplib.view("a"))
    finally:
        os.umask(old)
    path = oplib.path(lease)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert len(lease.lease) == 32
    assert json.loads(path.read_text()) == {
        "view": lease.view,
        "session": "s1",
        "uid": 1000,
        "pid": 1,
        "started": 1.0,
        "boot": "this-boot",
    }


def test_an_offer_is_held_until_it_is_confirmed_or_its_session_ends(oplib: OpLibrary) -> None:
    view = oplib.view("a")
    mine, other = oplib.offer(view, "s1"), oplib.offer(view, "s2")
    assert oplib.leases.release_dead() == []
    assert oplib.drop_unleased() == []
    oplib.leases.session_ended("s1")
    assert [gone.lease for gone in oplib.leases.release_dead()] == [mine.lease]
    assert oplib.leases.views_in_use() == {view.digest}
    oplib.leases.session_ended("s2")
    assert [gone.lease for gone in oplib.leases.release_dead()] == [other.lease]
    assert oplib.drop_unleased() == [view.digest]


def test_a_session_that_ends_after_its_process_took_the_lock_keeps_the_lease(oplib: OpLibrary, holders: Holders) -> None:
    lease = oplib.offer(oplib.view("a"))
    holders.hold(oplib.path(lease))
    oplib.leases.session_ended("s1")
    assert oplib.leases.release_dead() == []
    assert oplib.leases.views_in_use() == {lease.view}


def test_a_lease_without_a_lock_is_not_confirmed(oplib: OpLibrary, holders: Holders) -> None:
    lease = oplib.offer(oplib.view("a"))
    with pytest.raises(StoreError, match="nobody holds"):
        oplib.leases.confirm(lease.lease)
    with pytest.raises(StoreError, match="not offered"):
        oplib.leases.confirm("f" * 32)
    holders.hold(oplib.path(lease))
    assert oplib.leases.confirm(lease.lease) == lease.view
    with pytest.raises(StoreError, match="not offered"):
        oplib.leases.confirm(lease.lease)


def test_a_client_that_locks_while_its_lease_is_removed_is_not_confirmed(oplib: OpLibrary) -> None:
    """The file was opened before, and locked after, the removal: the lock is on a file without a name."""
    lease = oplib.offer(oplib.view("a"))
    fd = os.open(oplib.path(lease), os.O_RDONLY)
    oplib.leases.session_ended("s1")
    oplib.leases.release_dead()
    fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    with pytest.raises(StoreError):
        oplib.leases.confirm(lease.lease)
    assert not oplib.leases.is_held(lease.lease)
    os.close(fd)


def test_leases_outlive_a_restart_of_the_daemon_and_so_do_their_views(oplib: OpLibrary, holders: Holders) -> None:
    held, ended = oplib.view("a", "b"), oplib.view("c")
    lease, other = oplib.offer(held), oplib.offer(ended)
    process = holders.hold(oplib.path(lease))
    second = holders.hold(oplib.path(other))
    oplib.leases.confirm(lease.lease)
    oplib.leases.confirm(other.lease)
    holders.kill(second)
    done = oplib.restart()
    assert (done.leases, done.views, done.problems) == (1, 1, ())
    assert held.digest in oplib.views
    assert ended.digest not in oplib.views
    reader = Reader("Ascend910B3")
    assert reader.load(held.path).loaded == 2
    assert reader.verify() == ()
    holders.kill(process)
    assert oplib.restart().views == 1
    assert oplib.views.count() == 0


def test_an_offer_that_nobody_locked_ends_with_the_daemon_that_made_it(oplib: OpLibrary) -> None:
    oplib.offer(oplib.view("a"))
    done = oplib.restart()
    assert (done.leases, done.views) == (1, 1)


def test_fc42_a_neighbours_view_stays_when_one_of_two_processes_ends(oplib: OpLibrary, holders: Holders) -> None:
    shared = oplib.view("a", "b")
    alone = oplib.view("b", "c")
    a, b = oplib.offer(shared), oplib.offer(shared, "s2")
    only_a = oplib.offer(alone)
    first, second = holders.hold(oplib.path(a)), holders.hold(oplib.path(b))
    third = holders.hold(oplib.path(only_a))
    for lease in (a, b, only_a):
        oplib.leases.confirm(lease.lease)
    holders.kill(first)
    holders.kill(third)
    assert oplib.drop_unleased() == [alone.digest]
    reader = Reader("Ascend910B3")
    assert reader.load(shared.path).loaded == 2
    assert reader.verify() == ()
    assert second.poll() is None


def test_nothing_is_removed_while_a_held_lease_cannot_be_read(oplib: OpLibrary, holders: Holders) -> None:
    views = {oplib.view("a").digest, oplib.view("b").digest}
    lease = oplib.offer(oplib.view("a"))
    process = holders.hold(oplib.path(lease))
    oplib.leases.confirm(lease.lease)
    oplib.path(lease).write_text("{torn")
    oplib.restart()
    assert oplib.leases.views_in_use() == views
    assert oplib.views.count() == 2
    holders.kill(process)
    assert sorted(oplib.drop_unleased()) == sorted(views)


def test_a_lock_that_cannot_be_tried_counts_as_held(oplib: OpLibrary, monkeypatch: pytest.MonkeyPatch) -> None:
    lease = oplib.offer(oplib.view("a"))
    oplib.leases.session_ended("s1")
    real = os.open

    def exhausted(path: object, *rest: object, **more: object) -> int:
        if str(path).endswith(lease.lease):
            raise OSError(errno.EMFILE, "Too many open files")
        return real(path, *rest, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(os, "open", exhausted)
    assert oplib.leases.is_held(lease.lease)
    assert oplib.leases.release_dead() == []
    monkeypatch.undo()
    assert len(oplib.leases.release_dead()) == 1


def test_odd_things_among_the_leases_are_removed_without_following_them(oplib: OpLibrary, tmp_path) -> None:
    (tmp_path / "kept").write_text("x")
    leases = oplib.house.state.leases
    (leases / "link").symlink_to(tmp_path / "kept")
    (leases / "dir").mkdir()
    (leases / "dir" / "file").write_text("x")
    os.mkfifo(leases / "pipe")
    (leases / "garbage").write_text("[1]")
    assert oplib.leases.views_in_use() == set()
    assert oplib.leases.release_dead() == []
    assert names(leases) == []
    assert (tmp_path / "kept").exists()
