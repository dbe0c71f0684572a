"""The exit codes of npgxctl. Stable: scripts and probes rely on them; a code is never given a second meaning.

====  ================================================================================================
code  meaning
====  ================================================================================================
0     done; for ``status``: the daemon serves, and no connected rank is in one of the states below
1     ``verify``: problems were found (with ``--repair``: all of them are mended); ``gc``: a limit is still not met;
      ``import``: some records were rejected; ``cache show``, ``cache why``: nothing is known of that;
      ``explain``: nothing, or several things, are known under that name; ``logs``: no such run;
      ``retry``: some of that was not remembered as failed
2     ``verify --repair``: problems are left
3     a rank is DEGRADED: some or all of its operators run with dynamic kernels
4     a rank is DISABLED: it has no static kernels, for a reason that is no fault
5     kernels are queued or being compiled for a rank
6     a rank is recording its first run
7     the daemon serves nobody: it is stopping, or has no usable CANN toolchain
64    wrong usage
69    no daemon answers
70    an error inside npgxctl
71    the operating system refuses threads
74    the output could not be written
76    the daemon answered what this npgxctl does not understand
78    an argument cannot be used
====  ================================================================================================

``explain`` gives 3, 4 and 5 for what was asked about. Where several apply to ``status``, 7 comes before 3, 4, 5 and 6, in this order.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The codes of this module's table."""

    OK = 0
    PROBLEMS = 1
    PROBLEMS_LEFT = 2
    DEGRADED = 3
    DISABLED = 4
    COMPILING = 5
    RECORDING = 6
    NOT_SERVING = 7
    USAGE = 64
    UNAVAILABLE = 69
    INTERNAL = 70
    NO_THREADS = 71
    OUTPUT = 74
    PROTOCOL = 76


_ADMIN_CODES = """  64  wrong usage
  69  no daemon can be asked (it is for root and the daemon's own user), or it refused
  71  the operating system refuses threads
  76  the daemon answered what this npgxctl does not understand
  78  an argument cannot be used"""
ADMIN_TABLE = f"exit codes:\n  0   done\n{_ADMIN_CODES}"
VERIFY_TABLE = f"""exit codes:
  0   clean
  1   problems were found; with --repair: all of them are mended
  2   with --repair: problems are left
{_ADMIN_CODES}"""
GC_TABLE = f"exit codes:\n  0   done\n  1   a limit is still not met: the rest is needed\n{_ADMIN_CODES}"
IMPORT_TABLE = f"exit codes:\n  0   done\n  1   done, and some records were rejected\n{_ADMIN_CODES}"
CACHE_TABLE = f"""exit codes:
  0   done
  1   nothing is known under that key or label (show, why)
{_ADMIN_CODES}
Every user may list what is cached for them; root and the daemon's own user see all, and may remove."""
EXPLAIN_TABLE = f"""exit codes:
  0   the kernel is there; all is well with the process or round
  1   nothing, or several things, are known under that name; or nothing became of the kernel
  3   the kernel failed; the process or round is DEGRADED
  4   the process is DISABLED
  5   it is waited for, or being compiled
{_ADMIN_CODES}
Root and the daemon's own user are told everything (over admin.sock), others of rounds and logs their own."""
RETRY_TABLE = f"exit codes:\n  0   done\n  1   some of that was not remembered as failed\n{_ADMIN_CODES}"
ASK_TABLE = """exit codes:
  0   done
  64  wrong usage
  69  no daemon answers
  71  the operating system refuses threads
  74  the output could not be written
  76  the daemon answered what this npgxctl does not understand
  78  an argument cannot be used"""
LOGS_TABLE = f"exit codes:\n  0   done\n  1   no such run is known\n{_ADMIN_CODES}"
COMPLETION_TABLE = "exit codes:\n  0   done\n  64  wrong usage"
STATUS_TABLE = """exit codes:
  0   the daemon serves, and no rank is in a state below
  3   a rank is DEGRADED (some operators run with dynamic kernels)
  4   a rank is DISABLED (no static kernels, and that is no fault)
  5   kernels are queued or being compiled for a rank
  6   a rank is recording its first run
  7   the daemon is stopping, or has no usable CANN toolchain
  64  wrong usage
  69  no daemon answers
  71  the operating system refuses threads
  76  the daemon answered what this npgxctl does not understand
The first of 7, 3, 4, 5, 6 that applies is given; with --daemon only 7 is looked for."""
CONFIG_TABLE = """exit codes:
  0   the configuration is good
  64  wrong usage
  78  it is not; what is wrong, and where, is said on stderr"""
UNITS_TABLE = """exit codes:
  0   done
  1   done, but files that somebody has changed were left as they are
  64  wrong usage
  78  an argument or the configuration cannot be used, or a command of systemd failed"""
DOCTOR_TABLE = """exit codes:
  0   nothing is wrong
  1   something is, with what to do about it
  64  wrong usage"""
