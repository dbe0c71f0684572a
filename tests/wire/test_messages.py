from __future__ import annotations

from dataclasses import FrozenInstanceError, asdict, is_dataclass, replace

import pytest

from npgxd.errors import ProtocolError
from npgxd.wire import limits
from npgxd.wire import messages as m
from npgxd.wire.codec import decode, encode
from npgxd.wire.parsing import UnknownOp, UnsupportedVersion, parse_reply, parse_request
from npgxd.wire.states import ClientState, KeyOutcome, Reason, RoundState

ID, DIGEST = "0123456789abcdef" * 2, "0123456789abcdef" * 4
FAILURE = m.Failure(DIGEST, "MatMulV2", KeyOutcome.LEFT_OUT, "not in the package")
TOOLCHAIN = m.ToolchainInfo("Ascend910B3", "ascend910b", "9.1.0", simulated=True, cores=m.CoreCounts(40, 20), fingerprint=DIGEST)
RESULT = m.RoundResult(
    state=ClientState.DEGRADED,
    reason=Reason.COMPILE_FAILED,
    hits=1,
    compiled=2,
    view=DIGEST,
    view_kernels=3,
    failures=(FAILURE,),
    failed=1,
    shadowed=(FAILURE,),
    packages=(m.Package(DIGEST, "a.run", "packages/a.run"),),
    gathered=4,
)
REQUESTS = [
    m.Hello(
        versions=(1, 2),
        client="npgxd 0.1.0",
        features=("a",),
        pid=7,
        program="serve.py",
        rank=m.RankInfo("none", "node0:29500", "1:2:3", 0, 1, 2, 3),
        toolchain=m.ToolchainIdentity("Ascend910B3", m.CoreCounts(40, 20), {"runtime": "9.1.0"}, DIGEST),
    ),
    m.Report(state=ClientState.RECORDING, graph="decode[8]"),
    m.Submit(round=ID, part=1, parts=2, graph="g", options=m.CompileOptions({"enable": "true"}), recompile=True),
    m.Follow(ID),
    m.Gathered(ID, 5),
    m.Lease(DIGEST),
    m.Leased(ID),
    m.Status(),
    m.Bye(),
]
REPLIES = [
    m.Welcome(
        version=1,
        instance=ID,
        session=ID,
        daemon="npgxd",
        store_id=ID,
        store_path="/var/lib/npgxd",
        toolchain=TOOLCHAIN,
        differences=(m.Difference("ops_nn", "9.0.0", "9.1.0"),),
        local_world_size=8,
    ),
    m.PartTaken(ID, 3),
    m.RoundProgress(ID, RoundState.SETTLED, 9, 8, 8, 8, "g", ("Add",), 1.5, 0.0, (m.Rejected("a.json", "bad"),), RESULT),
    m.GatheredPart(ID, 10, None),
    m.LeaseOffer(ID, "leases/x", "views/y"),
    m.StatusDocument(1),
    m.Done(),
    m.Refusal("LIMIT", "too many", "wait"),
]


def test_every_message_is_tried_here():
    assert {type(message) for message in REQUESTS} == set(m.REQUESTS.values())
    assert {type(message) for message in REPLIES} == set(m.REPLIES.values())


@pytest.mark.parametrize("message", REQUESTS + REPLIES, ids=lambda message: message.op)
def test_every_message_arrives_as_it_was_sent(message):
    parse = parse_request if message.op in m.REQUESTS else parse_reply
    envelope = decode(encode(message, 12))
    assert envelope.id == 12
    assert parse(envelope) == message


@pytest.mark.parametrize("message", REQUESTS + REPLIES, ids=lambda message: message.op)
def test_a_field_that_a_newer_peer_added_is_ignored(message):
    assert type(message).parse({**message.header(), "of_tomorrow": [1, {"x": None}]}) == message


@pytest.mark.parametrize("message", REQUESTS + REPLIES, ids=lambda message: message.op)
def test_a_message_without_what_it_needs_is_refused(message):
    names = [name for name in message.FIELD_NAMES if name in message.header()]
    needed = 0
    for name in names:
        header = {key: value for key, value in message.header().items() if key != name}
        try:
            type(message).parse(header)
        except ProtocolError as error:
            needed += name in error.message
    assert needed or message.op in {"status", "bye", "done"}


@pytest.mark.parametrize("message", REQUESTS + REPLIES, ids=lambda message: message.op)
@pytest.mark.parametrize("wrong", [object, -1, 2**60, float("nan"), "\0", "x" * 5000, b"bytes", [[[]]], {"a": 1, 2: 3}], ids=repr)
def test_a_wrong_value_in_any_field_is_refused_or_harmless(message, wrong):
    for name in message.FIELD_NAMES:
        try:
            parsed = type(message).parse({**message.header(), name: wrong})
        except ProtocolError:
            continue
        held = getattr(parsed, name)  # an integer or a text that the field may hold, or a map of which nothing is known
        assert held == wrong or (isinstance(wrong, dict) and held == type(held)())


@pytest.mark.parametrize("value", ["no", "0" * 31, "0" * 33, "G" * 32, "A" * 32, 5, None])
def test_a_round_id_is_exactly_32_lower_case_hexadecimal_digits(value):
    with pytest.raises(ProtocolError, match="round"):
        m.Follow.parse({"round": value})


def test_unknown_words_are_refused_with_those_that_are_known():
    with pytest.raises(ProtocolError, match="INSTALLED"):
        m.Report.parse({"state": "HAPPY"})


def test_an_op_of_the_other_side_is_unknown():
    with pytest.raises(UnknownOp):
        parse_reply(decode(encode(m.Status(), 1)))
    with pytest.raises(UnknownOp) as caught:
        parse_request(decode(encode(m.Done(), 1)))
    assert caught.value.code == "UNKNOWN_OP"
    assert "submit" in caught.value.hint


def test_another_version_is_named_except_where_it_is_agreed_on_or_does_not_matter(monkeypatch):
    monkeypatch.setattr(limits, "PROTOCOL_VERSION", 2)
    sent = {message.op: decode(encode(message, 1)) for message in REQUESTS + REPLIES}
    monkeypatch.setattr(limits, "PROTOCOL_VERSION", 1)
    for op, envelope in sent.items():
        if op in {"hello", "status"}:
            parse_request(envelope)
            continue
        with pytest.raises(UnsupportedVersion) as caught:
            (parse_request if op in m.REQUESTS else parse_reply)(envelope)
        assert caught.value.code == "UNSUPPORTED_VERSION"


def test_messages_are_frozen_dataclasses_although_they_are_cheap_to_define():
    rank = m.RankInfo(rank=1)
    assert is_dataclass(rank)
    assert replace(rank, rank=2) == m.RankInfo(rank=2) != rank
    assert asdict(rank)["rank"] == 1
    assert len({rank, m.RankInfo(rank=1), m.RankInfo()}) == 2
    assert repr(m.CoreCounts(40, 20)) == "CoreCounts(vector=40, cube=20)"
    assert m.CoreCounts(1, 2) != m.RankInfo()
    for change in (lambda: setattr(rank, "rank", 3), lambda: delattr(rank, "rank"), lambda: setattr(rank, "new", 3)):
        with pytest.raises(FrozenInstanceError):
            change()


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: m.CoreCounts(1),
        lambda: m.CoreCounts(1, 2, 3),
        lambda: m.CoreCounts(1, 2, vector=1),
        lambda: m.CoreCounts(1, 2, other=1),
    ],
)
def test_a_message_is_made_with_exactly_its_fields(wrong):
    with pytest.raises(TypeError):
        wrong()


def test_mutable_defaults_are_not_shared():
    assert m.ToolchainIdentity().versions is not m.ToolchainIdentity().versions


def test_compile_options_leave_no_trace_where_there_are_none():
    assert m.CompileOptions().canonical() == {}
    assert list(m.CompileOptions({"b": "1", "a": "2"}).canonical()["super_kernel"]) == ["a", "b"]
