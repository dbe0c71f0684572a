from __future__ import annotations

import pytest

from npgxd.daemon.demand.uploads import MAX_OPEN_PER_SESSION, TooMuch, Uploads
from npgxd.errors import ProtocolError
from npgxd.wire import limits
from npgxd.wire.codec import pack_records
from npgxd.wire.messages import Submit


def part(number: int, of: int, name: str = "0" * 32) -> Submit:
    return Submit(round=name, part=number, parts=of)


def frames(*names: str) -> tuple[bytes, ...]:
    return tuple(pack_records((name, b"{}") for name in names))


def test_the_records_come_out_whole_and_in_order_after_the_last_part() -> None:
    uploads = Uploads()
    assert uploads.take("s", part(0, 2), frames("a", "b")) is None
    assert uploads.take("s", part(1, 2), frames("c")) == [("a", b"{}"), ("b", b"{}"), ("c", b"{}")]


def test_a_part_out_of_order_is_refused_and_the_round_must_begin_again() -> None:
    uploads = Uploads()
    uploads.take("s", part(0, 3), frames("a"))
    with pytest.raises(ProtocolError, match="out of order"):
        uploads.take("s", part(2, 3), frames("c"))
    with pytest.raises(ProtocolError, match="out of order"):
        uploads.take("s", part(1, 3), frames("b"))
    assert uploads.take("s", part(0, 1), frames("a")) == [("a", b"{}")]


def test_beginning_again_drops_what_came_before() -> None:
    uploads = Uploads()
    uploads.take("s", part(0, 2), frames("old"))
    uploads.take("s", part(0, 2), frames("new"))
    assert uploads.take("s", part(1, 2), frames("last")) == [("new", b"{}"), ("last", b"{}")]


def test_sessions_do_not_see_each_others_parts() -> None:
    uploads = Uploads()
    uploads.take("s", part(0, 2), frames("a"))
    with pytest.raises(ProtocolError, match="out of order"):
        uploads.take("t", part(1, 2), frames("b"))
    assert uploads.take("s", part(1, 2), frames("c")) == [("a", b"{}"), ("c", b"{}")]


def test_open_submissions_of_one_session_are_bounded_and_forgotten_with_it() -> None:
    uploads = Uploads()
    for number in range(MAX_OPEN_PER_SESSION):
        uploads.take("s", part(0, 2, f"{number:032x}"), ())
    with pytest.raises(TooMuch):
        uploads.take("s", part(0, 2, "f" * 32), ())
    uploads.forget("s")
    assert uploads.take("s", part(0, 2, "f" * 32), ()) is None


def test_a_round_over_the_limits_is_refused_whole() -> None:
    uploads = Uploads()
    names = [f"r{number}" for number in range(limits.MAX_ROUND_RECORDS + 1)]
    with pytest.raises(TooMuch, match="records"):
        uploads.take("s", part(0, 1), frames(*names))
    big = bytes(limits.MAX_FRAME_BYTES)
    with pytest.raises(TooMuch, match="bytes"):
        uploads.take("s", part(0, 1, "1" * 32), (big,) * 65)
    assert uploads.take("s", part(0, 1, "1" * 32), ()) == []


def test_one_user_who_finishes_nothing_keeps_nobody_else_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npgxd.daemon.demand.uploads.MAX_OPEN_BYTES", 1000)
    monkeypatch.setattr("npgxd.daemon.demand.uploads.MAX_OPEN_BYTES_PER_UID", 900)
    uploads = Uploads()
    large = tuple(pack_records([("a", b"x" * 400)]))
    assert uploads.take("s1", part(0, 2), large, uid=1) is None
    assert uploads.take("s2", part(0, 2), large, uid=1) is None
    with pytest.raises(TooMuch, match="of user 1"):
        uploads.take("s3", part(0, 2), large, uid=1)
    assert uploads.take("s4", part(0, 2), large, uid=2) is None
    assert uploads.take("s4", part(1, 2), frames("b"), uid=2) is not None
    with pytest.raises(ProtocolError, match="out of order"):
        uploads.take("s1", part(1, 2), frames("b"), uid=1)
    assert uploads.take("s2", part(1, 2), frames("b"), uid=1) is not None, "only the oldest had to go"


def test_a_message_with_far_too_many_records_is_refused_at_the_first_frame_that_is_too_much() -> None:
    frame = pack_records((str(number), b"") for number in range(limits.MAX_ROUND_RECORDS + 1))[0]
    with pytest.raises(TooMuch, match="records"):
        Uploads().take("s", part(0, 1), (frame, b"\xc1 never looked at"))
