from __future__ import annotations

import math
import threading
import time
from contextlib import contextmanager

from npgxd.client.session import _Turns, context_of_process


@contextmanager
def a_turn(turns: _Turns):
    assert turns.take(lambda: math.inf)
    yield
    turns.give()


def test_turns_are_taken_in_the_order_of_asking():
    """Whoever leaves and comes back at once waits behind whoever was waiting already."""
    turns, order = _Turns(), []

    def wait_my_turn() -> None:
        with a_turn(turns):
            order.append("waited")

    other = threading.Thread(target=wait_my_turn)
    with a_turn(turns):
        other.start()
        until = time.monotonic() + 60
        while not turns._door.locked():  # the other one stands at the door
            assert time.monotonic() < until
            time.sleep(0.001)
    with a_turn(turns):
        order.append("came back")
    other.join(60)
    assert order == ["waited", "came back"]


def test_a_turn_is_not_waited_for_longer_than_there_is_time():
    turns = _Turns()
    with a_turn(turns):
        assert not turns.take(lambda: 0.01)
    with a_turn(turns):
        pass


def test_there_is_one_context_a_process_whoever_asks_first():
    found = []
    threads = [threading.Thread(target=lambda: found.append(context_of_process())) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(set(map(id, found))) == 1
