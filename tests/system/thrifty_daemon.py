"""A daemon that looks after its memory when it has 64 MiB more than before, and not 1 GiB, and at once: no test fills a machine's memory.

One whose guard did not work would: it can have no more than 3 GiB, and ends there.
"""

from __future__ import annotations

import resource
import sys

from npgxd.daemon.main import main
from npgxd.daemon.serving import memory_guard

MOST = 3 * 1024**3

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MOST, MOST))
    memory_guard.MORE = 64 * 1024 * 1024
    memory_guard.LOOK_S = memory_guard.SAMPLE_S
    sys.exit(main())
