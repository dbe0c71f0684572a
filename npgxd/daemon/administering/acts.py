"""What each administrator's request does: an answer at once, or a long act that the port drives."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from npgxd.daemon.refusals import Refused
from npgxd.daemon.slices import Task
from npgxd.oplib.checking import Checking, Findings
from npgxd.wire import admin
from npgxd.wire.explain_messages import Explain
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.daemon.administering.importing import Importer
    from npgxd.daemon.compiling.housekeeping import Housekeeping
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.daemon.telling.explaining import Explainer
    from npgxd.oplib.pins import Pin
    from npgxd.oplib.removal import Report
    from npgxd.wire.credentials import PeerCredentials
    from npgxd.wire.form import Message

log = logging.getLogger(__name__)

MAX_NAMED = 5000
"""Problems that one answer names; their number is always told."""


MAX_FORGOTTEN = 200
"""Failures that the answer to ``retry`` names; their number is always told."""


@dataclass(frozen=True, slots=True)
class Long:
    """A long act: how its result is told, and whether the port drives it or somebody else does."""

    task: Task[Any]
    document: Callable[[Any], dict[str, Any]]
    driven: bool = True


class Acts:
    """The requests of administrators. ``end`` makes the daemon stop: ``True`` at once, else after a drain."""

    def __init__(
        self,
        stores: Stores,
        coordinator: Coordinator,
        housekeeping: Housekeeping,
        importer: Importer,
        explainer: Explainer,
        end: Callable[[str, bool], None],
    ) -> None:
        self._stores = stores
        self._coordinator = coordinator
        self._housekeeping = housekeeping
        self._importer = importer
        self._explainer = explainer
        self._end = end
        self._verifying: Task[Findings] | None = None

    def do(self, message: Message, frames: tuple[bytes, ...], peer: PeerCredentials, now: float) -> dict[str, Any] | Long:  # noqa: C901, PLR0911, PLR0912 -- one a message
        """Do one request, or begin it; an NpgxError becomes a refusal."""
        match message:
            case admin.Verify():
                return self._verify(repair=message.repair)
            case admin.Gc():
                return Long(self._housekeeping.request(now, dry_run=message.dry_run), _gc_document, driven=False)
            case admin.PinKernels():
                return self._pin(message.what)
            case admin.Unpin():
                return self._unpin(message.what)
            case admin.ListPins():
                return {"pins": [self._shown(pin) for pin in self._stores.pins.all()]}
            case admin.ImportPart():
                return self._importer.take(message, frames)
            case admin.ImportRun():
                return Long(self._importer.run(message, peer, now), dict, driven=False)
            case admin.CacheRemove():
                return self._cache_remove(message.key)
            case Explain():
                return self._explainer.explain(message.what, None, now)
            case admin.Logs():
                return self._explainer.logs(message.job)
            case admin.Retry():
                return self._retry(message)
            case admin.Drain():
                self._end("npgxctl drain", False)
                return {"state": "DRAINING"}
            case admin.Shutdown():
                self._end("npgxctl shutdown", True)
                return {"state": "STOPPING"}
        raise Refused("UNKNOWN_OP", f"{message.op} is no act of an administrator")

    def _retry(self, asked: admin.Retry) -> dict[str, Any]:
        if bool(asked.keys) + bool(asked.op_type) + asked.all != 1:
            raise Refused("BAD_REQUEST", "retry is for keys, for one operator, or for all", hint="name one of them")
        gone = self._stores.history.forget(keys=asked.keys or None, op_type=asked.op_type or None)
        again = 0 if asked.keys else self._coordinator.churn.forget(asked.op_type)
        log.info("retry: forgot %s and %s that kept changing", counted(len(gone), "failure"), counted(again, "operator call"))
        return {
            "forgotten": len(gone),
            "churn": again,
            "unknown": [key for key in asked.keys if not any(row.key.startswith(key) for row in gone)],
            "named": [{"key": row.key, "op_type": row.op_type, "reason": row.reason} for row in gone[:MAX_FORGOTTEN]],
        }

    def close(self) -> None:
        """The daemon ends."""
        self._importer.close()

    def _verify(self, *, repair: bool) -> Long:
        if self._verifying is not None and not self._verifying.ended:
            raise Refused("BUSY", "a verification is under way", hint="wait for it")
        stores = self._stores
        checking = Checking(
            stores.state,
            stores.catalog,
            stores.views,
            stores.leases,
            stores.packages,
            stores.rounds,
            stores.pins,
            stores.artifacts,
        )
        self._verifying = Task(checking.check(repair=repair))
        return Long(self._verifying, _verify_document)

    def _cache_remove(self, key: str) -> dict[str, Any]:
        store = self._stores.artifacts
        entries = [row for row in store.rows.all() if row.key.startswith(key)]
        verdicts = [verdict for verdict in store.memory.verdicts() if verdict.key.startswith(key)]
        if key and not entries and not verdicts:
            raise Refused("NOTHING_FOUND", f"nothing is known under the key {key}", hint="npgxctl cache lists keys")
        with self._stores.reserve.lent():
            store.remove([row.id for row in entries])
            forgotten = store.memory.forget([verdict.id for verdict in verdicts])
        removed = counted(len(entries), "entry", "entries")
        log.info("compile cache: removed %s under %r, forgot %s", removed, key, counted(forgotten, "verdict"))
        return {"removed": len(entries), "bytes": sum(row.size for row in entries), "forgotten": forgotten}

    # ---- pins --------------------------------------------------------------------------------------------------------

    def _pin(self, what: str) -> dict[str, Any]:
        keys = self._keys(what)
        if not keys:
            raise Refused(
                "NOTHING_FOUND", f"no kernel is known under {what}", hint="npgxctl status and its log name keys and rounds"
            )
        pins = {pin.name for pin in self._stores.pins.all()} - {what}
        self._coordinator.quotas.check_pin(len(pins))
        pin = self._stores.pins.put(what, keys, time.time())
        log.info("pinned %s as %s", counted(len(pin.keys), "kernel"), what)
        return {"pin": self._shown(pin)}

    def _unpin(self, what: str) -> dict[str, Any]:
        if not self._stores.pins.remove(what):
            names = ", ".join(pin.name for pin in self._stores.pins.all()[:20]) or "none"
            raise Refused("NOTHING_FOUND", f"there is no pin {what}", hint=f"pins: {names}")
        log.info("unpinned %s", what)
        return {"unpinned": what}

    def _keys(self, what: str) -> list[str]:
        catalog = self._stores.catalog
        if what.startswith("view:"):
            digits = what.removeprefix("view:")
            views = [path.name for path in self._stores.state.views.iterdir() if path.name.startswith(digits)]
            kernels = {kernel for view in views for kernel in self._stores.views.kernels_of(view)}
            return sorted({self._stores.kernels.get(kernel).key for kernel in kernels})
        if "/" in what:
            job, _, digits = what.partition("/")
            rounds = [r for r in self._coordinator.rounds.values() if r.job == job and r.id.startswith(digits)]
            return sorted({key for found in rounds for key in found.needs})
        rows = catalog.read("SELECT DISTINCT key FROM kernels WHERE key >= ? AND key < ?", (what, what + "g"))
        return sorted(str(row[0]) for row in rows)

    def _shown(self, pin: Pin) -> dict[str, Any]:
        present = len(self._stores.catalog.kernel_ids(pin.keys))
        return {"name": pin.name, "keys": len(pin.keys), "present": present, "at": pin.at}


def _gc_document(report: Report) -> dict[str, Any]:
    said = asdict(report)
    said["kept"] = dict(report.kept)
    said["victims"] = [victim._asdict() for victim in report.victims]
    said["line"] = report.line()
    return said


def _verify_document(found: Findings) -> dict[str, Any]:
    for problem in found.problems:
        log.warning("verify: %s %s: %s%s", *problem[:3], f"; {problem.done}" if problem.done else "")
    return {
        "repair": found.repair,
        "kernels": found.kernels,
        "packages": found.packages,
        "views": found.views,
        "rounds": found.rounds,
        "pins": found.pins,
        "artifacts": found.artifacts,
        "bytes": found.bytes,
        "found": len(found.problems),
        "left": found.left,
        "problems": [problem._asdict() for problem in found.problems[:MAX_NAMED]],
    }
