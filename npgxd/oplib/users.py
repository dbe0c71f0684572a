"""Which processes of this node may have loaded kernels from a shared root, by what they have mapped; nobody leases that root.

A process counts if the CANN runtime is mapped into it, and, unless the administrator says otherwise, also if that cannot be told: only
a process that is known not to have it, or that has ended, lets files go.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final, NamedTuple

_RUNTIME: Final = re.compile(rb"/lib(?:ascendcl|nnopbase|opapi|aclnn|acl_op_compiler|ascend_protobuf|ge_executor)[^/\n]*\.so")
_STARTED: Final = 19
"""Field of /proc/<pid>/stat, counted behind the process's name: its start, in clock ticks since boot."""


class User(NamedTuple):
    """A process that no later one can be taken for, within one boot."""

    pid: int
    started: int


def started_s(pid: int) -> float:
    """When a process started, in seconds since boot; 0 if it is not visible here: then it may have started at any time."""
    user = user_of(pid) if pid else None
    return 0.0 if user is None else user.started / os.sysconf("SC_CLK_TCK")


def cann_users(proc: Path = Path("/proc"), *, unreadable: bool = True) -> frozenset[User]:
    """Every visible process that has the CANN runtime mapped, or (``unreadable``) of which that cannot be told, but this one."""
    found: set[User] = set()
    for name in os.listdir(proc):  # noqa: PTH208 -- names alone
        if name.isdigit() and int(name) != os.getpid() and _may_use(proc / name, unreadable=unreadable):
            user = user_of(int(name), proc)
            if user is not None:
                found.add(user)
    return frozenset(found)


def user_of(pid: int, proc: Path = Path("/proc")) -> User | None:
    """The running process ``pid``; None if there is none, or only a zombie."""
    try:
        fields = (proc / str(pid) / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if fields[0] in {b"Z", b"X", b"x"} else User(pid, int(fields[_STARTED]))


def still_run(users: frozenset[User], proc: Path = Path("/proc")) -> frozenset[User]:
    """Those that have not ended."""
    return frozenset(user for user in users if user_of(user.pid, proc) == user)


def _may_use(process: Path, *, unreadable: bool) -> bool:
    try:
        return _RUNTIME.search((process / "maps").read_bytes()) is not None
    except (FileNotFoundError, ProcessLookupError):
        return False  # it has ended
    except OSError:
        return unreadable
