from __future__ import annotations

import os
import pickle
import sys

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npgxd.errors import ProtocolError
from npgxd.wire import limits
from npgxd.wire import messages as m
from npgxd.wire.codec import decode, encode, pack_records, unpack_records
from npgxd.wire.parsing import parse_reply, parse_request


class Exploit:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return os.system, ("touch /tmp/npgxd-was-exploited",)


PICKLES = [pickle.dumps(Exploit(), protocol) for protocol in range(pickle.HIGHEST_PROTOCOL + 1)]
HOSTILE = [
    *PICKLES,
    b"",
    b"\xc1",
    b"\x80",
    b"cos\nsystem\n(S'id'\ntR.",
    msgpack.packb(msgpack.ExtType(5, PICKLES[0])),
    msgpack.packb({"v": 1, "id": 1, "op": msgpack.ExtType(5, b"x")}),
    msgpack.packb({"v": 1, "id": 1, "op": "status", "x": msgpack.Timestamp(1)}),
    msgpack.packb({"v": 1, "id": 1, "op": PICKLES[2]}),
    msgpack.packb([{"v": 1, "id": 1, "op": "status"}]),
    msgpack.packb({"v": True, "id": 1, "op": "status"}),
    msgpack.packb({"v": 1, "id": -1, "op": "status"}),
    msgpack.packb({"v": 1, "id": 2**53, "op": "status"}),
    msgpack.packb({"v": 1, "id": 1.0, "op": "status"}),
    msgpack.packb({"v": 1, "id": 1, "op": "s" * 256}),
    msgpack.packb({1: 2}),
    msgpack.packb({"v": 1, "id": 1, "op": "status"}) + b"\x00",
    msgpack.packb({"v": 1, "id": 1, "op": "status"})[:-1],
    b"\x91" * 100_000,
    b"\x81\xa1a" * 50_000,
    b"\xdf\xff\xff\xff\xff",
    b"\xdd\xff\xff\xff\xff",
    b"\xdb\xff\xff\xff\xff",
    b"\xc6\xff\xff\xff\xff",
    b"\xc9\xff\xff\xff\xff\x00",
    b"\x00" * (limits.MAX_HEADER_BYTES + 1),
    "é".encode("latin-1"),
    b"\x83\xa1v\x01\xa2id\x01\xa2op\xa2\xff\xfe",
]


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_fc57_a_hostile_header_is_refused_and_runs_nothing(payload, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("code was run"))
    with pytest.raises(ProtocolError):
        parse_request(decode([payload]))
    with pytest.raises(ProtocolError):
        parse_reply(decode([payload]))


@pytest.mark.parametrize("payload", HOSTILE, ids=range(len(HOSTILE)))
def test_fc57_a_hostile_records_frame_is_refused_and_runs_nothing(payload, monkeypatch):
    monkeypatch.setattr(os, "system", lambda *_: pytest.fail("code was run"))
    with pytest.raises(ProtocolError):
        unpack_records([payload])


def test_fc57_the_protocol_knows_no_pickle():
    wire = [module for name, module in sys.modules.items() if name.startswith("npgxd.wire")]
    assert not [module for module in wire if "pickle" in vars(module)]


@given(st.lists(st.binary(max_size=200), max_size=5))
@settings(max_examples=300, deadline=None)
def test_fc57_any_bytes_are_a_message_or_a_protocol_error(parts):
    for parse in (parse_request, parse_reply):
        try:
            message = parse(decode(parts))
        except ProtocolError:
            continue
        assert isinstance(message, m.Message)


WORDS = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(max_size=20) | st.binary(max_size=20)
VALUES = st.recursive(
    WORDS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4), max_leaves=12
)
FIELDS = sorted({name for kind in (m.REQUESTS | m.REPLIES).values() for name in kind.FIELD_NAMES})


@given(
    st.sampled_from(sorted(m.REQUESTS | m.REPLIES)),
    st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=10),
    st.integers(0, 2),
)
@settings(max_examples=150, deadline=None)
def test_fc57_any_fields_are_a_checked_message_or_a_protocol_error(op, fields, version):
    header = msgpack.packb({**fields, "v": version, "id": 3, "op": op})
    for parse in (parse_request, parse_reply):
        try:
            message = parse(decode([header]))
        except ProtocolError:
            continue
        assert message.op == op
        assert parse(decode(encode(message, 7))) == message


NAMES = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1, max_size=limits.MAX_NAME)


@given(st.lists(st.tuples(NAMES, st.binary(max_size=500)), max_size=30))
@settings(max_examples=100, deadline=None)
def test_records_arrive_as_they_were_sent(records):
    frames = pack_records(records)
    assert unpack_records(decode(encode(m.Submit(round="0" * 32), 1, frames)).frames) == records


def test_many_large_records_fill_frames_within_the_limit():
    records = [("é" * 255, b"x" * limits.MAX_RECORD_BYTES)] * 9
    frames = pack_records(records)
    assert len(frames) > 1
    assert max(map(len, frames)) <= limits.MAX_FRAME_BYTES
    assert unpack_records(frames) == records


@pytest.mark.parametrize(
    "frame",
    [
        {"a": b"x"},
        [["a"]],
        [["a", b"x", 1]],
        [["", b"x"]],
        [["a\0b", b"x"]],
        [["a" * 256, b"x"]],
        [["a", "text"]],
        [[b"a", b"x"]],
        [["a", b"x" * (limits.MAX_RECORD_BYTES + 1)]],
        ["ab"],
    ],
    ids=str,
)
def test_a_frame_that_is_not_of_records_is_refused(frame):
    with pytest.raises(ProtocolError):
        unpack_records([msgpack.packb(frame)])


def test_limits_hold_when_sending_too():
    with pytest.raises(ProtocolError, match="at most"):
        pack_records([("a", b"x" * (limits.MAX_RECORD_BYTES + 1))])
    with pytest.raises(ProtocolError, match="payload frames"):
        encode(m.Done(), 1, [b""] * (limits.MAX_FRAMES + 1))
    with pytest.raises(ProtocolError, match="payload frame of"):
        encode(m.Done(), 1, [b"x" * (limits.MAX_FRAME_BYTES + 1)])
    with pytest.raises(ProtocolError, match="header"):
        encode(m.Hello(versions=(1,), program="x" * limits.MAX_HEADER_BYTES), 1)


def test_limits_hold_when_receiving():
    header = encode(m.Done(), 1)[0]
    with pytest.raises(ProtocolError):
        decode([header, *[b""] * (limits.MAX_FRAMES + 1)])
    with pytest.raises(ProtocolError):
        decode([header, b"x" * (limits.MAX_FRAME_BYTES + 1)])
    with pytest.raises(ProtocolError, match="empty"):
        decode([])
