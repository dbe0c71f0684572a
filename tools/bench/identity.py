"""What it costs a rank to say which CANN it sees: of 20,000 files, alone and with seven others, with each state of the memo."""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.demo.children import Children

FILES = 20_000
RANKS = 8
TIMES = 7
HOMES = 60
"""CANN homes that have come and gone, each of so many files."""
HOME_FILES = 2_000
YOUNG_S = 2.1
"""Files that are younger than two seconds are read each time."""

RANK = """
import sys, time
from pathlib import Path
from npgxd.wire.identity import OpRoot, roots_digest
print("ready", flush=True)
for line in sys.stdin:
    wall, cpu = time.perf_counter(), time.process_time()
    roots_digest([OpRoot("custom", Path(line.rstrip("\\n")))], Path(sys.argv[1]))
    print(time.perf_counter() - wall, time.process_time() - cpu, flush=True)
"""


def identity(directory: Path, _children: Children) -> dict[str, str]:
    """Walls and processor times of the digest over a rank's op roots."""
    root, memo = directory / "cann", directory / "cache" / "memo"
    _make(root, FILES)
    time.sleep(YOUNG_S)
    told: dict[str, str] = {}
    for ranks in (1, RANKS):
        who = "one rank" if ranks == 1 else f"{ranks} ranks at once, the slowest"

        def row(what: str, before: Callable[[], object], *, ranks: int = ranks, who: str = who) -> None:
            told[f"{what}, {who}"] = _figures(memo, root, ranks, before)

        row("memo cold", lambda: _empty(memo))
        row("memo warm", lambda: None)
        row("one file changed", lambda: _touch(root))
    homes = [directory / f"home-{number}" for number in range(HOMES)]
    for home in homes:
        _make(home, HOME_FILES)
    time.sleep(YOUNG_S)
    for home in homes:
        _ranks(memo, home, 1)
        shutil.rmtree(home)
    told[f"the memo's size after {HOMES} homes of {HOME_FILES} files that have gone"] = f"{_size(memo) / 1e6:.1f} MB"
    told["memo warm after them, one rank"] = _figures(memo, root, 1, lambda: None)
    for ranks in (1, RANKS):
        told[f"one file changed after them, {ranks} at once, the slowest"] = _figures(memo, root, ranks, lambda: _touch(root))
    return told


def _make(root: Path, files: int) -> None:
    for number in range(files):
        path = root / "op_impl/ai_core/tbe/impl" / f"generated_{number // 100}" / f"part_{number}.h"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"// " + str(number).encode() * 500)


def _empty(memo: Path) -> None:
    shutil.rmtree(memo.parent, ignore_errors=True)


def _touch(root: Path) -> None:
    os.utime(root / "op_impl/ai_core/tbe/impl/generated_7/part_700.h")
    time.sleep(YOUNG_S)


def _size(memo: Path) -> int:
    return sum(path.stat().st_size for path in memo.parent.rglob("*") if path.is_file())


def _figures(memo: Path, root: Path, ranks: int, before: Callable[[], object]) -> str:
    walls, cpus = [], []
    for _ in range(TIMES):
        before()
        taken = _ranks(memo, root, ranks)
        walls.append(max(wall for wall, _ in taken) * 1000)
        cpus.append(sum(cpu for _, cpu in taken) * 1000)
    return (
        f"wall min {min(walls):.0f}  median {statistics.median(walls):.0f}  max {max(walls):.0f} ms;"
        f" processor, all ranks: median {statistics.median(cpus):.0f} ms (n={TIMES})"
    )


def _ranks(memo: Path, root: Path, count: int) -> list[tuple[float, float]]:
    """Wall and processor seconds of new processes that begin together."""
    command = [sys.executable, "-c", RANK, str(memo)]
    running = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(count)]
    for rank in running:
        if rank.stdout is None or rank.stdout.readline() != "ready\n":
            raise SystemExit("a bench rank did not start")
    for rank in running:
        if rank.stdin is not None:
            rank.stdin.write(f"{root}\n")
            rank.stdin.flush()
    told = [rank.communicate()[0].split() for rank in running]
    return [(float(wall), float(cpu)) for wall, cpu in told]
