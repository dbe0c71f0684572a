"""The metrics of a daemon at one moment, out of what its status and its counters say; changes nothing."""

from __future__ import annotations

import os
import resource
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from npgxd.daemon.keeping.metrics_histograms import COMPILE_RUN, KERNEL_COMPILE, ROUND_WAIT, Histogram
from npgxd.daemon.scheduling.misses import PREFIX, REASONS
from npgxd.daemon.telling.metrics_text import Sample, exposition
from npgxd.wire import limits
from npgxd.wire.states import ClientState, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from npgxd.daemon.sessions import Session

OTHER: Final = "other"
"""Reasons that clients made up are counted together: what they say must not add time series without end."""
_COUNTERS: Final = {
    "npgxd_rounds_total": "rounds",
    "npgxd_records_total": "records",
    "npgxd_kernel_hits_total": "hits",
    "npgxd_kernels_compiled_total": "compiled",
    "npgxd_kernels_failed_total": "failed",
    "npgxd_kernels_expired_total": "expired",
    "npgxd_kernels_removed_total": "removed",
    "npgxd_removed_bytes_total": "removed_bytes",
    "npgxd_artifacts_published_total": "artifact_published",
    "npgxd_artifacts_evicted_total": "artifact_evicted",
    "npgxd_artifacts_quarantined_total": "artifact_quarantined",
}
_HISTOGRAMS: Final = {
    "npgxd_round_wait_seconds": ROUND_WAIT,
    "npgxd_compile_run_seconds": COMPILE_RUN,
    "npgxd_kernel_compile_seconds": KERNEL_COMPILE,
}
_GAUGES: Final = {
    "npgxd_rounds_unsettled": ("queue", "rounds_total"),
    "npgxd_workers_busy": ("workers", "busy"),
    "npgxd_workers_limit": ("workers", "limit"),
    "npgxd_compiler_processes_limit": ("workers", "processes"),
    "npgxd_kernels": ("kernels", "count"),
    "npgxd_kernel_bytes": ("kernels", "bytes"),
    "npgxd_packages": ("kernels", "packages"),
    "npgxd_views": ("kernels", "views"),
    "npgxd_leases": ("kernels", "leases"),
    "npgxd_kernels_pinned": ("removal", "pinned"),
    "npgxd_kernels_retired": ("removal", "retired"),
    "npgxd_store_limit_bytes": ("removal", "max_bytes"),
    "npgxd_disk_free_bytes": ("removal", "free_bytes"),
    "npgxd_disk_wait_seconds": ("disk", "waits_s"),
    "npgxd_artifacts": ("artifacts", "entries"),
    "npgxd_artifact_bytes": ("artifacts", "bytes"),
    "npgxd_artifact_builds": ("artifacts", "building"),
    "npgxd_artifact_waiters": ("artifacts", "waiting"),
}
"""Where the status document has them; what a store that cannot be read does not tell is left out."""


class MetricsPage:
    """Assembles the text. ``status`` gives the status document, ``sessions`` who is connected, ``counters`` the catalog's and the pending."""

    def __init__(
        self,
        status: Callable[[float], dict[str, Any]],
        sessions: Iterable[Session],
        counters: Callable[[], Mapping[str, int]],
        *,
        epoch: Callable[[], float] = time.time,
    ) -> None:
        self._status = status
        self._sessions = sessions
        self._counters = counters
        self._epoch = epoch

    def text(self, now: float) -> str:
        """Everything in ``METRICS``."""
        status = self._status(now)
        return exposition({name: list(samples) for name, samples in self._families(status)})

    def frames(self, now: float) -> list[bytes]:
        """The text, cut into payload frames."""
        text, size = self.text(now).encode(), limits.MAX_FRAME_BYTES
        return [text[start : start + size] for start in range(0, len(text), size)]

    def _families(self, status: dict[str, Any]) -> Iterator[tuple[str, Iterable[Sample]]]:
        yield from _daemon(status, self._epoch())
        yield from _process()
        states = Counter(str(session.state) for session in self._sessions)
        shown = _states(self._sessions, status)
        states.update(shown)
        yield "npgxd_ranks", [Sample(states[state], {"state": state}) for state in map(str, ClientState)]
        reasons = Counter(_reason(each) for each in self._sessions if each.state is ClientState.DEGRADED)
        yield "npgxd_ranks_degraded", [Sample(number, {"reason": reason}) for reason, number in sorted(reasons.items())]
        yield "npgxd_jobs", [Sample(len({session.job for session in self._sessions}))]
        for name, (section, key) in _GAUGES.items():
            value = status.get(section, {}).get(key)
            yield name, [] if value is None else [Sample(value)]
        queue = status["queue"]
        yield "npgxd_keys", [Sample(queue[f"keys_{state}"], {"state": state}) for state in ("waiting", "compiling")]
        yield "npgxd_failures_remembered", [Sample(len(status["failures"]))]
        yield "npgxd_churning_calls", [Sample(len(status["churn"]))]
        yield from _counted(self._counters())


def _daemon(status: dict[str, Any], epoch: float) -> Iterator[tuple[str, Iterable[Sample]]]:
    daemon, toolchain, reload = status["daemon"], status["toolchain"], status["daemon"].get("reload", {})
    labels = {
        "version": str(daemon["version"]),
        "cann_version": str(toolchain.get("cann_version", "")),
        "soc": str(toolchain.get("soc", "")),
        "simulated": "yes" if toolchain.get("simulated") else "no",
    }
    yield "npgxd_info", [Sample(1, labels)]
    yield "npgxd_ready", [Sample(daemon["state"] == "READY")]
    yield "npgxd_toolchain_usable", [Sample(not toolchain["problem"])]
    yield "npgxd_start_time_seconds", [Sample(round(epoch - daemon["uptime_s"], 1))]
    yield "npgxd_config_reload_failed", [Sample(bool(reload.get("problem")))]
    yield "npgxd_config_restart_needed", [Sample(len(reload.get("restart_needed", ())))]


def _process() -> Iterator[tuple[str, Iterable[Sample]]]:
    used = os.times()
    yield "process_cpu_seconds_total", [Sample(used.user + used.system)]
    try:
        with open("/proc/self/statm", "rb") as statm:  # noqa: PTH123 -- proc(5): the second number is resident pages
            pages = int(statm.read().split()[1])
    except (OSError, ValueError, IndexError):
        return
    yield "process_resident_memory_bytes", [Sample(pages * resource.getpagesize())]


def _states(sessions: Iterable[Session], status: dict[str, Any]) -> dict[str, int]:
    """What the status says of ranks whose rounds are under way, against what the ranks said last: COMPILING for QUEUED, for example."""
    said = {session.id: str(session.state) for session in sessions}
    change: Counter[str] = Counter()
    for job in status["jobs"]:
        for rank in job["ranks"]:
            before = said.get(rank["session"])
            if before is not None and before != rank["state"]:
                change[before] -= 1
                change[rank["state"]] += 1
    return dict(change)


def _reason(session: Session) -> str:
    return session.reason if session.reason in set(Reason) else OTHER


def _counted(counters: Mapping[str, int]) -> Iterator[tuple[str, Iterable[Sample]]]:
    for name, counter in _COUNTERS.items():
        yield name, [Sample(counters.get(counter, 0))]
    yield "npgxd_kernel_misses_total", [Sample(counters.get(PREFIX + reason, 0), {"reason": reason}) for reason in REASONS]
    lookups = {"hit": "artifact_hits", "miss": "artifact_misses", "not_cacheable": "artifact_not_cacheable"}
    yield "npgxd_artifact_lookups_total", [Sample(counters.get(name, 0), {"result": result}) for result, name in lookups.items()]
    for name, histogram in _HISTOGRAMS.items():
        yield name, list(_observed(histogram, counters))


def _observed(histogram: Histogram, counters: Mapping[str, int]) -> Iterator[Sample]:
    buckets = histogram.buckets(counters)
    yield from (Sample(number, {"le": bound}, "_bucket") for bound, number in buckets)
    yield Sample(histogram.sum_s(counters), suffix="_sum")
    yield Sample(buckets[-1][1], suffix="_count")
