"""Who is told of which round."""

from __future__ import annotations

from npgxd.daemon.serving.followers import Followers


def followers() -> Followers:
    found = Followers()
    for name, identity in (("r1", b"a"), ("r1", b"b"), ("r2", b"a"), ("r2", b"a")):
        found.add(name, identity)
    return found


def test_a_connection_that_has_ended_is_told_of_nothing_and_the_others_of_all() -> None:
    found = followers()
    found.gone(b"a")
    found.gone(b"a")
    assert (found["r1"], found["r2"], found["r3"]) == ({b"b"}, set(), set())
    assert list(found) == ["r1", "r2"], "whoever tells of rounds forgets those that nobody follows"
    assert found.rounds_of(b"a") == set()


def test_one_round_is_left_and_another_one_is_followed_on() -> None:
    found = followers()
    found.leave("r1", b"a")
    found.leave("r3", b"a")
    assert (found["r1"], found["r2"], found.rounds_of(b"a")) == ({b"b"}, {b"a"}, {"r2"})


def test_rounds_can_be_dropped_while_one_looks_through_them() -> None:
    found = followers()
    for name in found:
        found.drop(name)
    found.drop("r1")
    assert (len(found), found.rounds_of(b"a"), "r1" in found) == (0, set(), False)
    found.add("r1", b"a")
    assert found["r1"] == {b"a"}
