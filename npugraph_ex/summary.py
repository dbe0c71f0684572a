"""An outcome as one line for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.wire.states import ClientState

if TYPE_CHECKING:
    from npgxd.client import Outcome


def summary(outcome: Outcome, undescribed: int = 0) -> str:
    """``INSTALLED (simulated; compiled 57 of 57 kernels, 120 records)``, or the state with its reason and remedy."""
    if outcome.state is ClientState.INSTALLED:
        told = [f"compiled {outcome.compiled} of {outcome.unique} kernels, {outcome.hits} were there"]
    else:
        told = [f"{outcome.reason}: {outcome.detail}" if outcome.detail else str(outcome.reason)]
    if outcome.records:
        told.append(f"{outcome.records} records")
    if outcome.failures:
        told.append(f"{len(outcome.failures)} without a kernel")
    if outcome.rejected:
        told.append(f"{len(outcome.rejected)} records rejected")
    if undescribed:
        told.append(f"{undescribed} operators are in no record")
    if outcome.simulated:
        told.insert(0, "simulated")
    hint = f". {outcome.hint}" if outcome.hint and outcome.state is not ClientState.INSTALLED else ""
    return f"{outcome.state} ({'; '.join(told)}){hint}"
