"""Jobs from start to result on a simulated CANN: what is compiled, what is refused, and with which words."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from npgxd.compile import Job, JobEnding, JobProgress, JobResult, JobStarted, KeyFailed, Seen
from npgxd.compile.directory import JobDirectory
from npgxd.compile.memory_kills import oom_kills
from npgxd.toolchain.flags import CompilerFlags
from npgxd.wire.states import KeyOutcome
from tests.compile.conftest import compiler, family_of, until
from tools.cann_sim import Costs
from tools.cann_sim.records import elementwise, many, matmul, reduce, tensor

if TYPE_CHECKING:
    from tests.compile.conftest import Bench

ADD = elementwise("Add", (4, 64))
MUL = elementwise("Mul", (4, 64))
MATMUL = matmul(16, 64, 128)


def only(failed: tuple[KeyFailed, ...]) -> KeyFailed:
    (one,) = failed
    return one


def test_every_record_becomes_a_staged_kernel_and_nothing_else_stays(bench: Bench) -> None:
    spec = bench.spec([*many(12), reduce("ReduceMean", (4, 8), (1,))])
    job = bench.start(spec)
    events = bench.finish(job)
    result = events[-1]
    assert isinstance(result, JobResult)
    assert result.failed == ()
    assert result.exit_code == 0
    assert [kernel.key for kernel in result.kernels] == [item.key for item in spec.items]
    assert all((bench.staging / kernel.staged / "manifest.json").is_file() for kernel in result.kernels)
    assert all(kernel.cost_s > 0 for kernel in result.kernels)
    assert result.package is not None
    assert (bench.staging / result.package.staged).is_file()
    assert result.package.name.startswith("static_kernel_")
    assert result.stuck == ()
    (run,) = bench.cann.runs()
    assert len(run.ops) == 13
    assert not spec.job_dir.exists()
    job.close()
    assert list(bench.staging.iterdir()) == []


def test_the_compiler_is_told_soc_jobs_and_to_follow_each_record(bench: Bench) -> None:
    spec = bench.spec([ADD], jobs=3, super_kernel=(("stream-fusion", "1"),))
    events = bench.finish(bench.start(spec))
    started = next(event for event in events if isinstance(event, JobStarted))
    directory = JobDirectory(spec.job_dir)
    assert started.argv == (
        *(str(bench.cann.op_compiler), "-p", str(directory.records), "-v", "Ascend910B3", "-j", "3", "-o", str(directory.out)),
        *("-f", "true", "--enable_super_kernel", "--super_kernel_options", "stream-fusion=1"),
    )
    assert started.pid == started.pgid
    (run,) = bench.cann.runs()
    assert run.cwd == str(directory.work) != str(directory.records)


def test_progress_counts_kernels_and_names_the_ops_at_work(bench: Bench) -> None:
    bench.cann.order("Mul", "hang")
    job = bench.start(bench.spec([ADD, MUL, MATMUL]))
    seen: list[JobProgress] = []
    while not any(event.done == 2 and event.current == ("Mul",) for event in seen):
        seen += [event for event in job.receive() if isinstance(event, JobProgress)]
        assert not job.ended
    assert {event.total for event in seen} == {3}
    job.cancel()
    bench.finish(job)


def test_files_are_named_by_op_type_and_key_never_by_a_client(bench: Bench) -> None:
    bench.run(bench.spec([ADD]))
    (run,) = bench.cann.runs()
    assert [op.file[:10] for op in run.ops] == ["00000_Add_"]


def test_a_batch_with_bad_ops_keeps_the_good_ones(bench: Bench) -> None:
    bench.cann.order("Add", "fail", contains='"shape":[8,64]')
    bench.cann.order("Mul", "leave_out")
    bench.cann.order("Sub", "opc_killed")
    described = [ADD, elementwise("Add", (8, 64)), MUL, elementwise("Sub", (4, 64)), MATMUL]
    spec = bench.spec(described)
    result = bench.run(spec)
    keys = [item.key for item in spec.items]
    assert {kernel.key for kernel in result.kernels} == {keys[0], keys[4]}
    failed = {one.key: one for one in result.failed}
    assert failed[keys[1]].outcome is KeyOutcome.FAILED
    assert "does not fit the unified buffer" in failed[keys[1]].reason
    assert not failed[keys[1]].transient
    assert failed[keys[2]].outcome is KeyOutcome.LEFT_OUT
    by_hand = oom_kills() is not None  # else that cannot be told on this machine
    assert failed[keys[3]].outcome is (KeyOutcome.FAILED if by_hand else KeyOutcome.OUT_OF_MEMORY)
    assert "killed by signal 9" in failed[keys[3]].reason
    assert failed[keys[3]].transient
    kept = JobDirectory(spec.job_dir)
    assert any("does not fit" in log.read_text() for log in kept.compile_log.iterdir())
    assert (spec.job_dir / "op_compiler.out").is_file()
    assert not kept.records.exists()
    assert not kept.out.exists()


def test_a_lone_record_that_does_not_compile_fails_for_the_compilers_reason(bench: Bench) -> None:
    bench.cann.order("Add", "fail")
    result = bench.run(bench.spec([ADD]))
    failed = only(result.failed)
    assert (result.exit_code, failed.outcome, failed.transient) == (1, KeyOutcome.FAILED, False)
    assert "does not fit the unified buffer" in failed.reason


def test_an_op_without_implementation_says_so(bench: Bench) -> None:
    failed = only(bench.run(bench.spec([elementwise("NoSuchOperator", (4,))])).failed)
    assert "NoSuchOperator" in failed.reason
    assert (failed.outcome, failed.transient) == (KeyOutcome.UNSUPPORTED, False)


def test_a_run_that_dies_says_where_it_was_with_each_kernel(bench: Bench) -> None:
    bench.cann.set_costs(Costs(per_op_s=0.05))
    bench.cann.order("Mul", "crash", contains='"shape":[64,64]')
    spec = bench.spec([elementwise("Mul", (16 * size, 64)) for size in (1, 2, 4, 32)], jobs=1)  # the largest is compiled first
    failed = {one.key: one for one in bench.run(spec).failed}
    assert {(one.outcome, one.narrow) for one in failed.values()} == {(KeyOutcome.CRASHED, True)}
    seen = [failed[item.key].seen for item in spec.items]
    assert seen == [Seen.UNTOUCHED, Seen.UNTOUCHED, Seen.WORKING, Seen.FINISHED]


@pytest.mark.parametrize(("kind", "outcome"), [("oom_kill", KeyOutcome.OUT_OF_MEMORY), ("no_space", KeyOutcome.NO_SPACE)])
def test_what_is_about_the_node_accuses_no_kernel(bench: Bench, kind: str, outcome: KeyOutcome) -> None:
    bench.cann.order("Add", kind)
    assert {(one.outcome, one.narrow) for one in bench.run(bench.spec([ADD, MUL])).failed} == {(outcome, False)}


def test_a_run_that_is_ended_at_its_deadline_names_what_was_at_work(bench: Bench) -> None:
    bench.cann.order("Mul", "hang")
    spec = bench.spec([ADD, MUL, MATMUL], deadline_s=3.0)
    failed = {one.key: one for one in bench.run(spec).failed}
    assert {(one.outcome, one.narrow) for one in failed.values()} == {(KeyOutcome.TIMED_OUT, True)}
    assert [failed[item.key].seen for item in spec.items] == [Seen.FINISHED, Seen.WORKING, Seen.FINISHED]


def test_what_a_run_had_finished_and_not_yet_begun_is_made_when_the_kernel_that_hangs_is_ended(bench: Bench) -> None:
    bench.cann.order("Mul", "hang_hard")
    bench.cann.order("Sub", "fail")
    spec = bench.spec([ADD, MUL, elementwise("Sub", (4, 64)), *(matmul(16 * size, 64, 128) for size in range(1, 6))], jobs=1)
    job = bench.start(spec)
    at_work(job, "Mul")
    job.unstick("it gave no sign of life for 300 s")
    events = bench.finish(job)
    result = events[-1]
    assert isinstance(result, JobResult)
    keys = [item.key for item in spec.items]
    assert {kernel.key for kernel in result.kernels} == {keys[0], *keys[3:]}
    failed = {one.key: one for one in result.failed}
    hung = failed[keys[1]]
    assert (hung.outcome, hung.transient, hung.narrow, hung.seen) == (KeyOutcome.TIMED_OUT, True, True, Seen.WORKING)
    assert hung.reason == "it gave no sign of life for 300 s, and what compiled it was ended"
    assert (failed[keys[2]].outcome, failed[keys[2]].transient) == (KeyOutcome.FAILED, False), "it failed by itself before"
    assert result.stuck == ()


def test_a_compiler_that_does_not_go_on_without_what_hung_is_ended_and_so_is_one_that_hangs_itself(bench: Bench) -> None:
    code = """
        import os, pathlib, subprocess, sys, time
        out = pathlib.Path(sys.argv[sys.argv.index("-o") + 1])
        (out / "x_compile_log").mkdir()
        (out / "x_compile_log" / "Add_float16_ND_4_64_compile_error.log").write_text("compiling")
        if children:
            subprocess.Popen(["sleep", "600"])
        time.sleep(600)
    """
    for children in (True, False):
        script = compiler(bench.jobs_dir.parent / f"op_compiler{children}", code, children=children)
        job = bench.start(bench.spec([ADD, MUL], job_id=f"{children}", op_compiler=script))
        at_work(job, "Add")
        job.unstick("it gave no sign of life for 300 s")
        if children:
            until(lambda job=job: len(family_of(job)) == 2, "what it waits for was ended")
            assert not job.ended
            job.unstick("it gave no sign of life for 600 s")
        last = bench.finish(job)[-1]
        assert isinstance(last, JobResult)
        assert {(one.outcome, one.transient, one.narrow) for one in last.failed} == {(KeyOutcome.TIMED_OUT, True, True)}
        assert {one.seen for one in last.failed} == {Seen.WORKING, Seen.UNTOUCHED}
        assert all("gave no sign of life for" in one.reason for one in last.failed)


def at_work(job: Job, *op_types: str) -> None:
    """Wait until the job tells that these are at work."""
    seen: list[JobProgress] = []

    def reached() -> bool:
        seen.extend(event for event in job.receive() if isinstance(event, JobProgress))
        return any(set(op_types) <= set(event.current) for event in seen)

    until(reached, f"{op_types} are at work")


def test_a_run_tells_what_later_ones_will_take_and_when_its_processes_are_free(bench: Bench) -> None:
    bench.cann.set_costs(Costs(startup_s=0.6, per_op_s=0.4))
    events = bench.finish(bench.start(bench.spec([ADD, MUL, MATMUL], jobs=1)))
    kinds = [type(event) for event in events]
    assert kinds.index(JobEnding) < kinds.index(JobResult)
    result = events[-1]
    assert isinstance(result, JobResult)
    measured = result.measured
    assert measured.start_up_s is not None
    assert measured.start_up_s >= 0.6
    assert measured.ending_s is not None
    assert measured.peak_bytes is not None
    assert measured.peak_bytes > 1_000_000
    assert sum(kernel.cost_s for kernel in result.kernels) < result.wall_s, "the start-up is no kernel's cost"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("crash", "op_compiler was killed by SIGSEGV"),
        ("oom_kill", "op_compiler was killed: out of memory"),
        ("killed", "op_compiler was killed by SIGKILL, "),
        ("no_space", "no space left on the device"),
        ("corrupt_package", "installer ended with exit status 2: Error in SHA256 checksums"),
        ("truncated_package", "installer ended with exit status 2: Error in SHA256 checksums"),
        ("installer_fails", "installer ended with exit status 1: [ERROR] install static_kernel_"),
        ("installer_does_nothing", "installer ended well and installed nothing"),
        ("exit_nonzero", "op_compiler ended with exit status 1 and generated no run package: [ERROR]"),
    ],
)
def test_fc12_a_run_that_fails_as_a_whole_is_passing_for_each_of_its_keys(kind: str, words: str, bench: Bench) -> None:
    bench.cann.order("Add", kind)
    result = bench.run(bench.spec([ADD, MATMUL]))
    assert result.kernels == ()
    assert result.package is None
    assert [failed.transient for failed in result.failed] == [True, True]
    assert all(words in failed.reason for failed in result.failed)
    assert list(bench.staging.iterdir()) == []


def test_a_package_beside_a_bad_exit_status_is_judged_by_its_own_index(bench: Bench) -> None:
    bench.cann.order("*", "exit_nonzero_with_package")
    result = bench.run(bench.spec([ADD, MATMUL]))
    assert (result.exit_code, len(result.kernels), result.failed) == (1, 2, ())


@pytest.mark.parametrize(
    ("kind", "words"), [("torn_object", "has other bytes than its json says"), ("missing_object", "cannot be used")]
)
def test_a_damaged_kernel_is_refused_and_the_others_are_kept(kind: str, words: str, bench: Bench) -> None:
    bench.cann.order("Add", kind)
    spec = bench.spec([ADD, MATMUL])
    result = bench.run(spec)
    assert [kernel.key for kernel in result.kernels] == [spec.items[1].key]
    failed = only(result.failed)
    assert (failed.key, failed.outcome, failed.transient) == (spec.items[0].key, KeyOutcome.FAILED, True)
    assert words in failed.reason


def test_both_variants_belong_to_a_record_where_the_compiler_does_not_follow_it(bench: Bench) -> None:
    spec = bench.spec([ADD, elementwise("Mul", (4, 64), deterministic=True)], flags=CompilerFlags())
    result = bench.run(spec)
    assert result.failed == ()
    for kernel in result.kernels:
        assert len(list((bench.staging / kernel.staged).glob("*.o"))) == 2


def test_records_that_only_const_data_tells_apart_are_not_guessed_at(bench: Bench) -> None:
    def of(value: int) -> dict[str, object]:
        one = elementwise("Add", (4, 64))
        one["inputs"][1] = tensor((1,), "int64", name="x2", index=1, const_data=[value])
        return one

    result = bench.run(bench.spec([of(1), of(2), MUL]))
    assert len(result.kernels) == 1
    assert {failed.outcome for failed in result.failed} == {KeyOutcome.LEFT_OUT}
    assert any("more than one of the records" in note for note in result.notes)


def test_an_option_that_could_be_taken_for_another_is_not_passed_on(bench: Bench) -> None:
    for pair in (("a", "1:b=2"), ("a=b", "1"), ("-o", "x"), ("a", "")):
        failed = only(bench.run(bench.spec([ADD], job_id=f"job{pair[0]}{len(pair[1])}", super_kernel=(pair,))).failed)
        assert "cannot be given to op_compiler" in failed.reason
        assert not failed.transient
    assert bench.cann.runs() == ()


def test_a_package_without_install_path_goes_into_the_jobs_own_root_and_not_into_the_nodes(bench: Bench) -> None:
    result = bench.run(bench.spec([ADD, MATMUL], install_path=False))
    assert len(result.kernels) == 2, result.failed
    assert not (bench.cann.opp / "static_kernel").exists()


@pytest.mark.parametrize("kind", ["installer_does_nothing", "installer_fails"])
def test_an_installer_that_leaves_nothing_where_it_was_sent_fails_the_job_with_a_remedy(bench: Bench, kind: str) -> None:
    bench.cann.order("Add", kind)
    failed = only(bench.run(bench.spec([ADD], install_path=False)).failed)
    assert failed.transient
    assert "installer" in failed.reason
    if kind == "installer_does_nothing":
        assert "redirected-root" in failed.reason
        assert "ASCEND_OPP_PATH" in failed.reason
    assert not (bench.cann.opp / "static_kernel").exists()


def test_a_compiler_that_is_gone_fails_the_job_with_its_path(bench: Bench) -> None:
    failed = only(bench.run(bench.spec([ADD], op_compiler="/nowhere/op_compiler")).failed)
    assert "/nowhere/op_compiler" in failed.reason
    assert failed.transient


def test_the_kernels_bytes_are_those_that_op_compiler_made(bench: Bench) -> None:
    spec = bench.spec([MATMUL])
    result = bench.run(spec)
    (kernel,) = result.kernels
    staged = bench.staging / kernel.staged
    described = json.loads(next(path for path in staged.glob("*.json") if path.name != "manifest.json").read_bytes())
    assert described["opType"] == "MatMulV2"
    assert described["simulated"]
