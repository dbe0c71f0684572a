from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from npgxd.compile.priority import NICE
from npgxd.compile.probe import Asking, probe, read_help, remembered
from npgxd.errors import CompileError
from npgxd.toolchain.flags import CompilerFlags
from tests.compile.conftest import until

HELP_WITH_VALUE = """
usage: op_compiler [-h] -p DIR -v SOC [-f [true]]
options:
  -p DIR, --op_params_dir DIR       directory of records
  -f [true], --follow_op_params_jit [true]
                                    follow each record's deterministic flag
"""
HELP_BARE = """
usage: op_compiler [-h] -p DIR -v SOC [-f]
  -f, --follow_op_params_jit        follow each record's deterministic flag (takes no value)
"""


def toolchain(compiler: Path) -> SimpleNamespace:
    return SimpleNamespace(op_compiler=compiler, environment={})


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (HELP_WITH_VALUE, "true"),
        (HELP_BARE, "bare"),
        ("  -f, --follow_op_params_jit\n        follow\n", "bare"),
        ("  -f FOLLOW, --follow_op_params_jit FOLLOW\n", "true"),
        ("  --follow_op_params_jit=<true>  follow\n", "true"),
        ("usage: op_compiler [-p DIR]\n", ""),
        ("", ""),
    ],
)
def test_the_form_of_follow_is_read_from_the_help(text: str, form: str) -> None:
    assert read_help(text).follow_op_params_jit == form


def test_a_compiler_is_asked_once_and_again_when_it_changes(tmp_path: Path) -> None:
    calls = tmp_path / "calls"
    compiler = script(tmp_path / "op_compiler", f"echo x >> {calls}; echo '  -f, --follow_op_params_jit  follow'")
    assert probe(toolchain(compiler)).follow_op_params_jit == "bare"
    assert probe(toolchain(compiler)).follow_op_params_jit == "bare"
    assert calls.read_text() == "x\n"
    script(compiler, f"echo x >> {calls}; echo '  -f [true], --follow_op_params_jit [true]'")
    assert probe(toolchain(compiler)).follow_op_params_jit == "true"
    assert calls.read_text() == "x\nx\n"


def test_a_compiler_that_is_not_there_is_named() -> None:
    with pytest.raises(CompileError, match=r"cannot find op_compiler /nowhere/op_compiler"):
        probe(toolchain(Path("/nowhere/op_compiler")))


def test_a_compiler_that_may_not_be_run_is_named(tmp_path: Path) -> None:
    compiler = tmp_path / "op_compiler"
    compiler.write_text("#!/bin/sh\n")
    with pytest.raises(CompileError, match="cannot run"):
        probe(toolchain(compiler))


def test_a_compiler_that_fails_says_why(tmp_path: Path) -> None:
    compiler = script(tmp_path / "op_compiler", "echo 'libascendcl.so: cannot open' >&2; exit 127")
    with pytest.raises(CompileError, match=r"exit status 127: libascendcl\.so: cannot open"):
        probe(toolchain(compiler))


def test_a_compiler_that_hangs_is_ended(tmp_path: Path) -> None:
    compiler = script(tmp_path / "op_compiler", f"echo $$ > {tmp_path}/pid; sleep 600")
    with pytest.raises(CompileError, match="did not end within"):
        probe(toolchain(compiler), timeout_s=0.5)
    if (tmp_path / "pid").exists():
        with pytest.raises(ProcessLookupError):
            os.kill(int((tmp_path / "pid").read_text()), 0)


def test_a_compiler_can_be_asked_without_waiting_for_it_gives_way_and_is_ended_with_whoever_asked(tmp_path: Path) -> None:
    said = "while [ ! -e go ] && [ ! -e $0.go ]; do sleep 0.05; done; echo '  -f, --follow_op_params_jit  follow'"
    compiler = script(tmp_path / "op_compiler", f"echo $$ > {tmp_path}/pid; {said}")
    assert remembered(toolchain(compiler)) is None
    asking = Asking(toolchain(compiler))
    assert asking.answer() is None
    (tmp_path / "op_compiler.go").touch()
    assert asking.wait().follow_op_params_jit == "bare"
    asking.close()
    assert remembered(toolchain(compiler)) == CompilerFlags("bare")
    (tmp_path / "op_compiler.go").unlink()
    script(compiler, f"echo $$ > {tmp_path}/other; {said}")
    asking = Asking(toolchain(compiler))
    until(lambda: (tmp_path / "other").exists() and (tmp_path / "other").read_text(), "it runs")
    other = int((tmp_path / "other").read_text())
    assert (os.sched_getscheduler(other), os.getpriority(os.PRIO_PROCESS, other)) == (os.SCHED_BATCH, max(NICE, os.nice(0)))
    asking.close()
    with pytest.raises(ProcessLookupError):
        os.kill(other, 0)
