from __future__ import annotations

import socket

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npgxd.compile.channel import MAX_FRAME, Channel, Frames


@given(frames=st.lists(st.binary(max_size=300), max_size=8), cut=st.integers(1, 50))
def test_frames_arrive_whole_however_the_bytes_are_cut(frames: list[bytes], cut: int) -> None:
    stream = b"".join(len(frame).to_bytes(4, "big") + frame for frame in frames)
    reader, got = Frames(), []
    for start in range(0, len(stream), cut):
        got += reader.feed(stream[start : start + cut])
    assert got == frames


def test_a_length_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ValueError, match="a frame of"):
        Frames().feed((MAX_FRAME + 1).to_bytes(4, "big"))


def test_what_was_sent_before_the_end_is_read_before_the_end_is_told() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    theirs.send(b"last words")
    theirs.close()
    assert ours.receive() == [b"last words"]
    assert ours.closed
    assert ours.receive() == []
    ours.close()


def test_an_offer_is_dropped_and_not_waited_for_when_the_other_end_is_slow() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    large = b"x" * (4 * 1024 * 1024)
    assert ours.offer(large)  # more than the socket takes: the rest is kept
    assert not ours.offer(b"dropped")
    got = theirs.receive()
    while not got:
        ours.offer(b"dropped")
        got = theirs.receive()
    assert got[0] == large
    ours.close()
    theirs.close()


def test_sending_to_an_end_that_is_gone_returns() -> None:
    ours, theirs = map(Channel, socket.socketpair())
    theirs.close()
    ours.send(b"x" * 1024 * 1024)
    assert ours.closed
    ours.close()
