from __future__ import annotations

import io
import json

import pytest

from npgxd.cli.exits import Exit
from npgxd.cli.page import Line, Tone, show, wrapped
from npgxd.cli.status import exit_code, page

NOW = 1_790_000_300.0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def plain(document) -> str:
    out = io.StringIO()
    show(page(document, now=NOW), out)
    return out.getvalue()


def on_terminal(document, monkeypatch, columns: int, **environ: str) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    out = Terminal()
    show(page(document, now=NOW), out)
    return out.getvalue()


def test_a_probe_is_told_of_the_daemon_alone(document):
    """A rank that waits for the compiler, or is degraded, is no reason to take the daemon for one that does not serve."""
    assert exit_code(document) is Exit.DEGRADED
    assert exit_code(document, ranks=False) is Exit.OK
    document["daemon"]["state"] = "DRAINING"
    assert exit_code(document, ranks=False) is Exit.NOT_SERVING


def test_the_whole_node_is_shown_one_fact_a_line(document):
    assert plain(document).splitlines() == [
        "daemon     READY  npgxd 0.1.0, pid 812, up 3 h 12 min, state in /var/lib/npgxd, socket /run/npgxd/npgxd.sock",
        (
            "toolchain  SIMULATED  CANN 9.1.0 for Ascend910B3 (ascend910b), 40 vector and 20 cube cores, fingerprint 3f2a91c04d11, "
            "at /usr/local/Ascend/ascend-toolkit/latest"
        ),
        "workers    1 of 2 busy",
        "  compiles 3/12  MatMulV2, Add; 14 s of at most 1 h 0 min, job 1a2b3c4d, pid 4711",
        "queue      9 kernels wait, 12 compile, for 1 round, about 1 min left",
        "kernels    431 kernels (52.1 MB), 3 run packages, 4 views, 16 leases",
        "cache      hit rate 98.1%: 423 hits, 8 compiled, 0 failed; 16 rounds of 6896 records",
        "job        9f3c52aa01b2c3d4  /srv/llm/serve.py, uid 1000, 3 of 4 ranks here, 4 in all",
        "  note     ranks disagree on LOCAL_WORLD_SIZE (4, 8): they are not waited for",
        "  rank 0   INSTALLED(hit)                pid 2001, graph decode[8], 3 leases",
        "  rank 1   COMPILING(3/12)               pid 2002, graph decode[8]",
        "  rank 2   DEGRADED(toolchain_mismatch)  pid 2003, graph decode[8], ops_nn: rank 9.0.0, daemon 9.1.0",
        "job        77aa00bb11cc22dd  train.py, uid 1001, 1 rank here",
        "  rank -   RECORDING  pid 0, graph step",
        "failures   1 kernel could not be compiled",
        "  FlashAttentionScore  op_compiler ended with exit code 1: tiling failed (5 min ago, key abababababab)",
    ]


def test_why_and_until_when_there_are_fewer_compiler_processes_is_told_in_words(document):
    document["workers"] |= {"processes": 8, "bound_by": "cpu.max of /sys/fs/cgroup/system.slice", "starved": None}
    assert "workers    1 of 2 busy, at most 8 compiler processes (cpu.max of /sys/fs/cgroup/system.slice)\n" in plain(document)
    assert "FEWER" not in plain(document)
    document["workers"] |= {
        "processes": 1,
        "bound_by": "memory that ran out a while ago",
        "starved": {"processes": 1, "for_s": 250},
    }
    lines = plain(document).splitlines()
    assert "workers    1 of 2 busy, at most 1 compiler process (memory that ran out a while ago)" in lines
    assert (
        "workers    FEWER  memory ran out: at most 1 compiler process for 4 min more, then step by step as many as before"
        in lines
    )


def test_a_run_that_gives_no_sign_of_life_is_shown_with_that_and_no_time_left_is_told_of_what_stalls(document):
    document["workers"]["jobs"][0]["silent_s"] = 59.0
    assert "no sign of life" not in plain(document)
    document["workers"]["jobs"][0]["silent_s"] = 130.0
    document["queue"]["rounds"][0] |= {"stalled_s": 130.0, "eta_s": None}
    document["queue"]["rounds"].append({"round": "b0", "eta_s": 40.0, "stalled_s": 0.0})
    lines = plain(document).splitlines()
    told = "MatMulV2, Add; 14 s of at most 1 h 0 min, no sign of life for 2 min, job 1a2b3c4d, pid 4711"
    assert f"  compiles 3/12  {told}" in lines
    stalled = "9 kernels wait, 12 compile, for 2 rounds; nothing has moved for 2 min, longer than expected"
    assert f"queue      STALLED  {stalled}" in lines


def test_what_the_daemon_cannot_read_of_its_state_is_told_and_is_not_shown_as_nothing(document):
    document |= {"problem": "[Errno 13] Permission denied: '/s/views'", "kernels": {}, "cache": {}}
    lines = plain(document).splitlines()
    assert "state      UNREADABLE  [Errno 13] Permission denied: '/s/views'; npgxctl doctor" in lines
    assert {"kernels    not known", "cache      not known"} <= set(lines)


def test_a_disk_that_does_not_answer_is_told_with_the_compiled_kernels_that_wait_for_it(document):
    document["disk"] = {"slow": False, "slow_s": 0.0, "waits_s": 3.0, "waits_for": ""}
    assert "disk" not in plain(document)
    document["disk"] = {"slow": True, "slow_s": 130.0, "waits_s": 20.0, "waits_for": "fsync /var/lib/npgxd/staging/a"}
    document["workers"]["jobs"][0] |= {"stage": "publishing", "done": 12, "left": 8}
    lines = plain(document).splitlines()
    now = "(now at fsync /var/lib/npgxd/staging/a, for 20 s)"
    assert f"disk       SLOW  the disk does not answer, for 2 min {now}: 8 compiled kernels wait for it; npgxctl doctor" in lines
    assert "  publishes 4/12  what op_compiler made goes into the store; 14 s, job 1a2b3c4d" in lines
    assert "queue      9 kernels wait, 4 compile, 8 are published, for 1 round" in lines


@pytest.mark.parametrize("columns", [60, 80, 200])
def test_a_terminal_of_any_width_is_not_overrun(document, monkeypatch, columns):
    text = on_terminal(document, monkeypatch, columns, NO_COLOR="1")
    assert max(map(len, text.splitlines())) <= columns
    assert "".join(text.split()) == "".join(plain(document).split())


def test_no_color_is_honoured(document, monkeypatch):
    assert "\x1b" not in on_terminal(document, monkeypatch, 80, NO_COLOR="1")
    assert "\x1b" not in on_terminal(document, monkeypatch, 80, TERM="dumb")
    assert "\x1b[1;31mDEGRADED(toolchain_mismatch)\x1b[0m" in on_terminal(document, monkeypatch, 120)


def test_continuation_lines_hang_under_the_text():
    line = Line("toolchain", "CANN 9.1.0 for Ascend910B3 and more of it", Tone.NOTE, mark="SIMULATED")
    assert wrapped(line, 40) == ["toolchain  SIMULATED  CANN 9.1.0 for", " " * 11 + "Ascend910B3 and more of it"]


def state(*ranks: tuple[str, str]) -> dict[str, object]:
    job = {"job": "j", "ranks": [{"state": name, "reason": reason} for name, reason in ranks]}
    return {"daemon": {"state": "READY"}, "toolchain": {"soc": "Ascend910B3"}, "jobs": [job]}


@pytest.mark.parametrize(
    ("ranks", "code"),
    [
        ([], Exit.OK),
        ([("CONNECTED", "")], Exit.OK),
        ([("INSTALLED", "hit"), ("INSTALLED", "compiled")], Exit.OK),
        ([("INSTALLED", "hit"), ("RECORDING", "")], Exit.RECORDING),
        ([("RECORDING", ""), ("QUEUED", "")], Exit.COMPILING),
        ([("RECORDING", ""), ("COMPILING", "")], Exit.COMPILING),
        ([("COMPILING", ""), ("DISABLED", "option_off")], Exit.DISABLED),
        ([("DISABLED", "option_off"), ("DEGRADED", "compile_failed"), ("INSTALLED", "hit")], Exit.DEGRADED),
    ],
)
def test_fc62_each_state_has_its_exit_code_and_the_worst_counts(ranks, code):
    assert exit_code(state(*ranks)) is code


def test_a_daemon_that_serves_nobody_has_its_own_exit_code(document):
    document["toolchain"] = {"problem": "no op_compiler below /usr/local/Ascend"}
    assert exit_code(document) is Exit.NOT_SERVING
    assert "toolchain  UNUSABLE  no op_compiler below /usr/local/Ascend\n" in plain(document)
    assert exit_code({**state(), "daemon": {"state": "DRAINING"}}) is Exit.NOT_SERVING


def test_fc62_a_full_cache_and_a_feature_that_is_off_look_different():
    on, off = state(("INSTALLED", "hit")), state(("DISABLED", "option_off"))
    assert "INSTALLED(hit)" in plain(on)
    assert "DISABLED(option_off)" in plain(off)
    assert exit_code(on) != exit_code(off)


@pytest.mark.parametrize(
    "document", [{}, {"jobs": 3}, {"jobs": [{"ranks": [None, {"pid": []}]}]}, {"daemon": [], "failures": {}}]
)
def test_a_document_that_lacks_things_is_still_shown(document):
    assert plain(document).startswith("daemon     ?")


def test_nothing_of_a_program_name_acts_on_the_terminal(document):
    document["jobs"][0]["program"] = "a\x1b]0;pwned\x07\nb\u202e[bold]"
    document["failures"][0]["op_type"] = "\x1b[2J"
    text = plain(document)
    assert "a\\x1b]0;pwned\\x07\\nb\\u202e[bold]" in text
    assert "\x1b" not in text
    assert json.loads(json.dumps(document)) == document


def test_a_round_that_waits_for_other_ranks_says_so(document):
    document["queue"] = {"keys_waiting": 0, "keys_compiling": 0, "rounds": document["queue"]["rounds"]}
    document["jobs"][0]["ranks"] = document["jobs"][0]["ranks"][:1]
    lines = plain(document).splitlines()
    assert "queue      1 round waits for other ranks of the job" in lines
    assert any("1 of 4 ranks here" in line for line in lines)
