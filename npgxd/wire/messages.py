"""The messages of ranks and the daemon's answers: who a process is, its rounds, its leases, what it reports.

Each kind of request has its vocabulary in a module of its own where it is large (``artifact_messages``); ``parsing`` knows them all.
"""

from __future__ import annotations

from typing import ClassVar

from npgxd.wire import limits
from npgxd.wire._fields import flag, integer, mapping, optional, pattern, sequence, text, word
from npgxd.wire.form import COUNT, DIGEST, PATH, RANK, ROUND_ID, SECONDS, Event, Message, Part, bounded
from npgxd.wire.plain import plain
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState, Strategy

_OPTION_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", "a name of letters, digits, '_' and '-'")
_OPTION_VALUE = pattern(r"[A-Za-z0-9_.*,+][A-Za-z0-9_.*,+-]{0,255}", "a value of letters, digits and any of _.*,+-")


# ---- hello -----------------------------------------------------------------------------------------------------------


@plain
class CoreCounts(Part):
    """How many cores of each kind a process may use; part of what decides a kernel's bytes."""

    vector: int = bounded(integer(0, 10_000))
    cube: int = bounded(integer(0, 10_000))


@plain
class RankInfo(Part):
    """Where a process stands in its job. Labels, not identity: torchrun can set LOCAL_RANK to 0 everywhere."""

    run_id: str = bounded(text(limits.MAX_TEXT), "")
    master: str = bounded(text(limits.MAX_NAME), "")
    launcher: str = bounded(text(limits.MAX_NAME), "")
    rank: int | None = bounded(RANK, None)
    local_rank: int | None = bounded(RANK, None)
    world_size: int | None = bounded(RANK, None)
    local_world_size: int | None = bounded(RANK, None)


@plain
class ToolchainIdentity(Part):
    """What a process sees of its CANN: enough to tell whether it is the daemon's. Empty fields are not compared."""

    soc: str = bounded(text(), "")
    cores: CoreCounts | None = bounded(optional(CoreCounts.check), None)
    versions: dict[str, str] = bounded(mapping(text(), 256), dict)
    roots: str = bounded(text(64), "")


@plain
class Hello(Message):
    """Client to daemon, first: who I am. The uid and pid that count come from the kernel, not from here."""

    op: ClassVar[str] = "hello"
    versions: tuple[int, ...] = bounded(sequence(integer(0, 1000), 16))
    client: str = bounded(text(), "")
    features: tuple[str, ...] = bounded(sequence(text(64), 64), tuple)
    pid: int = bounded(integer(0, 2**31), 0)
    program: str = bounded(text(limits.MAX_TEXT), "")
    rank: RankInfo = bounded(RankInfo.check, RankInfo)
    toolchain: ToolchainIdentity = bounded(ToolchainIdentity.check, ToolchainIdentity)
    leases: tuple[str, ...] = bounded(sequence(ROUND_ID, 1024), tuple)
    """The leases that this process holds already: it may be talking to a new daemon, and what it has loaded stays loaded."""


@plain
class Difference(Part):
    """One thing in which a rank's toolchain differs from the daemon's."""

    what: str = bounded(text())
    rank: str = bounded(text(limits.MAX_TEXT))
    daemon: str = bounded(text(limits.MAX_TEXT))


@plain
class ToolchainInfo(Part):
    """The toolchain that the daemon serves from."""

    soc: str = bounded(text())
    family: str = bounded(text())
    cann_version: str = bounded(text())
    simulated: bool = bounded(flag)
    cores: CoreCounts | None = bounded(optional(CoreCounts.check), None)
    fingerprint: str = bounded(text(64), "")


@plain
class Welcome(Message):
    """Answer to hello. ``instance`` changes with every start of the daemon; ``store`` is where views lie."""

    op: ClassVar[str] = "welcome"
    version: int = bounded(integer(1, 1000))
    instance: str = bounded(ROUND_ID)
    session: str = bounded(ROUND_ID)
    daemon: str = bounded(text())
    store_id: str = bounded(ROUND_ID)
    store_path: str = bounded(PATH)
    features: tuple[str, ...] = bounded(sequence(text(64), 64), tuple)
    toolchain: ToolchainInfo | None = bounded(optional(ToolchainInfo.check), None)
    toolchain_problem: str = bounded(text(limits.MAX_TEXT), "")
    differences: tuple[Difference, ...] = bounded(sequence(Difference.check, 256), tuple)
    local_world_size: int | None = bounded(RANK, None)
    strategy: Strategy = bounded(word(Strategy), Strategy.VIEW)


@plain
class Report(Message):
    """Client to daemon: the state that this process is in now, for whoever looks at the node."""

    op: ClassVar[str] = "report"
    state: ClientState = bounded(word(ClientState))
    reason: str = bounded(text(64), "")
    detail: str = bounded(text(limits.MAX_TEXT), "")
    graph: str = bounded(text(), "")


# ---- rounds ----------------------------------------------------------------------------------------------------------


@plain
class CompileOptions(Part):
    """What a client may ask of op_compiler: a closed vocabulary. All of it is part of the kernel key.

    ``super_kernel``: empty for off; else ``enable`` and the settings of ``--super_kernel_options``.
    """

    super_kernel: dict[str, str] = bounded(mapping(_OPTION_VALUE, 32, key=_OPTION_NAME), dict)

    def canonical(self) -> dict[str, object]:
        """The form that is hashed into the kernel key; absent options leave no trace in it."""
        return {"super_kernel": dict(sorted(self.super_kernel.items()))} if self.super_kernel else {}


@plain
class Submit(Message):
    """Client to daemon: records of one graph, by value, in one or several parts.

    Each payload frame is a msgpack list of ``[name, json bytes]`` pairs.  ``round`` is chosen by the client; the same round sent
    again, also to a restarted daemon, is the same round.
    """

    op: ClassVar[str] = "submit"
    round: str = bounded(ROUND_ID)
    part: int = bounded(integer(0, limits.MAX_ROUND_PARTS - 1), 0)
    parts: int = bounded(integer(1, limits.MAX_ROUND_PARTS), 1)
    graph: str = bounded(text(), "")
    options: CompileOptions = bounded(CompileOptions.check, CompileOptions)
    recompile: bool = bounded(flag, default=False)


@plain
class PartTaken(Message):
    """Answer to every part of a submission but the last. Nothing is durable yet."""

    op: ClassVar[str] = "part_taken"
    round: str = bounded(ROUND_ID)
    part: int = bounded(integer(0, limits.MAX_ROUND_PARTS - 1))


@plain
class Rejected(Part):
    """One record that cannot be used, and why. The rest of the round goes on."""

    name: str = bounded(text(limits.MAX_NAME))
    reason: str = bounded(text(limits.MAX_TEXT))


@plain
class Failure(Part):
    """One key of a round that has no kernel, and why."""

    key: str = bounded(DIGEST)
    op_type: str = bounded(text())
    outcome: KeyOutcome = bounded(word(KeyOutcome))
    reason: str = bounded(text(limits.MAX_TEXT))


@plain
class Package(Part):
    """A run package that served a round: its digest, vendor file name and path relative to the store."""

    digest: str = bounded(DIGEST)
    name: str = bounded(text())
    path: str = bounded(PATH)


@plain
class RoundResult(Part):
    """How a round was settled. ``view`` is None when nothing new is to be loaded."""

    state: ClientState = bounded(word(ClientState))
    reason: Reason = bounded(word(Reason))
    hits: int = bounded(COUNT)
    compiled: int = bounded(COUNT)
    view: str | None = bounded(optional(DIGEST), None)
    view_kernels: int = bounded(COUNT, 0)
    failures: tuple[Failure, ...] = bounded(sequence(Failure.check, limits.MAX_ROUND_RECORDS), tuple)
    failed: int = bounded(COUNT, 0)
    shadowed: tuple[Failure, ...] = bounded(sequence(Failure.check, limits.MAX_ROUND_RECORDS), tuple)
    packages: tuple[Package, ...] = bounded(sequence(Package.check, 4096), tuple)
    gathered: int = bounded(COUNT, 0)
    detail: str = bounded(text(limits.MAX_TEXT), "")
    hint: str = bounded(text(limits.MAX_TEXT), "")
    strategy: Strategy = bounded(word(Strategy), Strategy.VIEW)
    root: str = bounded(text(64), "")
    """With a shared root: the generation marker that the process must find in its own default root."""


@plain
class RoundProgress(Event):
    """Answer to the last part of a submit and to follow, and the event that followers get (then with id 0)."""

    op: ClassVar[str] = "round"
    round: str = bounded(ROUND_ID)
    state: RoundState = bounded(word(RoundState))
    records: int = bounded(COUNT)
    unique: int = bounded(COUNT)
    done: int = bounded(COUNT)
    total: int = bounded(COUNT)
    group: str = bounded(text(64), "")
    current: tuple[str, ...] = bounded(sequence(text(), 16), tuple)
    elapsed_s: float = bounded(SECONDS, 0.0)
    eta_s: float | None = bounded(optional(SECONDS), None)
    rejected: tuple[Rejected, ...] = bounded(sequence(Rejected.check, limits.MAX_ROUND_RECORDS), tuple)
    result: RoundResult | None = bounded(optional(RoundResult.check), None)
    speaks: bool | None = bounded(optional(flag), None)
    """Whether this rank is the one that shows the job's progress to people; None: the daemon does not say."""
    stalled_s: float = bounded(SECONDS, 0.0)
    """For how long nothing has moved, where that is longer than can be expected."""

    @property
    def topic(self) -> str:
        """The round."""
        return self.round


@plain
class Follow(Message):
    """Client to daemon: tell me about this round until it is settled."""

    op: ClassVar[str] = "follow"
    round: str = bounded(ROUND_ID)


@plain
class Gathered(Message):
    """Client to daemon: the records of all ranks in this round's group, from position ``start`` on."""

    op: ClassVar[str] = "gathered"
    round: str = bounded(ROUND_ID)
    start: int = bounded(COUNT, 0)


@plain
class GatheredPart(Message):
    """Answer to gathered: payload frames as in submit; ``next`` is None after the last."""

    op: ClassVar[str] = "gathered_part"
    round: str = bounded(ROUND_ID)
    total: int = bounded(COUNT)
    next: int | None = bounded(optional(COUNT), None)


# ---- views and leases ------------------------------------------------------------------------------------------------


@plain
class Lease(Message):
    """Client to daemon: make me a lease file for this view."""

    op: ClassVar[str] = "lease"
    view: str = bounded(DIGEST)


@plain
class LeaseOffer(Message):
    """Answer to lease: paths relative to the store. Lock the lease file (shared), then say leased."""

    op: ClassVar[str] = "lease_offer"
    lease: str = bounded(ROUND_ID)
    lease_path: str = bounded(PATH)
    view_path: str = bounded(PATH)


@plain
class Leased(Message):
    """Client to daemon: I hold the lock on this lease file."""

    op: ClassVar[str] = "leased"
    lease: str = bounded(ROUND_ID)


# ---- the rest --------------------------------------------------------------------------------------------------------


@plain
class Status(Message):
    """Anyone who may open the socket: the state of the daemon, without a hello."""

    op: ClassVar[str] = "status"


@plain
class StatusDocument(Message):
    """Answer to status: one payload per frame, together the JSON document of docs/file-formats.md."""

    op: ClassVar[str] = "status_document"
    schema: int = bounded(integer(1, 1000))


@plain
class Bye(Message):
    """Client to daemon: this process is about to end; its leases end with its locks."""

    op: ClassVar[str] = "bye"


@plain
class Done(Message):
    """Answer to report, leased and bye."""

    op: ClassVar[str] = "done"


@plain
class Refusal(Message):
    """Answer to anything that is not done; ``code`` is stable, the rest is for people."""

    op: ClassVar[str] = "refusal"
    code: str = bounded(text(64))
    message: str = bounded(text(limits.MAX_TEXT))
    hint: str = bounded(text(limits.MAX_TEXT), "")


REQUESTS: dict[str, type[Message]] = {
    kind.op: kind for kind in (Hello, Report, Submit, Follow, Gathered, Lease, Leased, Status, Bye)
}
REPLIES: dict[str, type[Message]] = {
    kind.op: kind for kind in (Welcome, PartTaken, RoundProgress, GatheredPart, LeaseOffer, StatusDocument, Done, Refusal)
}
