"""Explaining: what is known of one kernel, process, round or job, put together from the daemon's parts at one moment; changes nothing.

A user sees their own rounds, processes and logs, and of kernels what everybody may know: that they are there, or why they are not.
"""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from npgxd.daemon.refusals import Refused
from npgxd.daemon.telling.failed_runs import failed_runs
from npgxd.daemon.telling.kernel_story import KernelStory
from npgxd.daemon.telling.status import state_of
from npgxd.wire import limits
from npgxd.wire.printable import counted
from npgxd.wire.states import ClientState, RoundState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from npgxd.daemon.compiling.job_history import JobHistory
    from npgxd.daemon.demand.rounds import Round
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.scheduling.coordinator import Coordinator
    from npgxd.daemon.sessions import Session, Sessions
    from npgxd.store.rounds import RoundEntry
    from npgxd.wire.credentials import PeerCredentials
    from npgxd.wire.messages import RoundProgress

SCHEMA: Final = 1
MAX_NAMED: Final = 50
"""Keys and failures that one round names of each kind; their number is always told."""
MAX_ROUNDS: Final = 10
"""Sessions and rounds of one process. With the other limits, the document fits into one message whatever clients say."""
MAX_SAID: Final = 300
"""Characters of what a client says of itself."""
SEARCHED_ROUNDS: Final = 256
"""Of the newest rounds, the keys are searched for first digits; a whole key, and what the store knows, is found in any case."""
DIGITS: Final = 64
_WELL: Final = {ClientState.INSTALLED: 2, ClientState.RECORDING: 1, ClientState.QUEUED: 1, ClientState.COMPILING: 1}
"""How well off a session is, by its state; 0 where it is in none of these."""
_HINT: Final = "npgxctl status and the daemon's log name keys, rounds, jobs and pids"


class Explainer:
    """Answers about anything that has a name. ``uid`` None is an administrator, who sees everything; ``stage``: what a run is at."""

    def __init__(
        self,
        stores: Stores,
        sessions: Sessions,
        coordinator: Coordinator,
        history: JobHistory,
        stage: Callable[[str], str | None] = lambda _job: None,
    ) -> None:
        self._stores = stores
        self._sessions = sessions
        self._coordinator = coordinator
        self._history = history
        self._story = KernelStory(stores, coordinator, history, stage)
        self.progress: Callable[[Round, float], RoundProgress] = lambda told, now: told.progress(now, coordinator.eta(told, now))

    def explain(self, what: str, uid: int | None, now: float) -> dict[str, Any]:
        """The document (docs/file-formats.md); Refused if nothing has this name, or several things have."""
        kind, _, name = what.rpartition(":")
        processes = self._processes(int(name), uid) if kind in {"", "pid"} and name.isdecimal() and len(name) <= 10 else []  # noqa: PLR2004 -- a pid's digits
        rounds = self._rounds(name, uid) if kind in {"", "round"} else []
        jobs = self._jobs(name, uid) if kind in {"", "job"} else []
        keys = self._keys(name, uid) if kind in {"", "key"} else []
        others = [*(f"round:{r.id}" for r in rounds), *(f"job:{job}" for job in jobs), *(f"key:{key}" for key in keys)]
        if processes and kind != "pid" and others:
            raise _ambiguous(what, ["pid:" + name, *others])
        if processes:
            return self._process(int(name), processes, uid, now)
        if len(others) > 1:
            raise _ambiguous(what, others)
        if jobs:
            return {"kind": "job", "asked": what, **self._job(jobs[0], uid, now)}
        if rounds:
            return {"kind": "round", "asked": what, **self._round(rounds[0], now)}
        if keys:
            return {"kind": "kernel", "asked": what, **self._story.tell(keys[0], uid, now)}
        for entry in self._coordinator.postponed.waiting() if kind in {"", "round"} else ():
            if entry.round.startswith(name) and uid in {None, entry.uid}:
                return {"kind": "round", "asked": what, **_postponed(entry)}
        raise Refused("NOTHING_FOUND", f"nothing is known under {what}", hint=self._no_run(name, uid) if not kind else _HINT)

    def logs(self, digits: str) -> dict[str, Any]:
        """What the runs of op_compiler that failed have left: of all in brief, or of the one whose id begins so."""
        return failed_runs(self._history, self._stores.state.jobs, digits)

    def frames(self, peer: PeerCredentials, what: str, now: float) -> list[bytes]:
        """For one who asks at npgxd.sock: the document as JSON, cut into payload frames."""
        uid = None if peer.uid in {0, os.geteuid()} else peer.uid
        text = json.dumps(self.explain(what, uid, now), separators=(",", ":")).encode()
        size = limits.MAX_FRAME_BYTES
        return [text[start : start + size] for start in range(0, len(text), size)]

    # ---- finding -----------------------------------------------------------------------------------------------------

    def _newest(self, uid: int | None) -> Iterable[Round]:
        mine = (r for r in reversed(self._coordinator.rounds.values()) if uid in {None, r.uid})
        return islice(mine, SEARCHED_ROUNDS)

    def _processes(self, pid: int, uid: int | None) -> list[Session | Round]:
        sessions = [each for each in self._sessions if _pid(each) == pid and uid in {None, each.peer.uid}]
        return [*sessions] or [*self._rounds_of(pid, uid)[:1]]

    def _rounds_of(self, pid: int, uid: int | None) -> list[Round]:
        sessions = {each.id for each in self._sessions if _pid(each) == pid}
        rounds = self._coordinator.rounds.values()
        mine = [r for r in rounds if r.session in sessions or (r.entry is not None and r.entry.pid == pid)]
        return [r for r in mine if uid in {None, r.uid}]

    def _rounds(self, digits: str, uid: int | None) -> list[Round]:
        rounds = self._coordinator.rounds
        found = [rounds[name] for name in rounds if name.startswith(digits)]
        return [r for r in found if uid in {None, r.uid}]

    def _jobs(self, digits: str, uid: int | None) -> list[str]:
        said = [(each.job, each.peer.uid) for each in self._sessions]
        said += [(each.job, each.uid) for each in self._coordinator.rounds.values()]
        return sorted({job for job, owner in said if job.startswith(digits) and uid in {None, owner}})

    def _no_run(self, digits: str, uid: int | None) -> str:
        """What to type where it is a run of op_compiler that was meant: the log and other pages name these, too."""
        for run in self._history.all():
            if run.job.startswith(digits) and uid in {None, run.uid}:
                return (
                    f"it is a run of op_compiler, for {counted(len(run.keys), 'kernel')}: npgxctl explain {run.keys[0][:12]}"
                    + (f", or npgxctl logs {digits}" if run.failed or run.reason else "")
                )
        return _HINT

    def _keys(self, digits: str, uid: int | None) -> list[str]:
        catalog = self._stores.catalog
        end = digits + "g"
        known = {
            str(row[0]) for row in catalog.read("SELECT DISTINCT key FROM kernels WHERE key >= ? AND key < ?", (digits, end))
        }
        known |= {str(row[0]) for row in catalog.read("SELECT key FROM failed_keys WHERE key >= ? AND key < ?", (digits, end))}
        stored = {
            str(row[0]) for row in catalog.read("SELECT key FROM kernels WHERE id >= ? AND id < ?", (digits, end))
        }  # verify's words
        if len(digits) == DIGITS:
            asked = any(digits in r.needs for r in self._coordinator.rounds.values())
            return [digits] if known or asked else sorted(stored)
        known |= stored
        known |= {key for r in self._newest(uid) for key in r.needs if key.startswith(digits)}
        return sorted(known)

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _process(self, pid: int, found: list[Session | Round], uid: int | None, now: float) -> dict[str, Any]:
        sessions = [each for each in self._sessions if each in found]
        return {"kind": "process", "asked": str(pid), "pid": pid, **self._ranks(sessions, self._rounds_of(pid, uid), now)}

    def _job(self, job: str, uid: int | None, now: float) -> dict[str, Any]:
        sessions = [each for each in self._sessions if each.job == job and uid in {None, each.peer.uid}]
        rounds = [each for each in self._coordinator.rounds.values() if each.job == job and uid in {None, each.uid}]
        return {"job": job, **self._ranks(sessions, rounds, now)}

    def _ranks(self, sessions: list[Session], rounds: list[Round], now: float) -> dict[str, Any]:
        """Of sessions those that are worst off, and of rounds the newest, those that wait after all others."""
        states = {each.id: state_of(each, self._coordinator.rounds.get(each.round)) for each in sessions}
        sessions = sorted(sessions, key=lambda each: _WELL.get(states[each.id], 0))
        rounds = sorted(rounds, key=lambda each: (each.result is None, each.accepted_at))
        return {
            "sessions": [_session(each, states[each.id], now) for each in sessions[:MAX_ROUNDS]],
            "sessions_total": len(sessions),
            "rounds": [self._round(each, now) for each in rounds[-MAX_ROUNDS:]],
            "rounds_total": len(rounds),
        }

    def _round(self, told: Round, now: float) -> dict[str, Any]:
        progress = self.progress(told, now)
        result = told.result
        open_keys = told.open_keys
        return {
            "round": told.id,
            "job": told.job,
            "group": told.group,
            "uid": told.uid,
            "pid": told.entry.pid if told.entry is not None else 0,
            "rank": told.rank.rank,
            "graph": told.graph,
            "state": str(told.state),
            "why": self._why(told, now),
            "records": told.records,
            "unique": len(told.needs),
            "done": progress.done,
            "elapsed_s": round(progress.elapsed_s, 3),
            "eta_s": progress.eta_s,
            "stalled_s": round(progress.stalled_s, 3),
            "outcome": None if result is None else str(result.state),
            "reason": "" if result is None else str(result.reason),
            "detail": "" if result is None else result.detail,
            "hint": "" if result is None else result.hint,
            "hits": 0 if result is None else result.hits,
            "compiled": 0 if result is None else result.compiled,
            "waits_for": [self._story.brief(told.needs[key]) for key in open_keys[:MAX_NAMED]],
            "waits_for_total": len(open_keys),
            "failures": [
                {"key": each.key, "op_type": each.op_type, "outcome": str(each.outcome), "reason": each.reason}
                for each in told.failures()[:MAX_NAMED]
            ],
            "shadowed": [
                {"key": each.key, "op_type": each.op_type, "reason": each.reason}
                for each in (() if result is None else result.shadowed[:MAX_NAMED])
            ],
            "rejected": [{"name": each.name, "reason": each.reason} for each in told.rejected[:MAX_NAMED]],
        }

    def _why(self, told: Round, now: float) -> str:
        """What an unsettled round waits for, in words."""
        if told.result is not None:
            return ""
        if told.state is RoundState.WAITING:
            expected, note = self._coordinator.expected(told.job)
            return f"waits for other ranks of its job ({expected} on this node)" if expected else note or "its group is open"
        if not told.open_keys:
            return "its kernels are there, and are being put in place" + self._disk(now)
        states = {str(self._story.brief(told.needs[key])["state"]) for key in told.open_keys[:MAX_NAMED]}
        if states <= {"installing", "publishing"}:
            return "its kernels are compiled, and are being put into the store" + self._disk(now)
        return "its kernels are being compiled" if told.state is RoundState.COMPILING else "its kernels wait for a worker"

    def _disk(self, now: float) -> str:
        """What keeps it, where the disk does."""
        return ", but the disk does not answer: npgxctl doctor" if self._stores.disk_watch.describe(now).get("slow") else ""


def _pid(session: Session) -> int:
    """The process behind a session, by the kernel's word; by its own where the kernel has none here."""
    return session.peer.pid or session.hello.pid


def _postponed(entry: RoundEntry) -> dict[str, Any]:
    """A round that an earlier life of the daemon accepted."""
    return {
        "round": entry.round,
        "job": entry.job,
        "uid": entry.uid,
        "pid": entry.pid,
        "rank": entry.rank.get("rank"),
        "graph": entry.graph,
        "state": str(RoundState.WAITING),
        "why": "it was accepted before the daemon was restarted, and waits for a CANN toolchain (npgxctl status)",
        "records": len(entry.records),
        "outcome": None,
    }


def _session(session: Session, state: ClientState, now: float) -> dict[str, Any]:
    return {
        "session": session.id,
        "uid": session.peer.uid,
        "job": session.job,
        "program": session.hello.program[:MAX_SAID],
        "client": session.hello.client[:MAX_SAID],
        "rank": session.rank.rank,
        "local_rank": session.rank.local_rank,
        "state": str(state),
        "reason": session.reason,
        "detail": session.detail[:MAX_SAID],
        "graph": session.graph,
        "differences": [
            {"what": d.what, "rank": d.rank[:MAX_SAID], "daemon": d.daemon[:MAX_SAID]} for d in session.differences[:MAX_NAMED]
        ],
        "leases": len(session.leases),
        "loaded": len(session.loaded),
        "connected_s": round(now - session.connected_at, 3),
    }


def _ambiguous(what: str, names: list[str]) -> Refused:
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")  # noqa: PLR2004 -- as above
    return Refused("AMBIGUOUS", f"{what} may mean {shown}", hint="give more digits, or say which with key:, round:, job: or pid:")
