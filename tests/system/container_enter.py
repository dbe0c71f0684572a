"""What an engine does last before a container's own program: the user namespace, the user, and then the program, in this process's place.

``python container_enter.py MAP UID GIDS PROGRAM...``: ``MAP`` is empty, or the user of the machine that root of the new user namespace
is (and 65535 more from there on). ``UID`` and ``GIDS`` (comma separated; the first is the primary one) are numbers inside of it, but for
further groups of a mapped container: those are the machine's, kept as ``podman run --group-add keep-groups`` does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1


def main(mapped: str, uid: str, gids: str, *program: str) -> None:
    first, *others = [int(gid) for gid in gids.split(",")]
    os.setgroups(others)
    if mapped:
        _new_user_namespace(f"0 {mapped} 65536")
    os.setresgid(first, first, first)
    os.setresuid(int(uid), int(uid), int(uid))
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # unshare's --kill-child, which ends with a change of the user
    os.execvp(program[0], program)  # noqa: S606 -- that is what it is for


def _new_user_namespace(line: str) -> None:
    """Only a process outside of it can write a map of more than one user: a child does, which was forked before."""
    me = os.getpid()
    entered, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.read(entered, 1)
        for kind in ("uid_map", "gid_map"):
            Path(f"/proc/{me}/{kind}").write_text(line)
        os._exit(0)
    if ctypes.CDLL(None, use_errno=True).unshare(_CLONE_NEWUSER):
        raise OSError(ctypes.get_errno(), "no user namespace")
    os.write(tell, b"x")
    _, status = os.waitpid(child, 0)
    if status:
        raise OSError("the map of the user namespace cannot be written")


if __name__ == "__main__":
    main(*sys.argv[1:])
