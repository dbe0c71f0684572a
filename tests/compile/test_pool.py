"""The pool as a poll loop sees it: slots, one descriptor a job, nothing leaked, and no wait."""

from __future__ import annotations

import os
import resource
import select
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

from npgxd.compile import (
    JobFailed,
    JobProgress,
    JobResult,
    JobSpec,
    JobStarted,
    KeyFailed,
    MadeKernel,
    MadePackage,
    ending,
    processes,
    prune_jobs,
)
from npgxd.compile.job import pack_event, unpack_event
from npgxd.errors import CompileError
from npgxd.wire.states import KeyOutcome
from tests.compile.conftest import Bench, family_of, until
from tools.cann_sim.records import elementwise

if TYPE_CHECKING:
    from npgxd.compile.job import WorkerEvent

ADD = elementwise("Add", (4, 64))


@pytest.mark.parametrize(
    "event",
    [
        JobStarted(1, 2, ("a", "b")),
        JobProgress(1, 2, ("Add",)),
        JobResult(None, (), (KeyFailed("k", KeyOutcome.LEFT_OUT, "why", transient=True),), 1.5),
        JobResult(MadePackage("d", "n", "s"), (MadeKernel("k", "s", 0.5),), (), 1.5, 0, "tail", ("note",), ("stuck",)),
    ],
)
def test_an_event_arrives_as_it_was_sent(event: WorkerEvent) -> None:
    assert unpack_event(pack_event(event)) == event


def test_a_spec_arrives_as_it_was_written(bench: Bench) -> None:
    spec = bench.spec([ADD], super_kernel=(("a", "b"),))
    assert JobSpec.unpack(spec.pack()) == spec


def test_no_more_jobs_run_than_there_are_slots(bench: Bench) -> None:
    bench.cann.order("Add", "hang")
    jobs = [bench.start(bench.spec([ADD], job_id=name)) for name in ("one", "two")]
    assert bench.pool.free == 0
    assert bench.pool.jobs == tuple(jobs)
    with pytest.raises(CompileError, match="all 2 workers are busy"):
        bench.start(bench.spec([ADD], job_id="three"))
    jobs[0].cancel()
    bench.finish(jobs[0])
    assert bench.pool.free == 1
    assert bench.pool.jobs == (jobs[1],)


def test_a_job_id_is_used_once(bench: Bench) -> None:
    bench.spec([ADD]).job_dir.mkdir()
    with pytest.raises(CompileError, match="is there already"):
        bench.start(bench.spec([ADD]))


def test_a_job_that_does_nothing_new_wakes_nobody(bench: Bench) -> None:
    bench.cann.order("Add", "hang")
    job = bench.start(bench.spec([ADD]))
    until(lambda: any(event.current == ("Add",) for event in job.receive() if isinstance(event, JobProgress)), "it compiles")
    assert job.receive() == []
    assert job.pid in {process.pid for process in family_of(job)}
    job.cancel()


def test_jobs_leak_no_descriptor(bench: Bench) -> None:
    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    bench.cann.order("Add", "crash")
    for number in range(3):
        job = bench.start(bench.spec([ADD], job_id=f"job{number}"))
        bench.finish(job)
        job.close()
        job.close()
    assert descriptors() == before


def test_after_its_last_event_a_job_tells_nothing_more(bench: Bench) -> None:
    job = bench.start(bench.spec([ADD]))
    bench.finish(job)
    assert job.ended
    assert job.receive() == []
    job.cancel()
    assert bench.pool.next_check() is None


def test_stopping_the_pool_ends_every_job_and_tells_their_ends(bench: Bench) -> None:
    bench.cann.order("Add", "hang_hard")
    jobs = [bench.start(bench.spec([ADD], job_id=name)) for name in ("one", "two")]
    told = bench.pool.stop_all("the daemon stops")
    assert [job for job, _ in told] == jobs
    for _, events in told:
        assert isinstance(events[-1], JobResult | JobFailed)
        assert [failed.reason for failed in events[-1].failed] == ["the daemon stops"]
    assert bench.pool.jobs == ()


def test_a_job_that_is_closed_while_it_runs_is_ended(bench: Bench) -> None:
    bench.cann.order("Add", "hang_hard")
    job = bench.start(bench.spec([ADD]))
    until(lambda: "opc" in {process.name for process in family_of(job)}, "opc hangs")
    job.close()
    assert family_of(job) == []


def test_a_worker_that_says_nonsense_is_ended(bench: Bench) -> None:
    bench.cann.order("Add", "hang")
    job = bench.start(bench.spec([ADD]))
    job._channel._frames.feed((3).to_bytes(4, "big") + b"\xc1\xc1")  # the beginning of a frame that is no event
    last = bench.finish(job)[-1]
    assert isinstance(last, JobFailed)
    assert "something that is no event" in last.reason
    assert family_of(job) == []


def test_the_last_words_of_a_worker_that_fails_at_birth_are_told(bench: Bench) -> None:
    spec = bench.spec([ADD])
    job = bench.pool.start(spec)
    (spec.job_dir / "job.msgpack").write_bytes(b"\x80")
    try:
        last = bench.finish(job)[-1]
    finally:
        job.close()
    if isinstance(last, JobFailed):  # else the worker had read its job before
        assert "exit status 1 and no result: KeyError" in last.reason


def test_polling_a_job_is_polling_one_descriptor(bench: Bench) -> None:
    job = bench.start(bench.spec([ADD]))
    number = job.fileno()
    poller = select.poll()
    poller.register(number, select.POLLIN)
    while not job.ended:
        assert poller.poll(60_000)
        job.receive()
        assert job.fileno() == number
    os.fstat(number)


def test_a_worker_that_the_kernel_does_not_let_go_is_named_and_not_waited_for(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ending, "FORCE_S", 0.2)
    monkeypatch.setattr(processes, "send", lambda process, number: True)  # as if in uninterruptible sleep
    bench.pool._slack_s = 0.1
    bench.cann.order("Add", "hang")
    job = bench.start(bench.spec([ADD]))
    monkeypatch.setattr(job._process, "kill", lambda: None)
    worker = psutil.Process(job.pid)
    worker.suspend()
    job.cancel("no longer wanted")
    try:
        last = bench.finish(job)[-1]
        assert isinstance(last, JobFailed)
        assert any(f"pid {job.pid}" in name for name in last.stuck)
        assert job.spec.job_dir.joinpath("owner.json").exists() or not job.spec.job_dir.joinpath("work").exists()
    finally:
        monkeypatch.undo()
        worker.kill()
        job._process.wait()


def test_a_job_without_a_place_cannot_be_started_and_says_why(bench: Bench) -> None:
    bench.jobs_dir.rmdir()
    with pytest.raises(CompileError, match=r"cannot start a worker: No such file or directory") as raised:
        bench.start(bench.spec([ADD]))
    assert raised.value.data["transient"]
    assert bench.pool.free == 2


def test_a_job_that_lacks_a_descriptor_is_taken_back_whole(bench: Bench) -> None:
    bench.run(bench.spec([ADD]))
    highest = max(int(path.name) for path in Path("/proc/self/fd").iterdir())
    fillers: list[int] = []  # earlier tests may have left free numbers below the highest
    while not fillers or fillers[-1] < highest:
        fillers.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
    before = {path.name for path in Path("/proc/self/fd").iterdir()}
    refused = 0
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    for more in range(1, 32):
        spec = bench.spec([ADD], job_id=f"job{more}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, before)) + more, hard))
        try:
            bench.start(spec)
            break
        except CompileError as error:
            assert "cannot start a worker: Too many open files" in error.message  # noqa: PT017
            refused += 1
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert {path.name for path in Path("/proc/self/fd").iterdir()} == before
    for filler in fillers:
        os.close(filler)
    assert refused >= 5
    assert prune_jobs(bench.jobs_dir, keep=0, max_bytes=0, running={spec.job_id}).kept == 0
    assert len(list(bench.jobs_dir.iterdir())) <= 1
