"""What the end of an op_compiler run means: passing or lasting, and in which words. Pure decisions over facts.

Passing (transient) reasons are about the run: memory, space, time, a signal, a damaged package.  Lasting ones are the compiler's
word about a record.  A run of several records that fails as a whole says nothing about any one of them, so it is passing for all.
"""

from __future__ import annotations

import errno
import re
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.errors import CompileError, NpgxError, StoreError
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from collections.abc import Sequence

_ERROR_LINE = re.compile(r"\[ERROR\]|\b[Ee]rror\b|Traceback|No such file|not found|Killed|cannot|failed")
_NO_SPACE = re.compile(r"No space left on device|\bENOSPC\b|Disk quota exceeded")
_NO_MEMORY = re.compile(r"Cannot allocate memory|MemoryError|std::bad_alloc|out of memory", re.IGNORECASE)
FAULTS = frozenset({signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS})
"""Signals that a program brings upon itself."""
_SHELL_SIGNAL_BASE = 128
_LAST_SHELL_SIGNAL = 128 + 64
_MAX_REASON = 500


@dataclass(frozen=True, slots=True)
class RunFailure:
    """Why a whole run gave nothing. ``narrow``: one of its kernels may be the cause."""

    reason: str
    transient: bool
    outcome: KeyOutcome = KeyOutcome.FAILED
    narrow: bool = False


def killed_by(exit_code: int | None) -> signal.Signals | None:
    """The signal that ended a program, also when a shell in between reported it as 128 + n."""
    if exit_code is None:
        return None
    number = -exit_code if exit_code < 0 else exit_code - _SHELL_SIGNAL_BASE if exit_code <= _LAST_SHELL_SIGNAL else 0
    try:
        return signal.Signals(number)
    except ValueError:
        return None


def judge(
    exit_code: int, *, packages: Sequence[str], announced: str, tail: str, records: int, out_of_memory: bool | None
) -> RunFailure | None:
    """None if there is exactly one package and op_compiler announced it: then the package's own index tells the rest.

    ``packages`` are the run packages in the output directory, ``announced`` is the name in the success line.  An exit status
    other than 0 beside an announced package is not held against it, since what a status means then is not documented.
    ``out_of_memory``: whether the kernel has killed for want of memory meanwhile; None: that cannot be told.
    """
    if (number := killed_by(exit_code)) is not None:
        said_so = (passing_cause(tail) or ("", None))[1] is KeyOutcome.OUT_OF_MEMORY
        ran_out = True if said_so else out_of_memory
        outcome = outcome_of_signal(number, out_of_memory=ran_out)
        died = death("op_compiler", number, out_of_memory=ran_out)
        # Somebody who ends it by hand does so because it hangs, at one of the kernels that it was at work with.
        return RunFailure(died, transient=True, outcome=outcome, narrow=outcome is not KeyOutcome.OUT_OF_MEMORY)
    if passing := passing_cause(tail):
        said, outcome = passing
        return RunFailure(f"op_compiler ended with exit status {exit_code}: {said}", transient=True, outcome=outcome)
    if problem := _package_problem(exit_code, packages, announced, tail):
        return RunFailure(problem, transient=records > 1, narrow=records > 1)
    return None


def _package_problem(exit_code: int, packages: Sequence[str], announced: str, tail: str) -> str:
    if not announced:
        said = last_error(tail)
        why = f": {said}" if said else ", without saying why"
        return f"op_compiler ended with exit status {exit_code} and generated no run package{why}"
    if not packages:
        return f"op_compiler announced {announced}, and there is no such file in its output directory"
    if len(packages) > 1:
        return f"op_compiler left {len(packages)} run packages where one was expected: {', '.join(packages)}"
    if packages[0] != announced:
        return f"op_compiler announced {announced} and left {packages[0]}"
    return ""


def last_error(output: str) -> str:
    """The last line of a program's output that looks like an error, else its last line; empty if it printed nothing."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    telling = [line for line in lines if _ERROR_LINE.search(line)]
    return (telling or lines or [""])[-1][:_MAX_REASON]


def outcome_of_signal(number: int, *, out_of_memory: bool | None) -> KeyOutcome:
    """What a death by this signal is called: the kernel sends SIGKILL when memory runs out, a program's own faults are crashes.

    ``out_of_memory``: whether the kernel has killed for want of memory meanwhile.  Where that cannot be told (None), SIGKILL is taken
    for it; where it has not, somebody has sent the signal.
    """
    if number == signal.SIGKILL and out_of_memory is not False:
        return KeyOutcome.OUT_OF_MEMORY
    return KeyOutcome.CRASHED if number in FAULTS else KeyOutcome.FAILED


def passing_cause(text: str) -> tuple[str, KeyOutcome] | None:
    """What a program's output says of memory or space, in a reason's words; None if nothing."""
    if _NO_SPACE.search(text):
        return "no space left on the device that holds the state directory", KeyOutcome.NO_SPACE
    if _NO_MEMORY.search(text):
        return "out of memory", KeyOutcome.OUT_OF_MEMORY
    return None


def death(who: str, number: signal.Signals, *, out_of_memory: bool | None) -> str:
    """The same in a reason's words."""
    if number is not signal.SIGKILL:
        return f"{who} was killed by {number.name}"
    if out_of_memory is None:
        return f"{who} was killed by SIGKILL, as the kernel does when memory runs out"
    if out_of_memory:
        return f"{who} was killed: out of memory"
    return f"{who} was killed by SIGKILL, which somebody sent: memory had not run out"


def may_pass(error: NpgxError) -> bool:
    """Whether an error of our own is about this run: everything but what a CompileError calls lasting."""
    return not isinstance(error, CompileError) or bool(error.data.get("transient"))


def outcome_of(error: NpgxError) -> KeyOutcome:
    """What a try is called that such an error ended: a disk that is full is the node's trouble, not the operator's."""
    return KeyOutcome.NO_SPACE if isinstance(error, StoreError) and error.no_space else KeyOutcome.FAILED


def explain(error: OSError) -> str:
    """An operating system error in a reason's words."""
    if error.errno in {errno.ENOSPC, errno.EDQUOT}:
        return "no space left on the device that holds the state directory"
    where = f" ({error.filename})" if error.filename else ""
    return f"{error.strerror or error}{where}"
