"""What a user may have under way: refused with what and how many, without a trace, and never to another user's cost."""

from __future__ import annotations

import os
import random
import secrets

import pytest

from npgxd.config import LimitsSection
from npgxd.daemon.refusals import Refused
from npgxd.daemon.scheduling.quotas import MB, Quotas
from npgxd.wire.admin import PinKernels
from npgxd.wire.credentials import PeerCredentials
from npgxd.wire.states import ClientState

OTHER = PeerCredentials(os.getuid() + 1, os.getgid(), 0)


def quotas(**limits: int) -> Quotas:
    return Quotas(LimitsSection(**limits))


# ---- the accounts ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ({"rounds": 2}, r"user 7 has 2 unsettled rounds; at most 2 are allowed \(\[limits\] rounds\)"),
        ({"keys": 3}, r"user 7 has 3 kernels under way, and asked for 1 more; at most 3 .*keys"),
        (
            {"records_mb": 2},
            r"user 7 has 2.0 MB of records in unsettled rounds, and 1.0 MB more were sent; at most 2 .*records_mb",
        ),
        ({"queue": 3}, r"3 kernels are under way on this node, of at most 3 .*; user 7 has 3 of them and asked for 1 more"),
    ],
)
def test_a_user_at_a_limit_is_told_which_and_how_many_and_what_to_do(limits, told) -> None:
    accounts = quotas(**limits)
    accounts.charge("a", 7, ["k1", "k2"], MB)
    accounts.charge("b", 7, ["k2", "k3"], MB)
    with pytest.raises(Refused, match=told) as refused:
        accounts.check(7, ["k4"], MB)
    assert refused.value.refusal == "LIMIT"
    assert "npgxctl status" in refused.value.hint
    accounts.check(8, ["k4"], MB)
    accounts.release("b")
    accounts.check(7, ["k4"], MB)


def test_a_kernel_that_a_user_waits_for_already_costs_nothing_more() -> None:
    accounts = quotas(keys=2)
    accounts.charge("a", 7, ["k1", "k2"], 0)
    accounts.check(7, ["k1", "k2"], 0)


def test_a_full_queue_still_has_an_equal_part_for_whoever_has_little_in_it() -> None:
    accounts = quotas(queue=100)
    accounts.charge("a", 1, [f"a{number}" for number in range(100)], 0)
    accounts.check(2, [f"b{number}" for number in range(50)], 0)
    with pytest.raises(Refused, match="on this node"):
        accounts.check(2, [f"b{number}" for number in range(51)], 0)
    with pytest.raises(Refused, match="on this node"):
        accounts.check(1, ["more"], 0)


def test_the_sums_are_those_of_a_walk_over_all_rounds_after_any_sequence() -> None:
    accounts, rounds, generator = quotas(), {}, random.Random(4)
    for _ in range(2000):
        name = str(generator.randrange(20))
        if generator.random() < 0.5:
            uid, keys = generator.randrange(3), {str(generator.randrange(12)) for _ in range(5)}
            accounts.charge(name, uid, keys, len(keys))
            rounds[name] = (uid, keys)
        else:
            accounts.release(name)
            rounds.pop(name, None)
        told = {each["uid"]: (each["rounds"], each["keys"], each["bytes"]) for each in accounts.describe()}
        assert told == {
            uid: (
                sum(owner == uid for owner, _ in rounds.values()),
                len(set().union(*(keys for owner, keys in rounds.values() if owner == uid))),
                sum(len(keys) for owner, keys in rounds.values() if owner == uid),
            )
            for uid in {owner for owner, _ in rounds.values()}
        }


# ---- in a daemon -----------------------------------------------------------------------------------------------------


def limit(parts, **limits: int) -> None:
    parts.coordinator.quotas = quotas(**limits)


@pytest.mark.parametrize("limits", [{"rounds": 1}, {"keys": 10}, {"queue": 10}])
def test_a_refused_round_leaves_no_trace_and_another_users_is_taken(parts, limits) -> None:
    limit(parts, **limits)
    mine = parts.session(local_world_size=9)
    parts.submit(mine, *range(16, 26))
    journal = sorted(parts.stores.state.rounds.iterdir())
    name = secrets.token_hex(16)
    with pytest.raises(Refused, match="limits"):
        parts.submit(mine, 99, name=name)
    assert name not in parts.coordinator.rounds
    assert sorted(parts.stores.state.rounds.iterdir()) == journal
    assert parts.coordinator.quotas.describe() == [
        {"uid": os.getuid(), "rounds": 1, "keys": 10, "bytes": next(iter(parts.coordinator.rounds.values())).size}
    ]
    if "queue" not in limits:
        assert parts.submit(parts.session(OTHER), 99).id in parts.coordinator.rounds
    else:
        assert parts.submit(parts.session(OTHER), *range(90, 95)).id in parts.coordinator.rounds


def test_a_user_at_a_limit_is_served_what_is_known_and_may_ask_again_for_what_was_taken(parts) -> None:
    known = parts.submit(parts.session(run_id="earlier"), 16)
    parts.drive(lambda: known.result is not None)
    limit(parts, rounds=1)
    mine = parts.session(local_world_size=9)
    taken = parts.submit(mine, 32)
    assert parts.submit(parts.session(), 16).result.state is ClientState.INSTALLED
    assert parts.submit(mine, 32, name=taken.id) is taken
    with pytest.raises(Refused, match="1 unsettled round;"):
        parts.submit(mine, 48)
    parts.coordinator.tick(1000.0)
    parts.drive(lambda: taken.result is not None)
    assert parts.coordinator.quotas.describe() == []
    parts.submit(mine, 48)


def test_what_an_earlier_daemon_took_is_taken_up_whatever_the_limits_say_now(parts) -> None:
    parts.submit(parts.session(local_world_size=9), 16)
    entries = parts.stores.rounds.pending()
    parts.coordinator.rounds.clear()
    limit(parts, rounds=1, keys=1)
    more = [entries[0], *(type(entries[0])(**{**_fields(entries[0]), "round": f"{number:032x}"}) for number in range(3))]
    assert parts.coordinator.resume(more, 0.0) == 4
    assert parts.coordinator.quotas.describe()[0]["rounds"] == 4


def test_pins_are_bounded_and_one_of_the_same_name_is_no_new_one(parts, acts) -> None:
    known = parts.submit(parts.session(), 16, 32)
    parts.drive(lambda: known.result is not None)
    limit(parts, pins=1)
    keys = sorted(known.needs)
    for _ in range(2):
        acts.do(PinKernels(what=keys[0]), (), OTHER, 0.0)
    with pytest.raises(Refused, match=r"there are 1 pins, of at most 1 \(\[limits\] pins\)"):
        acts.do(PinKernels(what=keys[1]), (), OTHER, 0.0)
    assert [pin.name for pin in parts.stores.pins.all()] == [keys[0]]


def _fields(entry: object) -> dict[str, object]:
    return {name: getattr(entry, name) for name in entry.__slots__}
