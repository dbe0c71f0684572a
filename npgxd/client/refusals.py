"""What a daemon's answer means for this process's state: pure decisions, no I/O."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.client.outcome import Outcome
from npgxd.errors import NpgxError, RequestRefused
from npgxd.wire.printable import counted
from npgxd.wire.states import ClientState, Reason, Strategy

if TYPE_CHECKING:
    from npgxd.client.fetch import Fetched
    from npgxd.wire.messages import Failure, RoundProgress, RoundResult, Welcome

_BY_REFUSAL = {
    "NO_TOOLCHAIN": (ClientState.DEGRADED, Reason.NO_TOOLCHAIN),
    "CANN_VERSION": (ClientState.DEGRADED, Reason.CANN_VERSION),
    "UNSUPPORTED_SOC": (ClientState.DISABLED, Reason.UNSUPPORTED_SOC),
    "TOOLCHAIN_MISMATCH": (ClientState.DEGRADED, Reason.TOOLCHAIN_MISMATCH),
    "NO_SPACE": (ClientState.DEGRADED, Reason.NO_SPACE),
    "STORE": (ClientState.DEGRADED, Reason.STORE_FAILED),
    "NOT_WRITABLE": (ClientState.DEGRADED, Reason.NOT_WRITABLE),
    "OP_LIBRARY": (ClientState.DEGRADED, Reason.OP_LIBRARY),
    "DRAINING": (ClientState.DEGRADED, Reason.DAEMON_DRAINING),
}
_NO_TOOLCHAIN = "set [toolchain] in npgxd.toml, or source CANN's set_env.sh before the daemon starts"
_MISMATCH = (
    "source the set_env.sh of the daemon's CANN here (npgxctl status shows which that is), "
    "or set [toolchain] in npgxd.toml to this process's CANN and restart npgxd"
)


class Declined(NpgxError):
    """The daemon cannot serve this process, which is known from its welcome already; ``outcome`` says why."""

    code = "DECLINED"

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome.detail, hint=outcome.hint)
        self.outcome = outcome

    def __reduce__(self) -> tuple[object, ...]:
        return (Declined, (self.outcome,))


def check(welcome: Welcome) -> None:
    """Declined if this daemon compiles for another CANN than this process has, or for none."""
    if welcome.toolchain is None:
        problem = welcome.toolchain_problem  # with its own remedy
        detail = f"the daemon has no CANN toolchain: {problem}" if problem else "the daemon has no CANN toolchain"
        raise Declined(Outcome(ClientState.DEGRADED, Reason.NO_TOOLCHAIN, detail, _NO_TOOLCHAIN if not problem else ""))
    if welcome.differences:
        told = "; ".join(f"{each.what}: rank {each.rank}, daemon {each.daemon}" for each in welcome.differences[:5])
        more = f" (and {len(welcome.differences) - 5} more)" if len(welcome.differences) > 5 else ""  # noqa: PLR2004 -- as above
        raise Declined(Outcome(ClientState.DEGRADED, Reason.TOOLCHAIN_MISMATCH, told + more, _MISMATCH))


def refused_outcome(refused: RequestRefused) -> Outcome:
    """The state that a refusal leads to."""
    state, reason = _BY_REFUSAL.get(refused.refusal, (ClientState.DEGRADED, Reason.REFUSED))
    detail = refused.message if refused.refusal in _BY_REFUSAL else f"{refused.refusal}: {refused.message}"
    return Outcome(state, reason, detail, refused.hint)


def settled_outcome(settled: RoundProgress, fetched: Fetched) -> Outcome:
    """The state of a settled round: the daemon's word, unless its view could not be had."""
    result = settled.result
    if result is None:
        raise ValueError("the round is not settled")
    state, reason = result.state, result.reason
    detail, hint = _told(settled, result)
    if result.view is not None and fetched.view is None:
        state, reason = ClientState.DEGRADED, fetched.reason
        detail, hint = fetched.problem, fetched.hint
    return Outcome(
        state=state,
        reason=reason,
        detail=detail,
        hint=hint,
        hits=result.hits,
        compiled=result.compiled,
        failures=result.failures,
        shadowed=result.shadowed,
        view=fetched.view if result.strategy is Strategy.VIEW else None,
        root=fetched.root,
        strategy=result.strategy,
        packages=fetched.packages,
        gathered=result.gathered,
    )


def _told(settled: RoundProgress, result: RoundResult) -> tuple[str, str]:
    match result.reason:
        case Reason.STORE_FAILED if result.failures:
            return (
                f"{max(result.failed, len(result.failures))} of {counted(settled.unique, 'kernel')} could not be read or kept: "
                + _first(result.failures),
                "these operators run with dynamic kernels; once the cause is gone, the next process that asks for them has them",
            )
        case Reason.COMPILE_FAILED | Reason.NO_SPACE if result.failures:
            return (
                f"{max(result.failed, len(result.failures))} of {counted(settled.unique, 'kernel')} could not be compiled: "
                + _first(result.failures),
                (
                    "these operators run with dynamic kernels; npgxctl explain says more of a key or pid: once the cause is gone, "
                    "npgxctl retry has what is remembered as failed compiled again"
                ),
            )
        case Reason.CHURN if result.failures:
            return f"{max(result.failed, len(result.failures))} of {counted(settled.unique, 'kernel')} not compiled: " + _first(
                result.failures
            ), "these operators run with dynamic kernels; npgxctl status shows what keeps changing"
        case Reason.RESTART_NEEDED | Reason.SHADOWED:
            return f"{len(result.shadowed)} of {counted(settled.unique, 'kernel')} cannot take effect in this process: " + _first(
                result.shadowed
            ), "restart the process to load them" if result.reason is Reason.RESTART_NEEDED else "another kernel has their place"
        case Reason.BAD_RECORDS:
            first = f": {settled.rejected[0].name}: {settled.rejected[0].reason}" if settled.rejected else ""
            return (
                f"{len(settled.rejected)} of {counted(settled.records, 'record')} cannot be used{first}",
                "these operators are not covered",
            )
        case _:
            return result.detail, result.hint


def _first(failures: tuple[Failure, ...]) -> str:
    return f"{failures[0].op_type}: {failures[0].reason or failures[0].outcome}" if failures else "see npgxctl status"
