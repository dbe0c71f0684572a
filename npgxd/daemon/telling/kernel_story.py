"""One kernel's story: whether it is there, why it was or is missing, who waits for it, and the jobs that were to compile it."""

from __future__ import annotations

import shlex
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from npgxd.compile.summary import log_tails
from npgxd.errors import StoreError
from npgxd.wire.states import KeyOutcome

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.compile.summary import Summary
    from npgxd.daemon.compiling.job_history import JobHistory
    from npgxd.daemon.demand.flights import Need
    from npgxd.daemon.demand.rounds import Round, Settlement
    from npgxd.daemon.demand.tries import Tried
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.store.manifest import KernelManifest

MAX_NAMED: Final = 50
_COMPARED: Final = 50
"""Kernels of the same operator that are looked at for one that was made from the same record."""


class KernelStory:
    """What the store, the rounds and the jobs know of one key."""

    def __init__(self, stores: Stores, coordinator: Coordinator, history: JobHistory, stage: Callable[[str], str | None]) -> None:
        self._stores = stores
        self._coordinator = coordinator
        self._history = history
        self._stage = stage

    def brief(self, need: Need) -> dict[str, Any]:
        """One line about a key that somebody waits for."""
        flight = self._coordinator.flights.get(need.key)
        job = flight.job if flight is not None else None
        return {"key": need.key, "op_type": need.record.op_type, "state": self._state(job), "job": job or ""}

    def _state(self, job: str | None) -> str:
        """That of a key in flight."""
        return (self._stage(job) or "compiling") if job else "waiting"

    def tell(self, key: str, uid: int | None, now: float) -> dict[str, Any]:
        """All of it. ``uid`` None: an administrator, who also sees other users' rounds, command lines and logs."""
        askers = [r for r in self._coordinator.rounds.values() if key in r.needs]
        flight = self._coordinator.flights.get(key)
        need = flight.need if flight is not None else next((r.needs[key] for r in askers), None)
        kernel = self._kernel(key)
        failure = self._stores.history.failures([key]).get(key)
        jobs = self._history.of_key(key)
        told = next(
            (r.settlements[key] for r in reversed(askers) if key in r.settlements and not r.settlements[key].kernel), None
        )
        if flight is not None:
            state = self._state(flight.job)
        elif kernel is not None:
            state = "present"
        else:
            state = "failed" if failure or told else "unknown"
        return {
            "key": key,
            "op_type": need.record.op_type if need else kernel.origin.op_type if kernel else failure.op_type if failure else "",
            "state": state,
            "why": failure.reason if failure else _last(told) if told and state == "failed" else self._why(state, need, kernel),
            "kernel": None if kernel is None else _kernel(kernel),
            "failure": None if failure is None else asdict(failure),
            "tries": [_tried(each, now) for each in self._coordinator.flights.tries_of(key)],
            "pinned": [pin.name for pin in self._stores.pins.all() if key in pin.keys],
            "waiting": [_asker(r, now) for r in askers if r.result is None and key not in r.settlements and uid in {None, r.uid}][
                :MAX_NAMED
            ],
            "waiting_total": sum(r.result is None and key not in r.settlements for r in askers),
            "jobs": [self._job(job, key, uid, running=flight is not None and flight.job == job.job) for job in jobs],
        }

    def _kernel(self, key: str) -> KernelManifest | None:
        return self._stores.kernels.find_many([key]).get(key)

    def _why(self, state: str, need: Need | None, kernel: KernelManifest | None) -> str:
        """Why there is no kernel (yet), or why there was none when it was compiled last."""
        if state == "unknown":
            return "it was asked for, and nothing became of it: it is compiled when it is asked for again"
        if need is None and kernel is not None:
            return ""
        before = self._older(need, kernel)
        if before:
            return before
        return "" if kernel is not None else "no kernel was ever compiled for this record under this toolchain"

    def _older(self, need: Need | None, kernel: KernelManifest | None) -> str:
        """A kernel of the same record under another key, and in what that differs."""
        if need is None:
            return ""
        rows = self._stores.catalog.read(
            "SELECT id FROM kernels WHERE op_type = ? ORDER BY sequence DESC LIMIT ?", (need.record.op_type, _COMPARED)
        )
        for (name,) in rows:
            try:
                other = self._stores.kernels.get(str(name))
            except StoreError:
                continue
            if other.origin.record_digest != need.record.digest or other.origin.key == need.key:
                continue
            if kernel is not None and other.making.sequence > kernel.making.sequence:
                continue
            if other.origin.fingerprint != need.fingerprint:
                return (
                    f"the toolchain changed for this operator: a kernel of the same record was made "
                    f"{_ago(other.making.made_at)} ago under CANN {other.origin.cann_version}, "
                    f"fingerprint {other.origin.fingerprint[:12]}; now it is {need.fingerprint[:12]}"
                )
            return "the same record was compiled with other options"
        return ""

    def _job(self, job: Summary, key: str, uid: int | None, *, running: bool) -> dict[str, Any]:
        """One job; of another user's, only how it ended for this key."""
        failed = {name: (outcome, reason) for name, outcome, reason in job.failed}
        otherwise = "running" if running else "compiled" if job.compiled else "ended"
        outcome, reason = failed.get(key, (otherwise, job.reason))
        told: dict[str, Any] = {
            "job": job.job,
            "began_at": job.began_at,
            "wall_s": job.wall_s,
            "running": running,
            "outcome": outcome,
            "reason": reason,
        }
        if uid not in {None, job.uid}:
            return told
        logs = log_tails(self._stores.state.jobs / job.job)
        return {
            **told,
            "uid": job.uid,
            "keys": len(job.keys),
            "compiled": job.compiled,
            "command": shlex.join(job.argv),
            "exit_code": job.exit_code,
            "directory": str(self._stores.state.jobs / job.job) if logs else "",
            "logs": [{"file": name, "text": text} for name, text in logs]
            or ([{"file": "", "text": job.tail}] if job.tail else []),
        }


def _last(told: Settlement) -> str:
    """How the last round that asked for it ended, where nothing of that is remembered."""
    if told.outcome is KeyOutcome.CAPPED:
        return told.reason
    return f"{told.reason}; that is not remembered: it is compiled when it is asked for again"


def _kernel(kernel: KernelManifest) -> dict[str, Any]:
    return {
        "id": kernel.id,
        "package": kernel.making.package,
        "package_name": kernel.making.package_name,
        "cost_s": kernel.making.cost_s,
        "made_at": kernel.making.made_at,
        "fingerprint": kernel.origin.fingerprint,
        "cann_version": kernel.origin.cann_version,
        "soc": kernel.origin.soc,
    }


def _asker(asked: Round, now: float) -> dict[str, Any]:
    return {
        "round": asked.id,
        "job": asked.job,
        "uid": asked.uid,
        "pid": asked.entry.pid if asked.entry is not None else 0,
        "rank": asked.rank.rank,
        "graph": asked.graph,
        "state": str(asked.state),
        "elapsed_s": round(now - asked.accepted_at, 3),
    }


def _tried(tried: Tried, now: float) -> dict[str, Any]:
    return {
        "job": tried.job,
        "outcome": str(tried.outcome),
        "reason": tried.reason,
        "ago_s": round(now - tried.at, 3),
        "processes": tried.processes,
        "kernels": tried.mates,
    }


def _ago(at: float) -> str:
    seconds = max(0.0, time.time() - at)
    return f"{seconds / 3600:.1f} h" if seconds >= 3600 else f"{seconds:.0f} s"  # noqa: PLR2004 -- an hour
