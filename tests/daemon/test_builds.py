"""Single flight, decision by decision: no sockets, no time but the one that is passed in."""

from __future__ import annotations

import hashlib
import random
from types import SimpleNamespace
from typing import Any

import pytest

from npgxd.daemon.caching.builds import MAX_BUILDS, Builds
from npgxd.wire.states import ArtifactState

KEY = hashlib.sha256(b"key").hexdigest()
BUILDING, HIT, MISS, NOT_CACHEABLE = ArtifactState.BUILDING, ArtifactState.HIT, ArtifactState.MISS, ArtifactState.NOT_CACHEABLE


def session(name: str) -> Any:
    return SimpleNamespace(id=name, identity=name.encode(), peer=SimpleNamespace(pid=1, uid=2))


A, B, C, D = (session(name) for name in "abcd")


def ask(builds: Builds, who: Any, entry: str = "e", *, now: float = 0.0, wait_s: float = 100.0, ticket: int = 0) -> ArtifactState:
    return builds.ask(entry, who, key=KEY, label="l", wait_s=wait_s, ticket=ticket, now=now).state


def told(builds: Builds, now: float = 0.0) -> list[tuple[str, ArtifactState]]:
    return [(identity.decode(), event.state) for identity, event in builds.tick(now)[0]]


@pytest.fixture
def builds() -> Builds:
    return Builds(build_s=1000)


def test_the_first_builds_and_all_others_wait_and_are_told_the_end(builds: Builds) -> None:
    assert [ask(builds, who) for who in (A, B, C)] == [MISS, BUILDING, BUILDING]
    builds.settle("e", HIT)
    assert told(builds) == [("b", HIT), ("c", HIT)]
    assert (len(builds), builds.waiting, told(builds, 5)) == (0, 0, [])


def test_a_process_never_waits_for_itself(builds: Builds) -> None:
    assert [ask(builds, A), ask(builds, A)] == [MISS, MISS]
    assert builds.is_builder("e", A)


def test_who_does_not_want_to_wait_is_told_that_it_is_being_built_and_hears_no_more(builds: Builds) -> None:
    ask(builds, A)
    assert ask(builds, B, wait_s=0) is BUILDING
    builds.settle("e", HIT)
    assert told(builds) == []


@pytest.mark.parametrize("how", ["release", "ended"])
def test_a_builder_that_goes_is_followed_by_the_one_that_waited_longest(builds: Builds, how: str) -> None:
    for who in (A, B, C):
        ask(builds, who)
    builds.release("e", A, 1.0) if how == "release" else builds.ended(A, 1.0)
    assert told(builds, 1.0) == [("b", MISS), ("c", BUILDING)]
    assert builds.is_builder("e", B)
    assert ask(builds, D) is BUILDING


def test_a_builder_that_takes_too_long_is_followed_and_its_successor_has_the_whole_time(builds: Builds) -> None:
    ask(builds, A)
    ask(builds, B, wait_s=5000, now=900.0)
    assert ("b", MISS) in told(builds, 1000.0)
    ask(builds, C, wait_s=5000, now=1000.0)
    assert ("c", MISS) not in told(builds, 1999.0)
    assert ("c", MISS) in told(builds, 2000.0)


def test_a_build_that_nobody_waits_for_ends_with_its_builder(builds: Builds) -> None:
    ask(builds, A)
    builds.ended(A, 1.0)
    assert len(builds) == 0
    assert ask(builds, B) is MISS


def test_who_left_or_whose_time_is_over_is_never_made_the_builder(builds: Builds) -> None:
    ask(builds, A)
    ask(builds, B)
    ask(builds, C, wait_s=3)
    ask(builds, D)
    builds.release("e", B, 1.0)
    assert told(builds, 4.0) == [("d", BUILDING)]
    builds.ended(A, 5.0)
    assert ("d", MISS) in told(builds, 5.0)


def test_those_who_wait_hear_a_sign_of_life_each_second_with_their_tickets(builds: Builds) -> None:
    ask(builds, A)
    ask(builds, B, ticket=7)
    signs, due = builds.tick(0.5)
    assert (signs, due) == ([], 1.0)
    signs, due = builds.tick(1.0)
    assert [(sign.event.state, sign.event.elapsed_s, sign.event.ticket) for sign in signs] == [(BUILDING, 1.0, 7)]
    assert due == 2.0


def test_nothing_is_due_when_nothing_is_built(builds: Builds) -> None:
    assert builds.tick(0.0) == ([], float("inf"))
    ask(builds, A)
    assert builds.tick(0.0)[1] == 1000.0
    builds.settle("e", HIT)
    assert builds.tick(0.0) == ([], float("inf"))


def test_processes_that_would_wait_for_each_other_build_instead(builds: Builds) -> None:
    assert [ask(builds, A, "1"), ask(builds, B, "2"), ask(builds, C, "3")] == [MISS] * 3
    assert [ask(builds, A, "2"), ask(builds, B, "3")] == [BUILDING] * 2
    last = builds.ask("1", C, key=KEY, label="", wait_s=9, ticket=0, now=0.0)
    assert (last.state, last.code) == (MISS, "CIRCLE")
    assert ask(builds, D, "1") is BUILDING
    builds.settle("3", HIT)
    assert ask(builds, C, "1") is BUILDING


def test_a_process_that_begins_builds_without_end_gives_up_the_first(builds: Builds) -> None:
    for number in range(MAX_BUILDS):
        assert ask(builds, A, str(number)) is MISS
    assert ask(builds, B, "0") is BUILDING
    assert ask(builds, A, "one more") is MISS
    assert ("b", MISS) in told(builds)
    assert (len(builds), builds.is_builder("0", B)) == (MAX_BUILDS + 1, True)


def test_a_verdict_is_told_to_all_who_wait(builds: Builds) -> None:
    ask(builds, A)
    ask(builds, B)
    builds.settle("e", NOT_CACHEABLE, code="RNG", reason="dropout")
    ((identity, event),) = builds.tick(0.0)[0]
    assert (identity, event.state, event.code, event.reason) == (b"b", NOT_CACHEABLE, "RNG", "dropout")


def test_whatever_happens_an_entry_has_one_builder_and_everybody_who_waits_gets_one_end() -> None:
    chance = random.Random(5)
    crowd = [session(str(number)) for number in range(8)]
    for _ in range(300):
        builds, now = Builds(build_s=50), 0.0
        state: dict[str, str] = dict.fromkeys((who.id for who in crowd), "idle")
        for _ in range(40):
            now += chance.random() * 5
            who = chance.choice(crowd)
            match chance.choice(["ask", "ask", "ask", "settle", "release", "end"]):
                case "ask" if state[who.id] == "idle":
                    state[who.id] = {MISS: "builds", BUILDING: "waits"}[ask(builds, who, now=now, wait_s=1000)]
                case "settle" if state[who.id] == "builds":
                    builds.settle("e", HIT)
                    state[who.id] = "idle"
                case "release":
                    builds.release("e", who, now)
                    state[who.id] = "idle"
                case "end":
                    builds.ended(who, now)
                    state[who.id] = "idle"
            for name, what in told(builds, now):
                assert state[name] == "waits"
                if what is HIT:
                    state[name] = "idle"
                elif what is MISS:
                    state = {other: "idle" if at == "builds" else at for other, at in state.items()} | {
                        name: "builds"
                    }  # if any was slow
            state = {who.id: "idle" if lost(builds, who, state) else state[who.id] for who in crowd}
            builders = [name for name, at in state.items() if at == "builds"]
            assert len(builders) == len(builds)
            assert builds.waiting == sum(at == "waits" for at in state.values())


def lost(builds: Builds, who: Any, state: dict[str, str]) -> bool:
    """It took too long, and is no builder any more."""
    return state[who.id] == "builds" and not builds.is_builder("e", who)
