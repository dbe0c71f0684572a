"""A daemon that looks after its op library and for its toolchain ten times as often as the real one: no test waits for a look.

What it does when it looks is the daemon's own; how often that is has its tests with a clock that is passed in (``tests/daemon``).
Processes with a CANN that this machine runs beside its test are none of its node's, and it waits for none of them.
"""

from __future__ import annotations

import os
import sys

import psutil

from npgxd.daemon import service
from npgxd.daemon.keeping import keyer
from npgxd.daemon.library import roots
from npgxd.daemon.main import main
from npgxd.daemon.scheduling import postponed
from npgxd.oplib.users import User, cann_users

OFTEN = 10
INTERVALS = (
    (roots, "LOOK_S"),
    (roots, "RETRY_S"),
    (roots, "REFRESH_S"),
    (service, "LEASE_POLL_S"),
    (keyer, "MISSING_S"),
    (postponed, "TAKE_UP_S"),
)
TEST = os.getppid()


def users_of_the_test(*, unreadable: bool) -> frozenset[User]:
    return frozenset(user for user in cann_users(unreadable=unreadable) if TEST in ancestors(user.pid))


def ancestors(pid: int) -> set[int]:
    try:
        return {process.pid for process in psutil.Process(pid).parents()}
    except psutil.NoSuchProcess:
        return set()


if __name__ == "__main__":
    for module, name in INTERVALS:
        setattr(module, name, getattr(module, name) / OFTEN)
    roots.cann_users = users_of_the_test
    sys.exit(main())
