"""Publishing while the disk is slow, or fails, without the loop: a disk that does not answer holds up what is published, and nothing else."""

from __future__ import annotations

import errno
import os
import threading
from typing import TYPE_CHECKING

import pytest

from npgxd.daemon.compiling import dispatch
from npgxd.store.disk import Disk, explained
from npgxd.wire.states import ClientState, Reason
from tests.daemon.test_coordinator import ready

if TYPE_CHECKING:
    from pathlib import Path

PATIENCE_S = 60.0


class Slow(Disk):
    """A disk that does not answer where an fsync is below one directory, until it is let go; it writes down what it is asked for."""

    def __init__(self, below: Path) -> None:
        super().__init__()
        self.below = below
        self.asked, self.go = threading.Event(), threading.Event()
        self.seen: list[tuple[str, Path]] = []
        self.fails, self.number = False, errno.EIO

    def step(self, operation: str, path: Path) -> None:
        self.seen.append((operation, path))
        if operation == "fsync" and path.is_relative_to(self.below):
            self.asked.set()
            assert self.go.wait(PATIENCE_S), "the disk was waited for by whoever was to let it go"
            if self.fails:
                with explained(operation, path):  # as the disk module does it for a real one
                    raise OSError(self.number, os.strerror(self.number), str(path))

    def at(self, operation: str, path: Path) -> int:
        """When it was asked for this."""
        return self.seen.index((operation, path))


@pytest.fixture
def slow(parts) -> Slow:
    """A disk that is slow with the names of kernels."""
    parts.stores.state.disk = Slow(parts.stores.state.kernels)
    return parts.stores.state.disk


@pytest.mark.parametrize("place", ["staging", "packages", "kernels"])
def test_while_the_disk_is_waited_for_others_are_answered_and_nothing_is_told_that_is_not_on_it(parts, place) -> None:
    ready(parts, 16)
    slow = parts.stores.state.disk = Slow(parts.stores.state.path / place)
    late = parts.submit(parts.session(), 32)
    parts.drive(slow.asked.is_set)
    assert parts.dispatcher.tick(0.0) > 0.0, "the loop has nothing to do for it, and rests"
    known = parts.submit(parts.session(), 16)
    assert (known.result.state, known.result.reason) == (ClientState.INSTALLED, Reason.HIT)
    assert late.result is None
    assert parts.stores.kernels.find_many(list(late.needs)) == {}
    assert parts.dispatcher.busy == 1
    slow.go.set()
    parts.drive(lambda: late.result is not None and not parts.dispatcher.busy)
    assert (late.result.state, late.result.reason) == (ClientState.INSTALLED, Reason.COMPILED)


def test_bytes_reach_the_disk_before_a_name_is_given_and_names_before_a_kernel_is_listed(parts, slow) -> None:
    taken = parts.submit(parts.session(), 16)
    parts.drive(slow.asked.is_set)
    (need,) = taken.needs
    kernels = parts.stores.state.kernels
    (final,) = kernels.glob("??/*")
    assert parts.stores.kernels.arriving == {final.name}
    assert parts.stores.kernels.count() == 0
    slow.go.set()
    parts.drive(lambda: taken.result is not None)
    assert parts.stores.kernels.find(need).id == final.name
    assert parts.stores.kernels.arriving == set()
    manifest = next(path for operation, path in slow.seen if operation == "fsync" and path.name == "manifest.json")
    package = next(path for operation, path in slow.seen if operation == "rename" and path.suffix == ".run")
    acts = [("rename", package), ("fsync", package.parent), ("write", manifest), ("fsync", manifest), ("rename", final)]
    order = [slow.at(*act) for act in (*acts, ("fsync", kernels), ("fsync", final.parent))]
    assert order == sorted(order)


def test_an_error_of_the_disk_is_told_as_it_is_and_the_kernel_is_tried_again(parts, slow, caplog) -> None:
    slow.fails = True
    taken = parts.submit(parts.session(), 32)
    parts.drive(slow.asked.is_set)
    slow.go.set()
    parts.drive(lambda: "cannot publish: cannot fsync" in caplog.text)
    slow.fails = False
    parts.drive(lambda: taken.result is not None)
    assert (taken.result.state, taken.result.reason) == (ClientState.INSTALLED, Reason.COMPILED)
    assert "Input/output error" in caplog.text


@pytest.mark.parametrize(
    ("number", "reason", "words"),
    [(errno.EIO, Reason.COMPILE_FAILED, "Input/output error"), (errno.ENOSPC, Reason.NO_SPACE, "No space left on device")],
)
def test_a_disk_that_goes_on_failing_ends_in_a_reason_that_names_it(parts, slow, number, reason, words) -> None:
    slow.fails, slow.number = True, number
    slow.go.set()
    taken = parts.submit(parts.session(), 32)
    parts.drive(lambda: taken.result is not None)
    assert (taken.result.state, taken.result.reason) == (ClientState.DEGRADED, reason)
    assert words in taken.result.failures[0].reason


def test_a_stop_waits_for_the_disk_and_what_was_made_is_there(parts, slow, monkeypatch) -> None:
    taken = parts.submit(parts.session(), 32)
    parts.drive(slow.asked.is_set)
    wait = parts.dispatcher._results.await_disk

    def answers(limit_s: float) -> bool:
        slow.go.set()
        return wait(limit_s)

    monkeypatch.setattr(parts.dispatcher._results, "await_disk", answers)
    parts.dispatcher.stop()
    assert parts.dispatcher.busy == 0
    assert set(parts.stores.kernels.find_many(list(taken.needs))) == set(taken.needs)


def test_a_stop_does_not_wait_for_ever_and_what_was_accepted_is_taken_up_again(parts, slow, monkeypatch, caplog) -> None:
    monkeypatch.setattr(dispatch, "DISK_S", 0.0)
    taken = parts.submit(parts.session(), 32)
    parts.drive(slow.asked.is_set)
    parts.dispatcher.stop()
    slow.go.set()
    assert "the disk does not answer: 1 job is compiled again" in caplog.text
    assert parts.stores.kernels.find_many(list(taken.needs)) == {}
    assert [entry.round for entry in parts.stores.rounds.pending()] == [taken.id]
