"""What op_compiler's own ``--help`` says of the options that differ between CANN versions; asked once per compiler."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.compile.directory import JobDirectory
from npgxd.compile.hygiene import UMASK, environment_for
from npgxd.compile.priority import NICE, GivingWay
from npgxd.errors import CompileError
from npgxd.toolchain.flags import CompilerFlags

if TYPE_CHECKING:
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
    known = remembered(toolchain)
    if known is not None:
        return known
    asking = Asking(toolchain, timeout_s=timeout_s)
    try:
        return asking.wait()
    finally:
        asking.close()


def remembered(toolchain: Toolchain) -> CompilerFlags | None:
    """What this very compiler has said before in this process; None if it was not asked. CompileError if it is not there."""
    return _known.get(_identity(toolchain.op_compiler))


class Asking:
    """``op_compiler --help`` as it runs: nobody has to wait for it. CompileError if it cannot be run."""

    def __init__(self, toolchain: Toolchain, *, timeout_s: float = TIMEOUT_S) -> None:
        self._compiler = toolchain.op_compiler
        self._identity = _identity(self._compiler)
        self._timeout_s = timeout_s
        self._begun = time.monotonic()
        self._place = tempfile.TemporaryDirectory(prefix="npgxd-probe-")
        try:
            directory = JobDirectory(Path(self._place.name))
            for path in (directory.work, directory.home, directory.temporary):
                path.mkdir()
            self._out, self._err = directory.output("help")
            environment = environment_for(toolchain.environment, directory, "probe")
            self._process = _start(self._compiler, environment, directory.work, self._out, self._err)
            self._giving_way = GivingWay(self._process.pid, NICE)
        except BaseException:
            self._place.cleanup()
            raise

    @property
    def seconds(self) -> float:
        """Since when it runs."""
        return time.monotonic() - self._begun

    def answer(self) -> CompilerFlags | None:
        """The flags, remembered from now on; None: it has not ended yet. CompileError if it does not say what it takes, or takes too long."""
        if self._process.poll() is None:
            if self.seconds < self._timeout_s:
                self._giving_way.settle()
                return None
            self.close()
            raise CompileError(
                f"{self._compiler} --help did not end within {self._timeout_s:g} s",
                hint="run it by hand, with the CANN environment sourced, and see what it waits for",
            )
        flags = _known[self._identity] = read_help(self._help())
        return flags

    def wait(self) -> CompilerFlags:
        """The same, waited for."""
        while (flags := self.answer()) is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(max(0.0, self._timeout_s - self.seconds))
        return flags

    def close(self) -> None:
        """End it, if it still runs, with all that it started, and remove what it wrote."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)  # not reaped yet, so its group is still its own
            self._process.wait()
        self._place.cleanup()

    def _help(self) -> str:
        out, err = (_beginning(path) for path in (self._out, self._err))
        code = self._process.returncode
        if code and _OPTION.encode() not in out:
            said = err.decode(errors="replace").strip()[-300:]
            raise CompileError(
                f"{self._compiler} --help ended with exit status {code}: {said}",
                hint="check the CANN installation, and ASCEND_HOME_PATH and ASCEND_OPP_PATH in the daemon's configuration",
            )
        return (out + err)[:_MAX_HELP].decode(errors="replace")


def read_help(text: str) -> CompilerFlags:
    """The flags that a help text tells: an option's value, if it has one, follows its name after a single space or ``=``."""
    mentioned = [line.strip() for line in text.splitlines() if _OPTION in line]
    if not mentioned:
        return CompilerFlags(follow_op_params_jit="")
    lines = [
        line for line in mentioned if line.startswith("-")
    ] or mentioned  # a synopsis or prose only where nothing better is there
    return CompilerFlags(follow_op_params_jit="true" if any(_VALUE.search(line) for line in lines) else "bare")


def _identity(op_compiler: Path) -> tuple[str, int, int, int]:
    try:
        facts = op_compiler.stat()
    except OSError as error:
        raise CompileError(
            f"cannot find op_compiler {op_compiler}: {error.strerror}", hint="check the CANN installation"
        ) from error
    return (str(op_compiler), facts.st_size, facts.st_mtime_ns, facts.st_ino)


def _start(op_compiler: Path, environment: dict[str, str], work: Path, out: Path, err: Path) -> subprocess.Popen[bytes]:
    try:
        with out.open("xb") as stdout, err.open("xb") as stderr:
            return subprocess.Popen(
                [str(op_compiler), "--help"],
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                cwd=work,
                env=environment,
                umask=UMASK,
                start_new_session=True,
            )
    except OSError as error:
        raise CompileError(
            f"cannot run {op_compiler}: {error.strerror}", hint="check that it may be executed by the daemon's user"
        ) from error


def _beginning(path: Path) -> bytes:
    with path.open("rb") as stream:
        return stream.read(_MAX_HELP)
