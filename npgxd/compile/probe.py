"""What op_compiler's own ``--help`` says of the options that differ between CANN versions; asked once per compiler."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.compile.directory import JobDirectory
from npgxd.compile.hygiene import UMASK, environment_for
from npgxd.errors import CompileError
from npgxd.toolchain.flags import CompilerFlags

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npgxd.toolchain.discovery import Toolchain

TIMEOUT_S = 30.0
_OPTION = "--follow_op_params_jit"
_VALUE = re.compile(rf"{_OPTION}(?:=| (?! ))\s*\S")
_MAX_HELP = 1024 * 1024

_known: dict[tuple[str, int, int, int], CompilerFlags] = {}


def probe(toolchain: Toolchain, *, timeout_s: float = TIMEOUT_S) -> CompilerFlags:
    """The flags of this toolchain's op_compiler; remembered in this process by the compiler's path, size, time and inode.

    Waits for a program, at most ``timeout_s`` seconds: call it at start, not in a loop that others depend on.  CompileError if
    the compiler cannot be run or does not say what it takes.
    """
    op_compiler = toolchain.op_compiler
    try:
        facts = op_compiler.stat()
    except OSError as error:
        raise CompileError(
            f"cannot find op_compiler {op_compiler}: {error.strerror}", hint="check the CANN installation"
        ) from error
    identity = (str(op_compiler), facts.st_size, facts.st_mtime_ns, facts.st_ino)
    if identity not in _known:
        _known[identity] = read_help(_help_of(op_compiler, toolchain.environment, timeout_s))
    return _known[identity]


def read_help(text: str) -> CompilerFlags:
    """The flags that a help text tells: an option's value, if it has one, follows its name after a single space or ``=``."""
    mentioned = [line.strip() for line in text.splitlines() if _OPTION in line]
    if not mentioned:
        return CompilerFlags(follow_op_params_jit="")
    lines = [
        line for line in mentioned if line.startswith("-")
    ] or mentioned  # a synopsis or prose only where nothing better is there
    return CompilerFlags(follow_op_params_jit="true" if any(_VALUE.search(line) for line in lines) else "bare")


def _help_of(op_compiler: Path, environment: Mapping[str, str], timeout_s: float) -> str:
    with tempfile.TemporaryDirectory(prefix="npgxd-probe-") as where:
        directory = JobDirectory(Path(where))
        for path in (directory.work, directory.home, directory.temporary):
            path.mkdir()
        process = _start(op_compiler, environment_for(environment, directory, "probe"), directory)
        with process:
            try:
                out, err = process.communicate(timeout=timeout_s)
            except subprocess.TimeoutExpired:
                # Not reaped yet, so its group is still its own.
                os.killpg(process.pid, signal.SIGKILL)
                raise CompileError(
                    f"{op_compiler} --help did not end within {timeout_s:g} s",
                    hint="run it by hand, with the CANN environment sourced, and see what it waits for",
                ) from None
    if process.returncode and _OPTION.encode() not in out:
        said = err.decode(errors="replace").strip()[-300:]
        raise CompileError(
            f"{op_compiler} --help ended with exit status {process.returncode}: {said}",
            hint="check the CANN installation, and ASCEND_HOME_PATH and ASCEND_OPP_PATH in the daemon's configuration",
        )
    return (out + err)[:_MAX_HELP].decode(errors="replace")


def _start(op_compiler: Path, environment: dict[str, str], directory: JobDirectory) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [str(op_compiler), "--help"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=directory.work,
            env=environment,
            umask=UMASK,
            start_new_session=True,
        )
    except OSError as error:
        raise CompileError(
            f"cannot run {op_compiler}: {error.strerror}", hint="check that it may be executed by the daemon's user"
        ) from error
