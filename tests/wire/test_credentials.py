from __future__ import annotations

import os
import socket

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from npgxd.errors import ProtocolError
from npgxd.wire import credentials
from npgxd.wire.credentials import CredentialsUnusable, PeerCredentials, parse_peer_address, peer_of, self_test, send_as

ME = PeerCredentials(os.geteuid(), os.getegid(), os.getpid())


@pytest.fixture
def context():
    made = zmq.Context()
    yield made
    made.destroy(linger=0)


@pytest.fixture
def router(context, short):
    made = context.socket(zmq.ROUTER)
    made.bind(f"ipc://{short}/s")
    return made


def received(router):
    assert router.poll(30_000)
    return router.recv_multipart(copy=False)


def test_the_form_that_the_kernels_word_has_is_read():
    assert parse_peer_address("localhost:1000:100:4711") == PeerCredentials(1000, 100, 4711)
    assert parse_peer_address("localhost:0:0:0") == PeerCredentials(0, 0, 0)


@pytest.mark.parametrize(
    "address",
    [
        None,
        "",
        b"localhost:1:1:1",
        "localhost",
        "localhost:1:1",
        "localhost:1:1:1:1",
        "localhost:1:1:1\n",
        " localhost:1:1:1",
        "localhost:-1:1:1",
        "localhost:+1:1:1",
        "localhost:01:1:1",
        "localhost:1_0:1:1",
        "localhost:٣:1:1",
        "localhost:4294967295:1:1",
        "localhost:1:4294967295:1",
        "localhost:1:1:2147483648",
        "localhost:99999999999:1:1",
        "LOCALHOST:1:1:1",
        "127.0.0.1:1:1:1",
        "/run/x:0:0:0",
        "localhost:0x1:1:1",
    ],
)
def test_anything_else_is_no_credential(address):
    with pytest.raises(ProtocolError):
        parse_peer_address(address)


@given(st.text())
def test_no_text_gives_root_by_accident(address):
    try:
        found = parse_peer_address(address)
    except ProtocolError:
        return
    assert address == f"localhost:{found.uid}:{found.gid}:{found.pid}"


def test_every_frame_of_a_message_tells_its_sender(context, router, short):
    with context.socket(zmq.DEALER) as dealer:
        dealer.connect(f"ipc://{short}/s")
        dealer.send_multipart([b"a", b"b"])
        assert [peer_of(frame) for frame in received(router)] == [ME] * 3


def test_a_peer_cannot_say_that_it_is_somebody_else(router, short):
    claim = PeerCredentials(0 if ME.uid else 12345, 12345, 1)
    with socket.socket(socket.AF_UNIX) as forger:
        forger.connect(f"{short}/s")
        send_as(forger, claim, b"let me in")
        frames = received(router)
    assert frames[-1].bytes == b"let me in"
    assert frames[-1].get("User-Id") == str(claim.uid)  # what must not be believed
    assert peer_of(frames[-1]) == ME


def test_a_frame_that_came_over_no_connection_has_no_credentials(context):
    with pytest.raises(ProtocolError):
        peer_of(zmq.Frame(b"made here"))
    with context.socket(zmq.PAIR) as left, context.socket(zmq.PAIR) as right:
        left.bind("inproc://x")
        right.connect("inproc://x")
        right.send(b"x")
        with pytest.raises(ProtocolError):
            peer_of(left.recv(copy=False))


def test_tcp_has_no_credentials(context):
    with context.socket(zmq.ROUTER) as router, context.socket(zmq.DEALER) as dealer:
        port = router.bind_to_random_port("tcp://127.0.0.1")
        dealer.connect(f"tcp://127.0.0.1:{port}")
        dealer.send(b"x")
        with pytest.raises(ProtocolError):
            peer_of(received(router)[-1])


def test_the_self_test_passes_here_and_leaves_nothing(context, short):
    self_test(context, short)
    assert list(short.iterdir()) == []
    self_test(context)


def test_the_self_test_fails_where_a_peer_is_believed(context, short, monkeypatch):
    """As if libzmq told what the peer claims."""

    def believe(frame: zmq.Frame) -> PeerCredentials:
        try:
            uid = int(frame.get("User-Id"))
        except zmq.ZMQError:
            return ME
        return PeerCredentials(uid, ME.gid, ME.pid)

    monkeypatch.setattr(credentials, "peer_of", believe)
    with pytest.raises(CredentialsUnusable, match="claims to be another user"):
        self_test(context, short)
    assert list(short.iterdir()) == []


def test_the_self_test_fails_where_nothing_is_told(context, short, monkeypatch):
    monkeypatch.setattr(credentials, "_ADDRESS", credentials.re.compile("never"))
    credentials.parse_peer_address.cache_clear()  # of what other tests of this process have read
    with pytest.raises(CredentialsUnusable, match="does not tell") as caught:
        self_test(context, short)
    assert zmq.zmq_version() in caught.value.hint
