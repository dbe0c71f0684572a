"""What ``npgxctl explain`` and ``retry`` print and end with."""

from __future__ import annotations

import pytest

from npgxd.cli.admin_ask import Admin
from npgxd.cli.exits import Exit
from npgxd.cli.explain import exit_code, page
from npgxd.cli.main import main
from npgxd.cli.status import page as status_page

KEY = "ab" * 32
ROUND = {
    "kind": "round",
    "round": "cd" * 16,
    "job": "9f3c",
    "uid": 1000,
    "pid": 4711,
    "rank": 3,
    "graph": "decode[8]",
    "state": "SETTLED",
    "records": 12,
    "unique": 10,
    "done": 10,
    "elapsed_s": 61.0,
    "outcome": "DEGRADED",
    "reason": "compile_failed",
    "detail": "1 of 10",
    "hint": "npgxctl retry",
    "hits": 3,
    "compiled": 6,
    "waits_for": [],
    "waits_for_total": 0,
    "failures": [{"key": KEY, "op_type": "Add", "outcome": "timed_out", "reason": "too slow"}],
    "shadowed": [],
    "rejected": [{"name": "x.json", "reason": "not JSON"}],
}
KERNEL = {
    "kind": "kernel",
    "key": KEY,
    "op_type": "Add",
    "state": "failed",
    "why": "tiling failed",
    "kernel": None,
    "failure": {"key": KEY, "outcome": "crashed", "reason": "tiling failed", "attempts": 2, "at": 1000.0, "until": 2000.0},
    "tries": [{"job": "j1" * 8, "outcome": "crashed", "reason": "SIGSEGV", "ago_s": 5.0, "processes": 2, "kernels": 3}],
    "pinned": ["abab"],
    "waiting": [{"round": "cd" * 16, "job": "9f3c", "uid": 1, "pid": 2, "rank": 0, "state": "QUEUED", "elapsed_s": 3.0}],
    "waiting_total": 5,
    "jobs": [
        {
            "job": "j1" * 8,
            "began_at": 1090.0,
            "wall_s": 2.0,
            "running": False,
            "outcome": "crashed",
            "reason": "SIGSEGV",
            "command": "/cann/op_compiler -p /r",
            "exit_code": -11,
            "keys": 3,
            "compiled": 0,
            "directory": "/state/jobs/j1",
            "logs": [{"file": "op_compiler.err", "text": "first\nlast \x1b[2J words"}],
        }
    ],
}


def shown(document: object) -> str:
    lines = page(document, now=1100.0)
    return "\n".join(f"{line.label} {line.mark} {line.text}" for line in lines)


def test_a_kernels_page_says_why_who_waits_what_was_run_and_what_to_do() -> None:
    text = shown(KERNEL)
    for said in (
        f"kernel FAILED Add, key {KEY}",
        "why  tiling failed",
        "failed crashed after 2 tries, 1 min ago; it is not tried again for another 15 min, unless npgxctl retry abababababab",
        "pinned  abab",
        "tried crashed SIGSEGV (5 s ago, among 3 kernels, -j 2, job j1j1j1j1j1j1)",
        "waits QUEUED round cdcdcdcdcdcd of job 9f3c",
        "waits  4 rounds more",
        "command  /cann/op_compiler -p /r (exit status -11; 0 of 3 kernels)",
        "logs  /state/jobs/j1",
        "last \\x1b[2J words",
    ):
        assert said in text, said
    forever = {**KERNEL, "failure": {**KERNEL["failure"], "until": 0.0}}
    assert "not tried again until the toolchain changes" in shown(forever)


def test_a_rounds_page_says_how_it_ended_and_names_what_is_missing() -> None:
    text = shown(ROUND)
    for said in (
        "round DEGRADED(compile_failed) cdcdcdcdcdcd of job 9f3c, uid 1000, pid 4711, rank 3, graph decode[8]",
        "kernels  12 records, 10 different: 10 done (3 hit, 6 compiled), 1 min",
        "remedy  npgxctl retry",
        "no kernel Add timed_out: too slow (key abababababab)",
        "rejected x.json not JSON",
    ):
        assert said in text, said
    waits = {
        **ROUND,
        "outcome": None,
        "why": "waits for a worker",
        "waits_for": [{"key": KEY, "op_type": "Mul", "state": "waiting"}],
    }
    assert "waits for Mul key abababababab, waiting" in shown({**waits, "waits_for_total": 3})
    assert "waits for  2 kernels more" in shown({**waits, "waits_for_total": 3})


def test_a_processs_page_has_its_sessions_and_rounds() -> None:
    session = {
        "state": "DEGRADED",
        "reason": "toolchain_mismatch",
        "program": "serve.py",
        "uid": 1,
        "job": "j",
        "connected_s": 9.0,
    }
    differs = [{"what": "soc", "rank": "a", "daemon": "b"}]
    text = shown({"kind": "process", "sessions": [{**session, "differences": differs}], "rounds": [ROUND], "rounds_total": 3})
    assert "process DEGRADED(toolchain_mismatch) serve.py" in text
    assert "differs  soc: this process has a, the daemon b" in text
    assert "rounds  2 earlier ones are not shown" in text
    job = {"kind": "job", "sessions": [session], "sessions_total": 9, "rounds": [ROUND], "rounds_total": 1}
    assert "process  8 more are not shown: npgxctl status" in shown(job)


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({"kind": "kernel", "state": "present"}, Exit.OK),
        ({"kind": "kernel", "state": "failed"}, Exit.DEGRADED),
        ({"kind": "kernel", "state": "waiting"}, Exit.COMPILING),
        ({"kind": "kernel", "state": "compiling"}, Exit.COMPILING),
        ({"kind": "kernel", "state": "unknown"}, Exit.PROBLEMS),
        ({"kind": "kernel", "state": "something newer"}, Exit.PROBLEMS),
        (ROUND, Exit.DEGRADED),
        ({**ROUND, "outcome": "INSTALLED"}, Exit.OK),
        ({**ROUND, "outcome": "DISABLED"}, Exit.DISABLED),
        ({**ROUND, "outcome": None}, Exit.COMPILING),
        (
            {"kind": "process", "sessions": [{"state": "INSTALLED"}], "rounds": [ROUND, {**ROUND, "outcome": "INSTALLED"}]},
            Exit.OK,
        ),
        ({"kind": "process", "sessions": [{"state": "DEGRADED"}], "rounds": []}, Exit.DEGRADED),
        ({"kind": "process", "sessions": [], "rounds": [{**ROUND, "outcome": None}]}, Exit.COMPILING),
    ],
)
def test_the_exit_code_is_that_of_what_was_asked_about(document: object, code: Exit) -> None:
    assert exit_code(document) == code


@pytest.mark.parametrize("document", [{}, [], {"kind": "kernel", "jobs": 3}, {"kind": "process", "rounds": [None]}])
def test_a_document_of_another_version_is_shown_as_far_as_it_goes(document: object) -> None:
    assert page(document, now=0.0)
    exit_code(document)


@pytest.mark.parametrize("what", ["../etc", "abc", "pid:x", "round:zz", ""])
def test_what_names_nothing_is_an_error_that_says_what_does(what: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", what]) == 78
    assert "a kernel key, a round or a job, or a pid" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["Add"], ["'Add' is no beginning of a kernel's key", "npgxctl retry --op Add"]),
        (["abcd", "xyz!"], ["'xyz!' is no beginning of a kernel's key", "npgxctl status shows the keys"]),
        (["--op", "Add!"], ["'Add!' is no operator's name", "npgxctl status names the operators"]),
    ],
)
def test_what_cannot_be_retried_is_told_in_an_administrators_words_and_with_what_to_type(
    words: list[str], said: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["retry", *words]) == 78
    told = capsys.readouterr().err
    assert all(part in told for part in said), told
    assert "field" not in told


@pytest.mark.parametrize(
    ("words", "answer", "out"),
    [
        (["abcd"], {"unknown": ["abcd"]}, ""),
        (
            ["abcd", "1234"],
            {"forgotten": 1, "unknown": ["abcd"]},
            "retry      1 failure is forgotten: what is asked for again is compiled again\n",
        ),
        (["--all"], {}, "retry      no such failure is remembered\n"),
    ],
)
def test_what_was_not_remembered_as_failed_is_told_once(
    words: list[str], answer: dict[str, object], out: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Admin, "__init__", lambda *_: None)
    monkeypatch.setattr(Admin, "__exit__", lambda *_: None)
    monkeypatch.setattr(Admin, "ask", lambda *_: answer)
    assert main(["retry", *words]) == Exit.PROBLEMS
    said = capsys.readouterr()
    assert (said.out, said.err) == (out, "npgxctl: no failure is remembered under abcd\n" if "unknown" in answer else "")


@pytest.mark.parametrize("words", [["retry"], ["retry", "abcd", "--all"], ["retry", "--op", "Add", "--all"], ["explain"]])
def test_wrong_usage_is_told_as_that(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == Exit.USAGE
    capsys.readouterr()


def test_the_status_names_operators_that_keep_changing(document) -> None:
    call = {
        "op_type": "ReduceSum",
        "what": "const_data",
        "job": "9f3c",
        "process": "rank 0, pid 7",
        "graph": "decode",
        "rounds": 64,
        "not_compiled": 3,
        "remedy": "pass the value as a tensor that is no constant",
        "option": "[limits] churn_const_data",
    }
    lines = status_page({**document, "churn": [call]}, now=0.0)
    (line,) = [line for line in lines if line.label == "churn"]
    assert line.mark == "ReduceSum"
    for said in (
        "const_data changed in 64 rounds of graph decode",
        "rank 0, pid 7",
        "3 kernels were not compiled",
        "raise [limits] churn_const_data",
    ):
        assert said in line.text


def test_a_process_that_has_ended_is_told_as_such_and_not_as_one_that_goes_on() -> None:
    said = [line.text for line in page({"kind": "process", "pid": 4711, "sessions": [], "rounds": [ROUND]}, now=0.0)]
    assert said[0] == "4711 is not connected any more; this is what it asked for"


def test_a_kernel_that_goes_into_the_store_is_in_flight() -> None:
    assert exit_code({**KERNEL, "state": "publishing"}) is exit_code({**KERNEL, "state": "compiling"}) is Exit.COMPILING


def test_what_is_said_of_many_kernels_alike_is_said_once() -> None:
    alike = [{"key": f"{n:064x}", "op_type": op, "outcome": "no_space", "reason": "disk full"} for n, op in enumerate("ABCDEA")]
    other = {"key": KEY, "op_type": "Add", "outcome": "timed_out", "reason": "too slow"}
    lines = [line for line in page({**ROUND, "failures": [*alike, other]}, now=0.0) if line.label == "no kernel"]
    assert [(line.mark, line.text) for line in lines] == [
        ("A, B, C, D, ...", "no_space: disk full (key 000000000000, and 5 more)"),
        ("Add", "timed_out: too slow (key abababababab)"),
    ]
