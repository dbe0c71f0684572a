from __future__ import annotations

import pytest

from npgxd.errors import ProtocolError
from npgxd.wire import artifact_messages as a
from npgxd.wire.codec import decode, encode
from npgxd.wire.parsing import parse_reply, parse_request
from npgxd.wire.states import ArtifactState

KEY, DIGEST = "0123456789abcdef" * 4, "fedcba9876543210" * 4
REQUESTS = [
    a.Lookup(key=KEY, label="Model.decode", wait_s=600.0, ticket=7),
    a.Fetch(key=KEY, digest=DIGEST, part=3),
    a.Publish(key=KEY, digest=DIGEST, size=5, part=0, label="Model.decode", meta={"torch": "2.13"}),
    a.NotCacheable(key=KEY, code="RNG", reason="dropout", label="Model.train"),
    a.Release(key=KEY),
    a.Proven(key=KEY, digest=DIGEST),
    a.BadArtifact(key=KEY, digest=DIGEST, reason="it asserts"),
    a.CacheNote(key=KEY, label="Model.decode", outcome="MISFIT", reason="SCALE changed"),
    a.CacheList(match="decode"),
]
REPLIES = [
    a.Artifact(KEY, ArtifactState.HIT, DIGEST, 5, True, 1000, "", "", 1.5, 7),
    a.Artifact(key=KEY, state=ArtifactState.NOT_CACHEABLE, code="RNG", reason="dropout"),
    a.ArtifactPart(key=KEY, part=3),
    a.PublishTaken(key=KEY, part=0),
    a.Published(key=KEY, digest=DIGEST),
    a.CacheDocument(schema=1),
]
every = pytest.mark.parametrize("message", REQUESTS + REPLIES, ids=lambda message: message.op)


def test_every_message_is_tried_here():
    assert {type(message) for message in REQUESTS} == set(a.REQUESTS.values())
    assert {type(message) for message in REPLIES} == set(a.REPLIES.values())


@every
def test_every_message_arrives_as_it_was_sent(message):
    parse = parse_request if message.op in a.REQUESTS else parse_reply
    assert parse(decode(encode(message, 12))) == message


@every
def test_a_field_that_a_newer_peer_added_is_ignored(message):
    assert type(message).parse({**message.header(), "of_tomorrow": [1, {"x": None}]}) == message


@every
@pytest.mark.parametrize("wrong", [object, -1, 2**60, float("nan"), "\0", "x" * 5000, b"bytes", [[[]]], {"a": 1, 2: 3}], ids=repr)
def test_a_wrong_value_in_any_field_is_refused_or_harmless(message, wrong):
    for name in message.FIELD_NAMES:
        try:
            parsed = type(message).parse({**message.header(), name: wrong})
        except ProtocolError:
            continue
        assert getattr(parsed, name) == wrong


@pytest.mark.parametrize("key", ["0" * 63, "0" * 65, "G" * 64, "A" * 64, "../" * 21 + "x", 5, None, b"0" * 64])
def test_a_key_is_exactly_64_lower_case_hexadecimal_digits(key):
    for kind in (a.Lookup, a.Release, a.Fetch, a.Publish):
        with pytest.raises(ProtocolError, match="key"):
            kind.parse({"key": key, "digest": DIGEST, "part": 0, "size": 1})


@pytest.mark.parametrize("code", ["", "a b", "1X", "x/y", "\n", "É", "x" * 65])
def test_a_code_is_a_word(code):
    for kind, name in ((a.NotCacheable, "code"), (a.CacheNote, "outcome")):
        with pytest.raises(ProtocolError, match=name):
            kind.parse({"key": KEY, "label": "", name: code})


def test_events_are_told_apart_by_their_key():
    assert REPLIES[0].topic == KEY
