"""The command line of one op_compiler run, and the files that it reads. Nothing in either is named by a client."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npgxd.compile.directory import JobDirectory
from npgxd.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npgxd.compile.job import JobItem, JobSpec
    from npgxd.toolchain.flags import CompilerFlags

_UNSAFE = re.compile(r"[^A-Za-z0-9_]")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}")
_VALUE = re.compile(r"[A-Za-z0-9_.*,+][A-Za-z0-9_.*,+-]{0,255}")
SUPER_KERNEL_SWITCH = "enable"


def op_compiler_command(spec: JobSpec) -> list[str]:
    """The whole command; CompileError if an option's value could be taken for something else (docs/cann.md, op_compiler)."""
    directory = JobDirectory(spec.job_dir)
    return [
        spec.toolchain.op_compiler,
        "-p",
        str(directory.records),
        "-v",
        spec.toolchain.soc,
        "-j",
        str(max(spec.jobs, 1)),
        "-o",
        str(directory.out),
        *_follow(spec.flags),
        *_super_kernel(spec.super_kernel),
    ]


def record_name(position: int, item: JobItem) -> str:
    """A record's file name: its place in the batch, its op type and its key. The name that a client gave is not known here."""
    return f"{position:05d}_{_UNSAFE.sub('_', item.op_type)[:64]}_{item.key[:16]}.json"


def write_records(spec: JobSpec) -> None:
    """Put every record into ``-p``, as the canonical JSON of its content."""
    records = JobDirectory(spec.job_dir).records
    for position, item in enumerate(spec.items):
        (records / record_name(position, item)).write_bytes(item.canonical)


def _follow(flags: CompilerFlags) -> tuple[str, ...]:
    match flags.follow_op_params_jit:
        case "true":
            return ("-f", "true")
        case "bare":
            return ("-f",)
        case "":
            return ()


def _super_kernel(options: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """``enable`` says that super kernels are on; the rest is the value of ``--super_kernel_options``."""
    settings = [f"{name}={value}" for name, value in sorted(options) if name != SUPER_KERNEL_SWITCH]
    for name, value in options:
        if not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
            raise CompileError(
                f"super kernel option {name!r}={value!r} cannot be given to op_compiler",
                hint="names are letters, digits, '_' and '-'; values may also have any of .*,+",
            )
    if not options:
        return ()
    return ("--enable_super_kernel", *(("--super_kernel_options", ":".join(settings)) if settings else ()))
