"""Where this process stands in its job, from its environment: labels for people and for grouping, never identity."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.wire import limits
from npgxd.wire.messages import RankInfo

if TYPE_CHECKING:
    from collections.abc import Mapping

MAX_RANK = 1_000_000


def rank_info(environ: Mapping[str, str]) -> RankInfo:
    """The rank variables that torchrun and its like set. A malformed or absurd number is None: not stated."""
    address, port = environ.get("MASTER_ADDR", ""), environ.get("MASTER_PORT", "")
    return RankInfo(
        run_id=printable(environ.get("TORCHELASTIC_RUN_ID", ""), limits.MAX_TEXT),
        master=printable(f"{address}:{port}" if address or port else "", limits.MAX_NAME),
        launcher=launcher(os.getppid()),
        rank=_number(environ.get("RANK"), low=0),
        local_rank=_number(environ.get("LOCAL_RANK"), low=0),
        world_size=_number(environ.get("WORLD_SIZE"), low=1),
        local_world_size=_number(environ.get("LOCAL_WORLD_SIZE"), low=1),
    )


def launcher(pid: int, proc: Path = Path("/proc")) -> str:
    """``<pid>:<start time in ticks>:<boot id prefix>`` of the process that started this one; empty if it is not visible here."""
    try:
        stat = (proc / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        started = stat.rpartition(")")[2].split()[19]  # field 22 of proc_pid_stat(5); the name before it may hold anything
    except (OSError, IndexError, UnicodeDecodeError):
        return ""
    return f"{pid}:{started}:{boot[:8]}"


def program() -> str:
    """What runs here, for people: the script's path, or the interpreter's."""
    return printable((sys.argv[0] if sys.argv and sys.argv[0] else sys.executable) or "python", limits.MAX_TEXT)


def printable(value: str, maximum: int) -> str:
    """``value`` as text that can be sent: what is not valid Unicode is escaped, the length is bounded."""
    return value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "")[:maximum]


def _number(value: str | None, *, low: int) -> int | None:
    if value is None or not value.isascii() or not value.strip().isdecimal():
        return None
    number = int(value) if len(value) < 20 else MAX_RANK + 1  # noqa: PLR2004 -- longer than any rank; int() has its own limit
    return number if low <= number <= MAX_RANK else None
