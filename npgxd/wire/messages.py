"""Every message of the protocol as a frozen dataclass (of the cheap kind): its fields, their bounds, and nothing else.

``header()`` gives the msgpack header, ``parse()`` reads one and refuses what docs/protocol.md does not allow.  Unknown fields are
ignored, so that an older peer can talk to a newer one; unknown values are not.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields, is_dataclass
from typing import Any, ClassVar, Self, TypeVar, cast

from npgxd.errors import ProtocolError
from npgxd.wire import limits
from npgxd.wire._fields import Check, flag, identifier, integer, mapping, number, optional, pattern, sequence, take, text, word
from npgxd.wire.plain import Plain, plain
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState, Strategy

T = TypeVar("T")

DIGEST = identifier(64)
ROUND_ID = identifier(32)
COUNT = integer(0, 2**53)
RANK = optional(integer(0, 1_000_000))
SECONDS = number(0, 1e12)
PATH = text(limits.MAX_TEXT)
_OPTION_NAME = pattern(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", "a name of letters, digits, '_' and '-'")
_OPTION_VALUE = pattern(r"[A-Za-z0-9_.*,+][A-Za-z0-9_.*,+-]{0,255}", "a value of letters, digits and any of _.*,+-")


def _is(check: Check[T], default: Any = MISSING) -> Any:
    """A dataclass field with its check; mutable defaults are given as factories."""
    if callable(default) and default is not MISSING:
        return field(metadata={"check": check}, default_factory=default)
    return field(metadata={"check": check}, default=default)


def _plain(value: object) -> object:
    """``value`` in what msgpack can carry."""
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return str(value) if isinstance(value, str) else value


@plain
class Part(Plain):
    """A map inside a message."""

    @classmethod
    def parse(cls, header: dict[str, object]) -> Self:
        """Check every field of ``header``; ProtocolError names the first that is wrong."""
        if not isinstance(header, dict):
            raise ProtocolError(f"{cls.__name__} must be a map")
        values: dict[str, object] = {}
        for item in cast("tuple[Field[object], ...]", fields(cls)):
            if item.name not in header and (item.default is not MISSING or item.default_factory is not MISSING):
                continue
            values[item.name] = take(header, item.name, item.metadata["check"])
        return cls(**values)

    @classmethod
    def check(cls, name: str, value: object) -> Self:
        """``parse`` in the form that the field checks have."""
        if not isinstance(value, dict):
            raise ProtocolError(f"field {name!r} must be a map")
        return cls.parse(value)


@plain
class Message(Part):
    """A message: a Part with an ``op``."""

    op: ClassVar[str]

    def header(self) -> dict[str, object]:
        """The fields as msgpack carries them, with ``op``; the codec adds ``v`` and ``id``."""
        return {"op": self.op, **cast("dict[str, object]", _plain(self))}


# ---- hello -----------------------------------------------------------------------------------------------------------


@plain
class CoreCounts(Part):
    """How many cores of each kind a process may use; part of what decides a kernel's bytes."""

    vector: int = _is(integer(0, 10_000))
    cube: int = _is(integer(0, 10_000))


@plain
class RankInfo(Part):
    """Where a process stands in its job. Labels, not identity: torchrun can set LOCAL_RANK to 0 everywhere."""

    run_id: str = _is(text(limits.MAX_TEXT), "")
    master: str = _is(text(limits.MAX_NAME), "")
    launcher: str = _is(text(limits.MAX_NAME), "")
    rank: int | None = _is(RANK, None)
    local_rank: int | None = _is(RANK, None)
    world_size: int | None = _is(RANK, None)
    local_world_size: int | None = _is(RANK, None)


@plain
class ToolchainIdentity(Part):
    """What a process sees of its CANN: enough to tell whether it is the daemon's. Empty fields are not compared."""

    soc: str = _is(text(), "")
    cores: CoreCounts | None = _is(optional(CoreCounts.check), None)
    versions: dict[str, str] = _is(mapping(text(), 256), dict)
    roots: str = _is(text(64), "")


@plain
class Hello(Message):
    """Client to daemon, first: who I am. The uid and pid that count come from the kernel, not from here."""

    op: ClassVar[str] = "hello"
    versions: tuple[int, ...] = _is(sequence(integer(0, 1000), 16))
    client: str = _is(text(), "")
    features: tuple[str, ...] = _is(sequence(text(64), 64), tuple)
    pid: int = _is(integer(0, 2**31), 0)
    program: str = _is(text(limits.MAX_TEXT), "")
    rank: RankInfo = _is(RankInfo.check, RankInfo)
    toolchain: ToolchainIdentity = _is(ToolchainIdentity.check, ToolchainIdentity)
    leases: tuple[str, ...] = _is(sequence(ROUND_ID, 1024), tuple)
    """The leases that this process holds already: it may be talking to a new daemon, and what it has loaded stays loaded."""


@plain
class Difference(Part):
    """One thing in which a rank's toolchain differs from the daemon's."""

    what: str = _is(text())
    rank: str = _is(text(limits.MAX_TEXT))
    daemon: str = _is(text(limits.MAX_TEXT))


@plain
class ToolchainInfo(Part):
    """The toolchain that the daemon serves from."""

    soc: str = _is(text())
    family: str = _is(text())
    cann_version: str = _is(text())
    simulated: bool = _is(flag)
    cores: CoreCounts | None = _is(optional(CoreCounts.check), None)
    fingerprint: str = _is(text(64), "")


@plain
class Welcome(Message):
    """Answer to hello. ``instance`` changes with every start of the daemon; ``store`` is where views lie."""

    op: ClassVar[str] = "welcome"
    version: int = _is(integer(1, 1000))
    instance: str = _is(ROUND_ID)
    session: str = _is(ROUND_ID)
    daemon: str = _is(text())
    store_id: str = _is(ROUND_ID)
    store_path: str = _is(PATH)
    features: tuple[str, ...] = _is(sequence(text(64), 64), tuple)
    toolchain: ToolchainInfo | None = _is(optional(ToolchainInfo.check), None)
    toolchain_problem: str = _is(text(limits.MAX_TEXT), "")
    differences: tuple[Difference, ...] = _is(sequence(Difference.check, 256), tuple)
    local_world_size: int | None = _is(RANK, None)
    strategy: Strategy = _is(word(Strategy), Strategy.VIEW)


@plain
class Report(Message):
    """Client to daemon: the state that this process is in now, for whoever looks at the node."""

    op: ClassVar[str] = "report"
    state: ClientState = _is(word(ClientState))
    reason: str = _is(text(64), "")
    detail: str = _is(text(limits.MAX_TEXT), "")
    graph: str = _is(text(), "")


# ---- rounds ----------------------------------------------------------------------------------------------------------


@plain
class CompileOptions(Part):
    """What a client may ask of op_compiler: a closed vocabulary. All of it is part of the kernel key.

    ``super_kernel``: empty for off; else ``enable`` and the settings of ``--super_kernel_options``.
    """

    super_kernel: dict[str, str] = _is(mapping(_OPTION_VALUE, 32, key=_OPTION_NAME), dict)

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
    round: str = _is(ROUND_ID)
    part: int = _is(integer(0, limits.MAX_ROUND_PARTS - 1), 0)
    parts: int = _is(integer(1, limits.MAX_ROUND_PARTS), 1)
    graph: str = _is(text(), "")
    options: CompileOptions = _is(CompileOptions.check, CompileOptions)
    recompile: bool = _is(flag, default=False)


@plain
class PartTaken(Message):
    """Answer to every part of a submission but the last. Nothing is durable yet."""

    op: ClassVar[str] = "part_taken"
    round: str = _is(ROUND_ID)
    part: int = _is(integer(0, limits.MAX_ROUND_PARTS - 1))


@plain
class Rejected(Part):
    """One record that cannot be used, and why. The rest of the round goes on."""

    name: str = _is(text(limits.MAX_NAME))
    reason: str = _is(text(limits.MAX_TEXT))


@plain
class Failure(Part):
    """One key of a round that has no kernel, and why."""

    key: str = _is(DIGEST)
    op_type: str = _is(text())
    outcome: KeyOutcome = _is(word(KeyOutcome))
    reason: str = _is(text(limits.MAX_TEXT))


@plain
class Package(Part):
    """A run package that served a round: its digest, vendor file name and path relative to the store."""

    digest: str = _is(DIGEST)
    name: str = _is(text())
    path: str = _is(PATH)


@plain
class RoundResult(Part):
    """How a round was settled. ``view`` is None when nothing new is to be loaded."""

    state: ClientState = _is(word(ClientState))
    reason: Reason = _is(word(Reason))
    hits: int = _is(COUNT)
    compiled: int = _is(COUNT)
    view: str | None = _is(optional(DIGEST), None)
    view_kernels: int = _is(COUNT, 0)
    failures: tuple[Failure, ...] = _is(sequence(Failure.check, limits.MAX_ROUND_RECORDS), tuple)
    failed: int = _is(COUNT, 0)
    shadowed: tuple[Failure, ...] = _is(sequence(Failure.check, limits.MAX_ROUND_RECORDS), tuple)
    packages: tuple[Package, ...] = _is(sequence(Package.check, 4096), tuple)
    gathered: int = _is(COUNT, 0)
    detail: str = _is(text(limits.MAX_TEXT), "")
    hint: str = _is(text(limits.MAX_TEXT), "")
    strategy: Strategy = _is(word(Strategy), Strategy.VIEW)
    root: str = _is(text(64), "")
    """With a shared root: the generation marker that the process must find in its own default root."""


@plain
class RoundProgress(Message):
    """Answer to the last part of a submit and to follow, and the event that followers get (then with id 0)."""

    op: ClassVar[str] = "round"
    round: str = _is(ROUND_ID)
    state: RoundState = _is(word(RoundState))
    records: int = _is(COUNT)
    unique: int = _is(COUNT)
    done: int = _is(COUNT)
    total: int = _is(COUNT)
    group: str = _is(text(64), "")
    current: tuple[str, ...] = _is(sequence(text(), 16), tuple)
    elapsed_s: float = _is(SECONDS, 0.0)
    eta_s: float | None = _is(optional(SECONDS), None)
    rejected: tuple[Rejected, ...] = _is(sequence(Rejected.check, limits.MAX_ROUND_RECORDS), tuple)
    result: RoundResult | None = _is(optional(RoundResult.check), None)


@plain
class Follow(Message):
    """Client to daemon: tell me about this round until it is settled."""

    op: ClassVar[str] = "follow"
    round: str = _is(ROUND_ID)


@plain
class Gathered(Message):
    """Client to daemon: the records of all ranks in this round's group, from position ``start`` on."""

    op: ClassVar[str] = "gathered"
    round: str = _is(ROUND_ID)
    start: int = _is(COUNT, 0)


@plain
class GatheredPart(Message):
    """Answer to gathered: payload frames as in submit; ``next`` is None after the last."""

    op: ClassVar[str] = "gathered_part"
    round: str = _is(ROUND_ID)
    total: int = _is(COUNT)
    next: int | None = _is(optional(COUNT), None)


# ---- views and leases ------------------------------------------------------------------------------------------------


@plain
class Lease(Message):
    """Client to daemon: make me a lease file for this view."""

    op: ClassVar[str] = "lease"
    view: str = _is(DIGEST)


@plain
class LeaseOffer(Message):
    """Answer to lease: paths relative to the store. Lock the lease file (shared), then say leased."""

    op: ClassVar[str] = "lease_offer"
    lease: str = _is(ROUND_ID)
    lease_path: str = _is(PATH)
    view_path: str = _is(PATH)


@plain
class Leased(Message):
    """Client to daemon: I hold the lock on this lease file."""

    op: ClassVar[str] = "leased"
    lease: str = _is(ROUND_ID)


# ---- the rest --------------------------------------------------------------------------------------------------------


@plain
class Status(Message):
    """Anyone who may open the socket: the state of the daemon, without a hello."""

    op: ClassVar[str] = "status"


@plain
class StatusDocument(Message):
    """Answer to status: one payload per frame, together the JSON document of docs/file-formats.md."""

    op: ClassVar[str] = "status_document"
    schema: int = _is(integer(1, 1000))


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
    code: str = _is(text(64))
    message: str = _is(text(limits.MAX_TEXT))
    hint: str = _is(text(limits.MAX_TEXT), "")


REQUESTS: dict[str, type[Message]] = {
    kind.op: kind for kind in (Hello, Report, Submit, Follow, Gathered, Lease, Leased, Status, Bye)
}
REPLIES: dict[str, type[Message]] = {
    kind.op: kind for kind in (Welcome, PartTaken, RoundProgress, GatheredPart, LeaseOffer, StatusDocument, Done, Refusal)
}
