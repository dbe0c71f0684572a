"""Every metric of the daemon: its name, kind, labels and meaning. docs/metrics.md has the same table.

Names follow Prometheus' conventions: base units, ``_total`` for counters.  A name, once released, keeps its meaning.
"""

from __future__ import annotations

from typing import Final, NamedTuple


class Metric(NamedTuple):
    """One family."""

    name: str
    kind: str
    help: str
    labels: tuple[str, ...] = ()


def _gauge(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "gauge", meaning, labels)


def _counter(name: str, meaning: str, *labels: str) -> Metric:
    return Metric(name, "counter", meaning, labels)


def _histogram(name: str, meaning: str) -> Metric:
    return Metric(name, "histogram", meaning)


METRICS: Final = (
    # The daemon.
    _gauge("npgxd_info", "1; what serves here", "version", "cann_version", "soc", "simulated"),
    _gauge("npgxd_ready", "1 while the daemon accepts rounds, 0 while it drains"),
    _gauge("npgxd_toolchain_usable", "1 if there is a CANN to compile with"),
    _gauge("npgxd_start_time_seconds", "When the daemon became ready, since the epoch"),
    _gauge("npgxd_config_reload_failed", "1 if the last reload was refused"),
    _gauge("npgxd_config_restart_needed", "Configuration keys that were changed and need a restart"),
    _counter("process_cpu_seconds_total", "Processor time of the daemon itself, without its workers"),
    _gauge("process_resident_memory_bytes", "Resident memory of the daemon itself, without its workers"),
    # Ranks and their rounds.
    _gauge("npgxd_ranks", "Connected processes by their state", "state"),
    _gauge("npgxd_ranks_degraded", "Degraded processes by reason", "reason"),
    _gauge("npgxd_jobs", "Jobs with connected processes"),
    _counter("npgxd_rounds_total", "Rounds that were accepted"),
    _counter("npgxd_records_total", "Records in accepted rounds"),
    _gauge("npgxd_rounds_unsettled", "Rounds that wait"),
    _histogram("npgxd_round_wait_seconds", "From a round's acceptance to its settlement"),
    # Kernels asked for.
    _counter("npgxd_kernel_hits_total", "Kernels of rounds that were there already"),
    _counter("npgxd_kernel_misses_total", "Kernels of rounds that were not there, by reason", "reason"),
    _counter("npgxd_kernels_failed_total", "Kernels of rounds that could not be had"),
    _counter("npgxd_kernels_expired_total", "Kernels that were given up because nobody waited for them any more"),
    _gauge("npgxd_failures_remembered", "Kernels that are known to fail, at most 50 are counted"),
    _gauge("npgxd_churning_calls", "Operator calls that keep changing and are not compiled any more"),
    # Compiling.
    _gauge("npgxd_keys", "Kernels in flight", "state"),
    _gauge("npgxd_workers_busy", "Running op_compiler runs"),
    _gauge("npgxd_workers_limit", "op_compiler runs that there may be"),
    _gauge("npgxd_compiler_processes_limit", "Compiler processes that there may be, as last looked at"),
    _counter("npgxd_kernels_compiled_total", "Kernels that were compiled and published"),
    _histogram("npgxd_compile_run_seconds", "Of one op_compiler run, however it ended"),
    _histogram("npgxd_kernel_compile_seconds", "Of one kernel on its compiler process"),
    # What is kept.
    _gauge("npgxd_kernels", "Kernels in the store"),
    _gauge("npgxd_kernel_bytes", "Their size"),
    _gauge("npgxd_kernels_pinned", "Kernels that are pinned"),
    _gauge("npgxd_kernels_retired", "Kernels of another toolchain, as of the last removal"),
    _gauge("npgxd_packages", "Run packages in the store"),
    _gauge("npgxd_views", "Views"),
    _gauge("npgxd_leases", "Leases"),
    _gauge("npgxd_store_limit_bytes", "[store] max_gb; 0: no limit"),
    _gauge("npgxd_disk_free_bytes", "Free on the disk of the state directory"),
    _gauge(
        "npgxd_disk_wait_seconds", "For how long the daemon has waited for that disk until now; from 5 s on it does not answer"
    ),
    _counter("npgxd_kernels_removed_total", "Kernels that were removed"),
    _counter("npgxd_removed_bytes_total", "What removal has freed"),
    # The compile cache.
    _gauge("npgxd_artifacts", "Entries of the compile cache"),
    _gauge("npgxd_artifact_bytes", "Their size"),
    _gauge("npgxd_artifact_builds", "Entries that are being built"),
    _gauge("npgxd_artifact_waiters", "Processes that wait for an entry to be built"),
    _counter("npgxd_artifact_lookups_total", "Look-ups by result", "result"),
    _counter("npgxd_artifacts_published_total", "Entries that were published"),
    _counter("npgxd_artifacts_evicted_total", "Entries that went to make room"),
    _counter("npgxd_artifacts_quarantined_total", "Entries that were found damaged or could not be loaded"),
)
BY_NAME: Final = {metric.name: metric for metric in METRICS}
