"""Failures that a test or a demonstration orders in advance, and what the compiler takes of them as it goes."""

from __future__ import annotations

import fcntl
import fnmatch
import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from .record import Record

OP_KINDS = {
    "fail": "the op does not compile: its log says why, the package is made without it, exit status 0",
    "leave_out": "the op compiles by its log, and is not in the package: exit status 0",
    "hang": "the op never ends; its opc process and a child of that stay alive",
    "hang_hard": "as hang, and all of them ignore SIGTERM, SIGINT and SIGHUP",
    "crash": "op_compiler dies by SIGSEGV at this op; opc processes already started go on",
    "oom_kill": "memory runs out at this op: op_compiler says so and is killed by SIGKILL; opc processes already started go on",
    "killed": "op_compiler is killed by SIGKILL at this op, as somebody might do by hand; opc processes already started go on",
    "opc_killed": "only the op's opc process is killed by SIGKILL; the package is made without it, exit status 0",
    "torn_object": "the op's .o in the package does not have the bytes that its json says",
    "missing_object": "the package's index names a .o that the package does not have",
}
RUN_KINDS = {
    "exit_nonzero": "every op compiles, then op_compiler exits 1 without a package",
    "exit_nonzero_with_package": "the package is made, and op_compiler exits 1",
    "no_space": "the disk is full while the package is written: half a file stays, exit status 1",
    "corrupt_package": "the package has other bytes than its checksum says",
    "truncated_package": "the package lacks its last part",
    "installer_fails": "the package installs half its files and exits 1",
    "installer_does_nothing": "the package says that it installed, exits 0, and did nothing",
}
KINDS = {**OP_KINDS, **RUN_KINDS}


@dataclass(frozen=True)
class Order:
    """One ordered failure: for op types matching a pattern, whose record contains a text, so many times (None: always)."""

    id: int
    op_type: str
    kind: str
    times: int | None = None
    contains: str = ""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"unknown failure {self.kind!r}; known: {', '.join(KINDS)}")

    def matches(self, record: Record) -> bool:
        """Whether ``record`` is one that this order is about."""
        return fnmatch.fnmatchcase(record.op_type, self.op_type) and self.contains in record.canonical

    def to_json(self) -> dict[str, object]:
        """As ``sim.json`` holds it."""
        return asdict(self)


class Orders:
    """The orders of one home. A limited one is used up across processes: each use is a byte in a file beside ``sim.json``."""

    def __init__(self, home: Path, orders: list[Order]) -> None:
        self._home = home
        self._orders = orders

    def for_op(self, record: Record) -> Order | None:
        """The first order for this op, taken."""
        return next((o for o in self._orders if o.kind in OP_KINDS and o.matches(record) and self._take(o)), None)

    def for_run(self, records: list[Record]) -> frozenset[str]:
        """The kinds of failure ordered for a run that has these records, taken."""
        return frozenset(
            o.kind for o in self._orders if o.kind in RUN_KINDS and any(o.matches(record) for record in records) and self._take(o)
        )

    def _take(self, order: Order) -> bool:
        if order.times is None:
            return True
        descriptor = os.open(
            self._home / f"sim-order-{order.id}.taken", os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if os.fstat(descriptor).st_size >= order.times:
                return False
            os.write(descriptor, b".")
            return True
        finally:
            os.close(descriptor)
