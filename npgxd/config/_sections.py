"""The sections of the configuration: every key with its type, bound, default and meaning.

docs/configuration.md lists the same keys.  ``restart`` marks those that a reload cannot change; ``variable`` is what counts for a key
that is not set anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from npgxd.toolchain.discovery import ToolchainSettings
from npgxd.wire.messages import CoreCounts

LOG_LEVELS = ("debug", "info", "warning", "error")
LOG_FORMATS = ("text", "json")
UNREADABLE = ("wait", "ignore")
SCOPES = ("namespace", "user")


def _key(default: object, meaning: str, **bounds: object) -> Any:
    metadata = {"meaning": meaning, **bounds}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class DaemonSection:
    """``[daemon]``."""

    state_dir: Path | None = _key(None, "where kernels, views and the journal are kept", restart=True)
    runtime_dir: Path | None = _key(None, "where the sockets are; keep it short", restart=True)
    log_level: str = _key("info", "debug, info, warning or error", among=LOG_LEVELS)
    log_format: str = _key("text", "text, or json: one object a line", among=LOG_FORMATS)
    drain_s: float = _key(60.0, "seconds that running compiles may take to finish at a stop", low=0, high=86_400)


@dataclass(frozen=True, slots=True)
class ToolchainSection:
    """``[toolchain]``: which CANN to compile with. Empty values come from the daemon's environment."""

    home: Path | None = _key(None, "ASCEND_HOME_PATH", restart=True, variable="ASCEND_HOME_PATH")
    opp: Path | None = _key(None, "ASCEND_OPP_PATH", restart=True, variable="ASCEND_OPP_PATH")
    custom_opp: tuple[str, ...] = _key(
        (), "the paths of ASCEND_CUSTOM_OPP_PATH, in search order", restart=True, variable="ASCEND_CUSTOM_OPP_PATH"
    )
    soc: str = _key("", "full SoC name as aclrtGetSocName gives it, for example Ascend910B3", restart=True, variable="NPGXD_SOC")
    vector_cores: int = _key(0, "vector cores that ranks may use; 0: not stated", low=0, high=10_000, restart=True)
    cube_cores: int = _key(0, "cube cores that ranks may use; 0: not stated", low=0, high=10_000, restart=True)

    def settings(self) -> ToolchainSettings:
        """In the form that the toolchain package takes."""
        cores = CoreCounts(self.vector_cores, self.cube_cores) if self.vector_cores or self.cube_cores else None
        return ToolchainSettings(
            home=self.home, opp=self.opp, custom_opp=tuple(Path(p) for p in self.custom_opp), soc=self.soc, cores=cores
        )


@dataclass(frozen=True, slots=True)
class CompileSection:
    """``[compile]``: the worker pool."""

    workers: int = _key(0, "op_compiler runs at the same time; 0: as the machine grants", low=0, high=256)
    jobs: int = _key(0, "compiler processes of all runs together; 0: as the machine grants", low=0, high=1024)
    cpu_share: float = _key(0.75, "the part of the granted processors that compiles may use (rounded up)", low=0.01, high=1)
    memory_share: float = _key(0.5, "the part of the available memory that compiles may take", low=0.01, high=1)
    process_mb: int = _key(0, "memory of one compiler process, in 10^6 bytes; 0: as it was seen to be", low=0, high=1_000_000)
    batch_s: float = _key(30.0, "seconds that an op_compiler run may take, by estimate, while others wait", low=1, high=86_400)
    deadline_s: float = _key(3600.0, "seconds that one op_compiler run may take", low=1, high=604_800)
    stall_s: float = _key(
        300.0, "seconds without a sign of life after which an op_compiler run is taken to hang; 0: never", low=0, high=604_800
    )
    attempts: int = _key(3, "tries of a key that fails for a passing reason", low=1, high=20)
    remember_s: float = _key(
        600.0, "seconds for which it is remembered that memory or time was too short for a kernel", low=0, high=31_536_000
    )
    background_s: float = _key(
        3600.0, "seconds for which kernels are still compiled for ranks that have ended", low=0, high=31_536_000
    )
    nice: int = _key(5, "niceness of op_compiler, whatever that of the daemon is, unless it is higher", low=0, high=19)
    keep_jobs: int = _key(20, "failed runs whose logs are kept", low=0, high=10_000)


@dataclass(frozen=True, slots=True)
class StoreSection:
    """``[store]``: how much is kept. What is leased, pinned, or needed by a round is kept whatever these say."""

    max_gb: float = _key(50.0, "kernels and run packages together, in 10^9 bytes; 0: no limit", low=0, high=1e6)
    min_free_gb: float = _key(1.0, "bytes (10^9) that stay free on the disk; with less, nothing is compiled", low=0, high=1e6)
    gc_interval_s: float = _key(300.0, "seconds between two passes of removal", low=1, high=604_800)
    recent_s: float = _key(600.0, "seconds for which a kernel that was just published is not removed", low=0, high=604_800)
    logs_mb: int = _key(256, "logs of failed runs, in 10^6 bytes", low=0, high=1_000_000)
    quarantine_mb: int = _key(256, "what was found damaged and is kept to be looked at, in 10^6 bytes", low=0, high=1_000_000)


@dataclass(frozen=True, slots=True)
class LibrarySection:
    """``[op_library]``: the shared op library of CANN before 9.1.0."""

    leave_after_s: float = _key(
        60.0, "seconds for which kernels that no process needs stay in it", low=0, high=604_800, restart=True
    )
    unreadable: str = _key(
        "wait", "wait for, or ignore, processes of which it cannot be told what they loaded", among=UNREADABLE, restart=True
    )


@dataclass(frozen=True, slots=True)
class GroupSection:
    """``[group]``: how long ranks of one job wait for each other's records."""

    local_world_size: int = _key(0, "ranks of a job on this node where its ranks do not say; 0: do not wait", low=0, high=4096)
    window_s: float = _key(2.0, "seconds to wait for ranks that have not been heard of", low=0, high=600)
    quiet_s: float = _key(0.2, "seconds to wait for ranks that are connected and not recording", low=0, high=600)
    recording_s: float = _key(30.0, "seconds to wait for ranks that said they are recording", low=0, high=3600)


@dataclass(frozen=True, slots=True)
class LimitsSection:
    """``[limits]``: what one user may have under way, and when operators that keep changing are no longer compiled."""

    rounds: int = _key(512, "unsettled rounds of one user", low=1, high=1_000_000)
    keys: int = _key(50_000, "kernels that one user's unsettled rounds wait for", low=1, high=10_000_000)
    records_mb: int = _key(512, "records of one user's unsettled rounds, in 10^6 bytes", low=1, high=1_000_000)
    queue: int = _key(
        200_000, "kernels under way for all users; when it is full, each has an equal part", low=1, high=100_000_000
    )
    connections: int = _key(1024, "connected processes of one user", low=1, high=4096)
    pins: int = _key(1000, "pins of the administrators", low=0, high=1_000_000)
    churn_shapes: int = _key(
        256, "rounds of one graph in which one operator call may get new shapes; 0: any", low=0, high=1_000_000
    )
    churn_const_data: int = _key(64, "the same for const_data, where the shapes are equal; 0: any", low=0, high=1_000_000)


@dataclass(frozen=True, slots=True)
class CacheSection:
    """``[cache]``: the compile cache."""

    max_gb: float = _key(10.0, "all entries together, in 10^9 bytes", low=0, high=1e6)
    max_uid_gb: float = _key(5.0, "the entries of one user, in 10^9 bytes", low=0, high=1e6)
    max_entries: int = _key(4096, "entries of one user", low=1, high=1_000_000)
    max_artifact_mb: int = _key(256, "one entry, in 10^6 bytes", low=1, high=1024)
    build_s: float = _key(1800.0, "seconds after which another process may build what one has not finished", low=1, high=86_400)
    scope: str = _key(
        "namespace", "entries go to the same user in the same user namespace, or to the same user", among=SCOPES, restart=True
    )
    trusted_uids: tuple[int, ...] = _key((), "users whose proven entries all others may have, too", items=int, restart=True)


@dataclass(frozen=True, slots=True)
class MetricsSection:
    """``[metrics]``: where the metrics go beside ``npgxctl metrics``."""

    textfile: Path | None = _key(None, "a file (*.prom) for node_exporter's textfile collector, rewritten as a whole")
    interval_s: float = _key(15.0, "seconds between two writings of the textfile", low=1, high=3600)
    listen: str = _key(
        "", "127.0.0.1:PORT or [::1]:PORT, to answer GET /metrics there; empty: nowhere", loopback=True, restart=True
    )


SECTIONS: dict[str, type] = {
    "daemon": DaemonSection,
    "toolchain": ToolchainSection,
    "compile": CompileSection,
    "store": StoreSection,
    "group": GroupSection,
    "op_library": LibrarySection,
    "limits": LimitsSection,
    "cache": CacheSection,
    "metrics": MetricsSection,
}
