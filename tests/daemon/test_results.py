from __future__ import annotations

import pytest

from npgxd.daemon.demand.flights import Need
from npgxd.daemon.demand.rounds import Assembled, Round, Settlement, result_of
from npgxd.toolchain.record import Record
from npgxd.wire.messages import CompileOptions, RankInfo, Rejected
from npgxd.wire.states import ClientState, KeyOutcome, Reason

HIT = Settlement(KeyOutcome.HIT, kernel="k")
COMPILED = Settlement(KeyOutcome.COMPILED, kernel="k")
FAILED = Settlement(KeyOutcome.FAILED, reason="no such op")
NO_SPACE = Settlement(KeyOutcome.FAILED, reason="disk full", why=Reason.NO_SPACE)


def settled(*settlements: Settlement, rejected: int = 0) -> Round:
    needs = {}
    for at in range(len(settlements)):
        record = Record(name="r", op_type=f"Op{at}", canonical=b"{}", digest="0" * 64, trace="t")
        needs[f"{at:064x}"] = Need(f"{at:064x}", record, "f" * 64, CompileOptions(), 0)
    made = Round(
        id="0" * 32,
        uid=0,
        session="",
        job="j",
        rank=RankInfo(),
        graph="0",
        options=CompileOptions(),
        recompile=False,
        records=len(settlements) + rejected,
        rejected=tuple(Rejected("bad.json", "why") for _ in range(rejected)),
        needs=needs,
        accepted_at=1.0,
    )
    for key, settlement in zip(needs, settlements, strict=True):
        made.settle_key(key, settlement)
    return made


WHOLE = Assembled("v" * 64, 1, {})


@pytest.mark.parametrize(
    ("made", "assembled", "state", "reason"),
    [
        (settled(HIT, HIT), WHOLE, ClientState.INSTALLED, Reason.HIT),
        (settled(HIT, COMPILED), WHOLE, ClientState.INSTALLED, Reason.COMPILED),
        (settled(HIT, FAILED), WHOLE, ClientState.DEGRADED, Reason.COMPILE_FAILED),
        (settled(HIT, NO_SPACE), WHOLE, ClientState.DEGRADED, Reason.NO_SPACE),
        (settled(FAILED, NO_SPACE), WHOLE, ClientState.DEGRADED, Reason.COMPILE_FAILED),
        (settled(HIT, rejected=1), WHOLE, ClientState.DEGRADED, Reason.BAD_RECORDS),
        (settled(rejected=1), WHOLE, ClientState.DEGRADED, Reason.BAD_RECORDS),
        (settled(), WHOLE, ClientState.DISABLED, Reason.NOTHING_TO_COMPILE),
        (settled(HIT), Assembled(None, 0, {f"{0:064x}": Reason.SHADOWED}), ClientState.DEGRADED, Reason.SHADOWED),
        (settled(HIT), Assembled(None, 0, {f"{0:064x}": Reason.RESTART_NEEDED}), ClientState.DEGRADED, Reason.RESTART_NEEDED),
        (settled(HIT), Assembled(None, 0, {}, problem="no inode left"), ClientState.DEGRADED, Reason.STORE_FAILED),
    ],
)
def test_installed_is_said_only_where_every_key_is_covered_and_loadable(
    made: Round, assembled: Assembled, state: ClientState, reason: Reason
) -> None:
    result = result_of(made, assembled, gathered=0)
    assert (result.state, result.reason) == (state, reason)
    assert result.failed == len(result.failures) == sum(not s.kernel for s in made.settlements.values())


def test_the_first_outcome_of_a_key_counts_and_keys_of_others_are_ignored() -> None:
    made = settled(HIT)
    made.settle_key(f"{0:064x}", FAILED)
    made.settle_key("f" * 64, FAILED)
    assert result_of(made, WHOLE, gathered=0).state is ClientState.INSTALLED


def test_what_one_message_names_is_bounded_and_the_number_is_told() -> None:
    result = result_of(settled(*[FAILED] * 300), WHOLE, gathered=0)
    assert len(result.failures) == 200
    assert result.failed == 300
