from __future__ import annotations

import errno
import signal

import pytest

from npgxd.compile.outcome import explain, judge, killed_by, last_error, may_pass, outcome_of
from npgxd.errors import CompileError, StoreError
from npgxd.wire.states import KeyOutcome


def judged(
    exit_code: int = 0,
    *,
    packages: tuple[str, ...] = ("a.run",),
    announced: str = "a.run",
    tail: str = "",
    records: int = 3,
    oom: bool | None = None,
):
    return judge(exit_code, packages=packages, announced=announced, tail=tail, records=records, out_of_memory=oom)


def test_one_announced_package_is_looked_into_whatever_the_exit_status() -> None:
    assert judged() is None
    assert judged(1) is None


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"exit_code": 3, "packages": (), "announced": "", "tail": "x\n[ERROR] no such SoC\ny"}, "exit status 3.*no such SoC"),
        ({"packages": (), "announced": ""}, "exit status 0 and generated no run package, without saying why"),
        ({"packages": ()}, "announced a.run, and there is no such file"),
        ({"packages": ("a.run", "b.run")}, "2 run packages where one was expected: a.run, b.run"),
        ({"packages": ("b.run",)}, "announced a.run and left b.run"),
    ],
)
def test_a_run_without_its_package_is_passing_for_several_records_and_lasting_for_one(facts: dict, words: str) -> None:
    several, lone = judged(**facts), judged(**facts, records=1)
    assert several is not None
    assert lone is not None
    assert (several.transient, lone.transient) == (True, False)
    assert several.reason == lone.reason
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(several.reason)


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"exit_code": -signal.SIGKILL}, "SIGKILL, as the kernel does when memory runs out"),
        ({"exit_code": 137, "oom": True}, "op_compiler was killed: out of memory"),
        ({"exit_code": -signal.SIGKILL, "oom": False}, "killed by SIGKILL, which somebody sent: memory had not run out"),
        ({"exit_code": -signal.SIGKILL, "oom": False, "tail": "MemoryError"}, "op_compiler was killed: out of memory"),
        ({"exit_code": -signal.SIGSEGV}, "killed by SIGSEGV"),
        (
            {"exit_code": 1, "packages": ("a.run",), "announced": "", "tail": "[Errno 28] No space left on device"},
            "no space left",
        ),
        ({"exit_code": 1, "packages": (), "announced": "", "tail": "std::bad_alloc"}, "out of memory"),
    ],
)
def test_fc12_memory_space_and_signals_are_passing_even_for_one_record(facts: dict, words: str) -> None:
    failure = judged(**facts, records=1)
    assert failure is not None
    assert failure.transient
    assert words in failure.reason


@pytest.mark.parametrize(
    ("number", "oom", "outcome"),
    [
        (signal.SIGSEGV, None, KeyOutcome.CRASHED),
        (signal.SIGTERM, None, KeyOutcome.FAILED),
        (signal.SIGKILL, False, KeyOutcome.FAILED),
        (signal.SIGKILL, True, KeyOutcome.OUT_OF_MEMORY),
        (signal.SIGKILL, None, KeyOutcome.OUT_OF_MEMORY),
    ],
)
def test_a_run_that_crashed_or_was_ended_by_hand_accuses_a_kernel_and_want_of_memory_does_not(
    number: int, oom: bool | None, outcome: KeyOutcome
) -> None:
    failure = judged(-number, oom=oom)
    assert failure is not None
    assert failure.outcome is outcome
    assert failure.narrow is (outcome is not KeyOutcome.OUT_OF_MEMORY)


def test_signals_are_recognised_also_through_a_shell() -> None:
    assert killed_by(-9) is signal.SIGKILL
    assert killed_by(139) is signal.SIGSEGV
    assert killed_by(None) is killed_by(0) is killed_by(1) is killed_by(255) is killed_by(128) is None


def test_the_last_line_that_looks_like_an_error_is_told() -> None:
    assert last_error("[ERROR] first\n[ERROR] second\nbye\n") == "[ERROR] second"
    assert last_error("hello\nworld\n\n") == "world"
    assert last_error("") == ""


def test_our_own_errors_are_passing_unless_they_are_the_compilers_word() -> None:
    assert may_pass(StoreError("disk"))
    assert may_pass(CompileError("x", transient=True))
    assert not may_pass(CompileError("x"))


def test_a_full_disk_is_the_nodes_trouble_and_not_an_operators() -> None:
    assert outcome_of(StoreError("cannot write", errno=errno.ENOSPC)) is KeyOutcome.NO_SPACE
    assert outcome_of(StoreError("cannot write", errno=errno.EDQUOT)) is KeyOutcome.NO_SPACE
    assert outcome_of(StoreError("cannot write", errno=errno.EIO)) is KeyOutcome.FAILED
    assert outcome_of(CompileError("x")) is KeyOutcome.FAILED


def test_a_full_disk_is_told_in_the_words_that_people_search_for() -> None:
    assert explain(OSError(errno.ENOSPC, "No space left on device")).startswith("no space left")
    assert explain(FileNotFoundError(errno.ENOENT, "No such file or directory", "/x")) == "No such file or directory (/x)"
