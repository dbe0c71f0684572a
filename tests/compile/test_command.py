from __future__ import annotations

from pathlib import Path

import pytest

from npgxd.compile.command import op_compiler_command
from npgxd.compile.job import CompilerFacts, JobSpec
from npgxd.errors import CompileError
from npgxd.toolchain.flags import CompilerFlags


def spec(**changed: object) -> JobSpec:
    facts = CompilerFacts("/cann/bin/op_compiler", "Ascend910B3", "ascend910b", "9.1.0", {}, install_path=True)
    told: dict = {"job_id": "j", "items": (), "toolchain": facts, "flags": CompilerFlags("true"), "job_dir": Path("/s/jobs/j")}
    return JobSpec(**{**told, "staging_dir": Path("/s/staging"), "jobs": 4, **changed})


def test_records_are_read_from_a_directory_that_is_not_the_working_directory() -> None:
    command = op_compiler_command(spec())
    assert command[0] == "/cann/bin/op_compiler"
    assert command[command.index("-p") + 1] != "/s/jobs/j/work"
    assert command[command.index("-v") + 1] == "Ascend910B3"
    assert command[command.index("-j") + 1] == "4"


@pytest.mark.parametrize(("form", "words"), [("true", ["-f", "true"]), ("bare", ["-f"]), ("", [])])
def test_the_follow_option_is_spelled_as_the_compiler_was_found_to_want_it(form: str, words: list[str]) -> None:
    command = op_compiler_command(spec(flags=CompilerFlags(form)))  # type: ignore[arg-type]
    assert command[9:] == words


def test_super_kernels_can_be_on_without_settings_and_with_them() -> None:
    alone = op_compiler_command(spec(super_kernel=(("enable", "true"),)))
    assert alone[-1] == "--enable_super_kernel"
    more = op_compiler_command(spec(super_kernel=(("enable", "true"), ("stream-fusion", "1"), ("dcci-before", ".*,Add"))))
    assert more[-3:] == ["--enable_super_kernel", "--super_kernel_options", "dcci-before=.*,Add:stream-fusion=1"]
    assert "--enable_super_kernel" not in op_compiler_command(spec())


@pytest.mark.parametrize(("name", "value"), [("a=b", "1"), ("a", "x:y=z"), ("a", "-j"), ("a", ""), ("-o", "x"), ("a", "b c")])
def test_an_option_that_could_be_taken_for_another_is_refused(name: str, value: str) -> None:
    with pytest.raises(CompileError, match="super kernel option"):
        op_compiler_command(spec(super_kernel=((name, value),)))
