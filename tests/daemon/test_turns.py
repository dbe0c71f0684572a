"""Whose message is served next: nobody waits for another user's heap, and nobody's heap grows without end."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from npgxd.client.connection import GIVEN_UP
from npgxd.daemon.serving.turns import AHEAD, DEBT_S, FLOOD, TURN_S, WAITING_BYTES, Room, Turns

FLOODER, VICTIM = 1, 2


def serve(turns: Turns[str], cost: float, most: int = 10_000) -> list[str]:
    """All that waits, in the order in which it is served, at this cost each."""
    served: list[str] = []
    while len(served) < most and (message := turns.take()) is not None:
        served.append(message)
        turns.spent(cost)
    return served


def test_between_two_messages_of_a_user_another_one_has_one_turn_however_many_connections_he_has() -> None:
    turns: Turns[str] = Turns()
    for connection in range(200):
        for _ in range(5):
            turns.put(FLOODER, b"%d" % connection, 100, "flood")
    for number in range(4):
        turns.put(VICTIM, b"v", 100, f"mine {number}")
    served = serve(turns, TURN_S)  # each message is one turn long
    at = [served.index(f"mine {number}") for number in range(4)]
    assert at == [1, 3, 5, 7]
    assert len(served) == 1004


def test_messages_that_cost_much_are_made_up_for_by_those_that_cost_little() -> None:
    turns: Turns[str] = Turns()
    for _ in range(10):
        turns.put(FLOODER, b"f", 100, "dear")
    for _ in range(200):
        turns.put(VICTIM, b"v", 100, "cheap")
    served: list[str] = []
    while len(served) < 100 and (message := turns.take()) is not None:
        served.append(message)
        turns.spent(20 * TURN_S if message == "dear" else TURN_S / 4)
    assert Counter(served)["dear"] <= 2, "80 cheap ones for each dear one"


def test_a_long_message_keeps_its_user_out_for_a_moment_and_not_for_long() -> None:
    turns: Turns[str] = Turns()
    turns.put(FLOODER, b"f", 100, "round")
    turns.put(FLOODER, b"f", 100, "next")
    for _ in range(500):
        turns.put(VICTIM, b"v", 100, "mine")
    assert turns.take() == "round"
    turns.spent(60.0)
    assert serve(turns, TURN_S).index("next") <= DEBT_S / TURN_S + 2


def test_connections_of_one_user_take_turns() -> None:
    turns: Turns[str] = Turns()
    for number in range(3):
        turns.put(FLOODER, b"many", 10, f"many {number}")
    turns.put(FLOODER, b"one", 10, "one")
    assert serve(turns, 0.0) == ["many 0", "one", "many 1", "many 2"]


def test_what_one_user_has_waiting_is_bounded_and_a_first_message_always_has_room() -> None:
    turns: Turns[str] = Turns()
    size = WAITING_BYTES // 4
    rooms = [turns.put(FLOODER, b"f", size, "large") for _ in range(8)]
    assert rooms == [Room.TAKEN] * 4 + [Room.REFUSED] + [Room.DROPPED] * 3, "he is told once"
    assert turns.put(FLOODER, b"g", size, "first") is Room.TAKEN
    assert turns.put(VICTIM, b"v", size, "mine") is Room.TAKEN
    assert turns.put(VICTIM, b"v", size, "mine") is Room.TAKEN
    served = serve(turns, 0.0)
    assert Counter(served) == {"large": 4, "first": 1, "mine": 2}
    assert [turns.put(FLOODER, b"f", size, "again") for _ in range(5)][-2:] == [Room.TAKEN, Room.REFUSED]


def test_small_messages_without_end_are_bounded_too() -> None:
    turns: Turns[str] = Turns()
    assert any(turns.put(FLOODER, b"f", 0, "") is not Room.TAKEN for _ in range(100_000))


@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2**25))), max_size=80))
def test_what_is_taken_is_served_once_and_in_order_and_nothing_is_left_of_it(steps: list[tuple[int, int, int] | None]) -> None:
    turns: Turns[tuple[int, int, int]] = Turns()
    sent: dict[tuple[int, int], list[int]] = {}
    got: dict[tuple[int, int], list[int]] = {}

    def take() -> bool:
        message = turns.take()
        if message is not None:
            got.setdefault(message[:2], []).append(message[2])
            turns.spent(message[2] * TURN_S / 8)
        return message is not None

    for number, step in enumerate(steps):
        if step is None:
            take()
        else:
            uid, connection, size = step
            if turns.put(uid, b"%d" % connection, size, (uid, connection, number)) is Room.TAKEN:
                sent.setdefault((uid, connection), []).append(number)
    while take():
        pass
    assert got == sent
    assert not turns
    assert turns.put(0, b"0", WAITING_BYTES, (0, 0, 0)) is Room.TAKEN
    assert turns.put(0, b"0", WAITING_BYTES - 1024, (0, 0, 0)) is Room.TAKEN, "nothing of before counts any more"


def test_who_asks_now_and_then_is_served_next_but_one_also_if_he_has_just_been_served() -> None:
    turns: Turns[str] = Turns()
    for number in range(1000):
        turns.put(FLOODER, b"%d" % number, 100, "flood")
    assert serve(turns, TURN_S / 10, most=300) == ["flood"] * 300
    for _ in range(3):
        turns.put(VICTIM, b"v", 100, "mine")
        assert turns.take() == "mine"
        turns.spent(TURN_S / 10)
        assert serve(turns, TURN_S / 10, most=20) == ["flood"] * 20


def test_who_was_alone_owes_nobody_for_that() -> None:
    turns: Turns[str] = Turns()
    for _ in range(2):
        turns.put(VICTIM, b"v", 100, "mine")
    turns.take()
    turns.spent(60.0)
    for number in range(200):
        turns.put(FLOODER, b"%d" % number, 100, "flood")
    assert serve(turns, TURN_S / 2).index("mine") <= 2


def test_who_sends_far_ahead_of_his_answers_is_told_of_over_all_his_connections() -> None:
    turns: Turns[str] = Turns()
    most = 4 * (1 + AHEAD) + FLOOD
    came = [turns.put(FLOODER, b"%d" % (number % 4), 100, "flood", sender=7) for number in range(most + 1)]
    assert came == [Room.TAKEN] * most + [Room.FLOOD]
    assert turns.put(FLOODER, b"other", 100, "mine", sender=8) is Room.TAKEN
    assert turns.put(FLOODER, b"other", 100, "mine", sender=8) is Room.TAKEN, "another process of the same user"
    turns.discard(FLOODER, 7)
    assert serve(turns, 0.0) == ["mine", "mine"]
    assert not turns


def test_messages_that_are_dropped_count_as_unanswered_until_their_connection_has_its_answers() -> None:
    turns: Turns[str] = Turns()
    for _ in range(2):
        turns.put(FLOODER, b"f", WAITING_BYTES // 2, "large")
    turns.put(FLOODER, b"f", WAITING_BYTES // 2 - 2 * 1024, "large")
    most = AHEAD + FLOOD - 2
    rooms = [turns.put(FLOODER, b"f", 5000, "more") for _ in range(most + 2)]
    assert rooms == [Room.REFUSED] + [Room.DROPPED] * (most - 1) + [Room.FLOOD] * 2
    assert serve(turns, 0.0) == ["large"] * 3
    assert [turns.put(FLOODER, b"f", 10, "again") for _ in range(AHEAD + FLOOD)] == [Room.TAKEN] * (AHEAD + FLOOD)


def test_a_crowd_of_processes_that_each_have_one_request_waiting_is_no_flood() -> None:
    turns: Turns[str] = Turns()
    assert {turns.put(VICTIM, b"%d" % number, 100, "hello", sender=number) for number in range(2000)} == {Room.TAKEN}
    given_up = [turns.put(VICTIM, b"c%d" % (number % 100), 100, "asked", sender=1) for number in range(100 * (1 + GIVEN_UP))]
    assert set(given_up) == {Room.TAKEN}, "whatever one process does with clients of ours"


def test_who_comes_is_served_next_also_in_the_midst_of_anothers_turn() -> None:
    turns: Turns[str] = Turns()
    for number in range(1000):
        turns.put(FLOODER, b"%d" % number, 100, "flood")
    for before in (303, 25, 7):
        assert serve(turns, TURN_S / 10, most=before) == ["flood"] * before
        turns.put(VICTIM, b"v", 100, "mine")
        assert turns.take() == "mine"
        turns.spent(TURN_S / 10)


def test_who_comes_has_one_turn_and_then_waits_as_the_others_do() -> None:
    turns: Turns[str] = Turns()
    for number in range(100):
        turns.put(FLOODER, b"%d" % number, 100, "flood")
    serve(turns, TURN_S, most=5)
    for _ in range(10):
        turns.put(VICTIM, b"v", 100, "mine")
    served = serve(turns, TURN_S)
    assert [at for at, message in enumerate(served) if message == "mine"] == list(range(0, 20, 2))


def test_who_was_served_first_for_coming_waits_for_the_others_turn_when_he_asks_again() -> None:
    turns: Turns[str] = Turns()
    for number in range(1000):
        turns.put(FLOODER, b"%d" % number, 100, "flood")
    serve(turns, TURN_S / 8, most=20)
    turns.put(VICTIM, b"v", 100, "mine")
    assert serve(turns, TURN_S / 8, most=2) == ["mine", "flood"]
    turns.put(VICTIM, b"v", 100, "mine")
    assert serve(turns, TURN_S / 8, most=20).index("mine") in {6, 7, 8}, "what is left of the turn"


def test_who_has_gone_counts_for_nobody() -> None:
    turns: Turns[str] = Turns()
    turns.put(3, b"was here", 100, "and has gone")
    assert serve(turns, TURN_S) == ["and has gone"]
    for _ in range(2):
        turns.put(VICTIM, b"v", 100, "mine")
    turns.take()
    turns.spent(60.0)  # nobody waited for it
    for number in range(200):
        turns.put(FLOODER, b"%d" % number, 100, "flood")
    assert serve(turns, TURN_S / 2).index("mine") <= 2


def test_what_was_answered_counts_no_more_also_while_others_have_something_waiting() -> None:
    turns: Turns[str] = Turns()
    for number in range(2000):
        turns.put(VICTIM, b"%d" % number, 100, "mine")
    for size, messages in ((WAITING_BYTES // 4, 4), (0, 1 + AHEAD + FLOOD)):
        for _ in range(4):
            assert {turns.put(FLOODER, b"f", size, "flood", sender=7) for _ in range(messages)} == {Room.TAKEN}
            assert serve(turns, TURN_S, most=2 * messages).count("flood") == messages


def test_what_was_dropped_with_its_sender_counts_no_more() -> None:
    turns: Turns[str] = Turns()
    turns.put(FLOODER, b"other", 100, "other", sender=8)
    for size, messages in ((WAITING_BYTES // 2, 2), (0, 1 + AHEAD + FLOOD)):
        for _ in range(3):
            assert {turns.put(FLOODER, b"f", size, "flood", sender=7) for _ in range(messages)} == {Room.TAKEN}
            turns.discard(FLOODER, 7)
    assert serve(turns, 0.0) == ["other"]


def test_a_message_that_is_being_served_is_still_waited_for_by_its_connection() -> None:
    turns: Turns[str] = Turns()
    turns.put(VICTIM, b"one", 100, "mine")
    assert turns.take() == "mine"
    assert not turns
    assert turns.waits(VICTIM, b"one")
    assert not turns.waits(VICTIM, b"another")
    turns.spent(0.0)
    assert not turns.waits(VICTIM, b"one")
