"""What follows a round's end: the run packages, the new kernels in use, one report and one line; the same whether anybody waited or not."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from npgxd.client import Outcome
from npgxd.wire.states import ClientState, Reason
from npugraph_ex import ranks, reports
from npugraph_ex.engines import ReselectFailed
from npugraph_ex.loading import LOADS
from npugraph_ex.outputs import guarded
from npugraph_ex.package_map import remember
from npugraph_ex.recording.recorded import Recorded
from npugraph_ex.telling import speaks, tell

if TYPE_CHECKING:
    from npgxd.client import Client
    from npgxd.wire.messages import ToolchainInfo
    from npugraph_ex.engines import Engine
    from npugraph_ex.outputs import Tree

logger = logging.getLogger("npugraph_ex")


@dataclass(frozen=True, slots=True)
class Settled:
    """What is known about a round at its end. ``changed_at``: the call at which a graph that did not wait changed to its kernels."""

    label: str
    outcome: Outcome
    recorded: Recorded = field(default_factory=Recorded)
    tree: Tree | None = None
    changed_at: int | None = None


def made_outcome(
    state: ClientState, reason: Reason, detail: str, hint: str = "", *, toolchain: ToolchainInfo | None = None
) -> Outcome:
    """An outcome that no round led to."""
    simulated = bool(toolchain and toolchain.simulated)
    return Outcome(state, reason, detail=detail, hint=hint, simulated=simulated, toolchain=toolchain)


def failed(label: str, error: Exception) -> Outcome:
    """Something of ours broke; the model does not."""
    logger.debug("npugraph_ex: graph %s", label, exc_info=error)
    detail = f"{type(error).__name__}: {error}"
    return made_outcome(ClientState.DEGRADED, Reason.RECORDING_FAILED, detail, "Log npugraph_ex at debug level to see where")


def load(outcome: Outcome, number: int, engine: Engine) -> Outcome:
    """Take what was leased under ``number`` into use; what has become of the outcome."""
    try:
        LOADS.load(number, engine)
    except ReselectFailed as error:
        return replace(outcome, state=ClientState.DEGRADED, reason=Reason.RESELECT_FAILED, detail=error.message, hint=error.hint)
    return outcome


def keep(client: Client, outcome: Outcome, tree: Tree | None, selected: tuple[tuple[str, bytes], ...]) -> None:
    """What only one tree of a node holds: local rank 0's, as documented, also where every LOCAL_RANK is 0."""
    if tree is None or not speaks(outcome.speaks):
        return

    def keep_files() -> None:
        several = (ranks.local_world_size() or 1) > 1 or outcome.gathered > outcome.unique
        if outcome.round and several and (gathered := client.gathered(outcome.round)):
            tree.write_gathered(gathered)
        kept = tree.keep_packages(outcome.packages)
        if kept and outcome.toolchain is not None:
            remember(
                tree,
                cann_version=outcome.toolchain.cann_version,
                device=outcome.toolchain.soc,
                records=selected,
                packages=kept,
            )

    guarded("the run packages", keep_files)


def note(settled: Settled) -> None:
    """The graph's report, as of now."""
    reports.add(
        reports.GraphReport(
            graph=settled.label,
            outcome=settled.outcome,
            submitted=settled.recorded.selected() if settled.outcome.records else (),
            outputs=settled.tree.directory if settled.tree else None,
            undescribed=settled.recorded.undescribed,
            changed_at=settled.changed_at,
        )
    )


def finish(client: Client, settled: Settled) -> None:
    """One report, one line, and the daemon knows what it could not know itself."""
    note(settled)
    outcome = settled.outcome
    if not outcome.round or outcome.reason is Reason.RESELECT_FAILED:
        report(client, outcome.state, outcome.reason, settled.label, outcome.detail)
    tell(settled.label, outcome, len(settled.recorded.undescribed), settled.changed_at)


def report(client: Client, state: ClientState, reason: Reason | str, label: str, detail: str = "") -> None:
    """Tell the daemon a graph's state, if it can be told."""
    try:
        client.report(state, reason, detail=detail, graph=label)
    except Exception as error:  # noqa: BLE001 -- the user's run has its own end
        failed(label, error)
