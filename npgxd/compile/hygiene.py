"""What a worker and all that it starts have: signals, descriptors, environment, and who outlives whom.

Everything here is set on purpose: a daemon's own settings must not leak into a compiler, nor a compiler outlive its daemon.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import resource
import signal
import subprocess
from pathlib import Path
from typing import IO, TYPE_CHECKING

from npgxd.compile.leftovers import JOB_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npgxd.compile.directory import JobDirectory

UMASK = 0o077
OOM_SCORE = 300
"""When memory runs out, a compiler goes before the daemon and before the models that the node is there for."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_ALLOWED = re.compile(r"(ASCEND_|CANN_|TE_)[A-Z0-9_]*|PATH|PYTHONPATH|LD_LIBRARY_PATH|LANG|LC_ALL|TZ")
_REFUSED = frozenset({"ASCEND_PROCESS_LOG_PATH", "ASCEND_WORK_PATH", "ASCEND_CACHE_PATH"})
"""These point the compiler's logs and caches outside the job's home."""

_libc = ctypes.CDLL(None, use_errno=True)


def become_worker(parent: int) -> None:
    """Settle a fresh worker process: own umask, told when ``parent`` dies, new parent of all orphans.

    SIGTERM at the parent's death, not SIGKILL: the worker first ends what it started; so it must be caught before this is called.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    os.umask(UMASK)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError, ValueError):  # the score can always be raised; where /proc is read-only it stays
        score = Path("/proc/self/oom_score_adj")
        score.write_text(str(max(int(score.read_text()), OOM_SCORE)))
    if os.getppid() != parent:  # it died before the request above took effect
        os.kill(os.getpid(), signal.SIGTERM)


def default_signals() -> None:
    """Every signal at its default and none blocked; a daemon that ignores or blocks some passes that on otherwise."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):  # a few real-time signals belong to the C library
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def spawn(argv: list[str], *, directory: JobDirectory, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start one program of a job: own group, no descriptor but its three, stdin from nowhere; it dies with its worker.

    The session is the worker's: one for a job, whose share of the processors is set once (:mod:`npgxd.compile.priority`).
    """
    return subprocess.Popen(
        argv,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=directory.work,
        env=dict(environment),
        close_fds=True,
        process_group=0,
        preexec_fn=_in_child(os.getpid()),  # noqa: PLW1509 -- a worker has one thread
    )


def environment_for(allowed: Mapping[str, str], directory: JobDirectory, token: str) -> dict[str, str]:
    """What op_compiler and a run package get: variables from a closed list, a home of the job's own, no display."""
    kept = {name: value for name, value in allowed.items() if _ALLOWED.fullmatch(name) and name not in _REFUSED}
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        **kept,
        "HOME": str(directory.home),
        "TMPDIR": str(directory.temporary),
        JOB_VARIABLE: token,
    }


def read_log(stream: IO[bytes] | None) -> int:
    """The descriptor of a child's output, set so that reading it never waits."""
    if stream is None:
        raise ValueError("the program was started without a pipe")
    os.set_blocking(stream.fileno(), False)
    return stream.fileno()


def _in_child(worker: int) -> Callable[[], None]:
    def prepare() -> None:
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != worker:
            os._exit(127)
        default_signals()

    return prepare


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, ctypes.c_ulong(value), ctypes.c_ulong(0), ctypes.c_ulong(0), ctypes.c_ulong(0)):
        number = ctypes.get_errno()
        raise OSError(number, f"prctl {option}: {os.strerror(number)}")
