"""Compilers come after ranks and the daemon, for processors and for the disk. Nothing here fails: what is refused stays as it is.

For processors that takes three things, none of which needs a privilege.  Niceness says what share a process gets beside others; but where
the kernel groups processes by session (sched(7), "The autogroup feature": on in most distributions) it counts only within a session, and
against ranks only the niceness of the session as a whole does.  Both are about shares; that a rank which wakes up is not kept
waiting by a compiler is the policy SCHED_BATCH.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
from pathlib import Path

NICE = 5
"""The niceness of compilers where nothing else is configured: beside an equal number of busy ranks they get a quarter."""

IO_PRIORITY = 7
"""The last of the best-effort class (0 to 7): a compiler reads and writes after everybody else, and still does, as the idle class may not."""

_IOPRIO_SET = {"x86_64": 251, "aarch64": 30}
"""The system call ioprio_set(2), for which the C library has no function, by architecture."""
_IOPRIO_WHO_PROCESS = 1
_IOPRIO_CLASS_BE = 2
_IOPRIO_CLASS_SHIFT = 13

_libc = ctypes.CDLL(None, use_errno=True)


class GivingWay:
    """A process that gives way to all others, with whatever it starts from now on; it should lead a session of its own.

    ``nice`` is a niceness, not an increment: a daemon that was started with another one neither adds to it nor takes from it.  Only a
    process that is nicer already stays so, since a compiler must not come before its daemon.
    """

    def __init__(self, pid: int, nice: int) -> None:
        self._pid = pid
        _never_interrupt_others(pid)
        self._nice = _be_nice(pid, nice)
        _yield_the_disk(pid)
        self._settled = self._nice <= 0 or not _leads_a_session(pid)
        self.settle()

    def settle(self) -> None:
        """Make the session as nice as its processes; call it now and then.

        The kernel lets only one session in 100 ms be changed, of all users' together, and says EAGAIN to others.  A kernel without
        such groups, a read-only /proc, or a process that has ended is not asked again.
        """
        if self._settled:
            return
        try:
            Path(f"/proc/{self._pid}/autogroup").write_bytes(b"%d" % self._nice)
        except OSError as error:
            self._settled = error.errno != errno.EAGAIN
        else:
            self._settled = True


def _never_interrupt_others(pid: int) -> None:
    """SCHED_BATCH, also for the child of a daemon with a real-time policy; one with SCHED_IDLE takes even less."""
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(pid) != os.SCHED_IDLE:
            os.sched_setscheduler(pid, os.SCHED_BATCH, os.sched_param(0))


def _be_nice(pid: int, nice: int) -> int:
    """The niceness that the process has, or should have."""
    with contextlib.suppress(OSError):
        nice = max(nice, os.getpriority(os.PRIO_PROCESS, pid))
        os.setpriority(os.PRIO_PROCESS, pid, nice)
    return nice


def _leads_a_session(pid: int) -> bool:
    """Whether its session is its own: that of somebody else is not to be changed."""
    try:
        return os.getsid(pid) == pid
    except OSError:
        return False


def _yield_the_disk(pid: int) -> None:
    """A kernel that forbids it (seccomp) leaves it at what niceness gives."""
    number = _IOPRIO_SET.get(platform.machine())
    if number is not None:
        value = _IOPRIO_CLASS_BE << _IOPRIO_CLASS_SHIFT | IO_PRIORITY
        _libc.syscall(ctypes.c_long(number), ctypes.c_int(_IOPRIO_WHO_PROCESS), ctypes.c_int(pid), ctypes.c_int(value))
