"""The exit codes of npgxctl. Stable: scripts and probes rely on them; a code is never given a second meaning.

====  ================================================================================================
code  meaning
====  ================================================================================================
0     done; for ``status``: the daemon serves, and no connected rank is in one of the states below
3     a rank is DEGRADED: some or all of its operators run with dynamic kernels
4     a rank is DISABLED: it has no static kernels, for a reason that is no fault
5     kernels are queued or being compiled for a rank
6     a rank is recording its first run
7     the daemon serves nobody: it is stopping, or has no usable CANN toolchain
64    wrong usage
69    no daemon answers
70    an error inside npgxctl
74    the output could not be written
76    the daemon answered what this npgxctl does not understand
====  ================================================================================================

Where several apply to ``status``, 7 comes before 3, 4, 5 and 6, in this order.
"""

from __future__ import annotations

from enum import IntEnum


class Exit(IntEnum):
    """The codes of this module's table."""

    OK = 0
    DEGRADED = 3
    DISABLED = 4
    COMPILING = 5
    RECORDING = 6
    NOT_SERVING = 7
    USAGE = 64
    UNAVAILABLE = 69
    INTERNAL = 70
    OUTPUT = 74
    PROTOCOL = 76


STATUS_TABLE = """exit codes:
  0   the daemon serves, and no rank is in a state below
  3   a rank is DEGRADED (some operators run with dynamic kernels)
  4   a rank is DISABLED (no static kernels, and that is no fault)
  5   kernels are queued or being compiled for a rank
  6   a rank is recording its first run
  7   the daemon is stopping, or has no usable CANN toolchain
  64  wrong usage
  69  no daemon answers
  76  the daemon answered what this npgxctl does not understand
The first of 7, 3, 4, 5, 6 that applies is given."""
