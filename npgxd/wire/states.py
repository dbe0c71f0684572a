"""The words in which the state of a client and the outcome of a key are told, on the wire and on every screen."""

from __future__ import annotations

from enum import StrEnum


class ClientState(StrEnum):
    """What a rank's static kernels are, at this moment (architecture, invariant 4). Never silence."""

    CONNECTED = "CONNECTED"  # said hello; no graph has asked for static kernels yet
    DISABLED = "DISABLED"  # the feature is off in this process; the reason says why
    RECORDING = "RECORDING"  # the first run of a graph is under way
    QUEUED = "QUEUED"  # submitted and durable; waits for its group or for a worker
    COMPILING = "COMPILING"  # n of m keys are settled
    INSTALLED = "INSTALLED"  # every key asked for is in the process's views; reason: hit | compiled
    DEGRADED = "DEGRADED"  # some or all operators run with dynamic kernels; the reason says why


class RoundState(StrEnum):
    """Where a round is."""

    WAITING = "WAITING"  # accepted and durable; the rest of its group may still come
    QUEUED = "QUEUED"  # planned; no worker is free yet
    COMPILING = "COMPILING"
    SETTLED = "SETTLED"


class KeyOutcome(StrEnum):
    """What became of one kernel key in one round."""

    HIT = "hit"  # it was present, or another round was compiling it already
    COMPILED = "compiled"  # compiled for this round's group
    FAILED = "failed"  # the compiler refused it, or its runs failed too often
    LEFT_OUT = "left_out"  # op_compiler ended well, and its package has no such kernel
    UNSUPPORTED = "unsupported"  # the compiler has no implementation of this operator
    TIMED_OUT = "timed_out"  # it was at work when its run's time was up
    OUT_OF_MEMORY = "out_of_memory"  # also alone, on a single process
    CRASHED = "crashed"  # op_compiler dies of it
    NO_SPACE = "no_space"  # the disk was full
    EXPIRED = "expired"  # nobody waited for it any more, for as long as it is kept
    CAPPED = "capped"  # not compiled: this operator's const_data or shapes keep changing


class ArtifactState(StrEnum):
    """What a look-up in the compile cache comes to."""

    HIT = "HIT"  # here are the bytes
    MISS = "MISS"  # there is none: whoever is told so builds it
    BUILDING = "BUILDING"  # another process builds it
    NOT_CACHEABLE = "NOT_CACHEABLE"  # it was found that this cannot be cached; the reason is remembered


class Strategy(StrEnum):
    """How the kernels of a round reach the processes that asked for them."""

    VIEW = "view"  # CANN >= 9.1.0: a root of its own, which is given to reselect
    SHARED_ROOT = "shared_root"  # older CANN: installed into the default root, which is reselected without a path


class Reason(StrEnum):
    """Why a client is DISABLED or DEGRADED, or how it came to be INSTALLED."""

    HIT = "hit"
    COMPILED = "compiled"
    OPTION_OFF = "option_off"
    UNSUPPORTED_SOC = "unsupported_soc"
    DUMP_SWITCH_HELD = "dump_switch_held"
    NOTHING_TO_COMPILE = "nothing_to_compile"
    DAEMON_UNAVAILABLE = "daemon_unavailable"
    DAEMON_DRAINING = "daemon_draining"
    TOOLCHAIN_MISMATCH = "toolchain_mismatch"
    NO_TOOLCHAIN = "no_toolchain"
    CANN_VERSION = "cann_version"
    STORE_NOT_VISIBLE = "store_not_visible"
    COMPILE_FAILED = "compile_failed"
    NO_SPACE = "no_space"
    CHURN = "churn"
    STORE_FAILED = "store_failed"
    SHADOWED = "shadowed"
    RESTART_NEEDED = "restart_needed"
    BAD_RECORDS = "bad_records"
    DEADLINE = "deadline"
    EXPIRED = "expired"
    REFUSED = "refused"
    IN_BACKGROUND = "in_background"
    CHANGE_PENDING = "change_pending"
    NOT_AGREED = "not_agreed"
    RESELECT_FAILED = "reselect_failed"
    RECORDING_FAILED = "recording_failed"
    NOT_WRITABLE = "not_writable"
    OP_LIBRARY = "op_library"
    OP_LIBRARY_DAMAGED = "op_library_damaged"
