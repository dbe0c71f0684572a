"""Who may connect at all: libzmq asks before it reads the first message of a connection, and is answered by a thread of its own.

Promise: whoever is not refused is let in at once, also while the loop is busy or has not begun; of a connection that is refused no message is
ever read, and a ZeroMQ client that is told so does not try again.  Source: ZAP (ZeroMQ RFC 27).  That the address of such a question is the
kernel's word for the peer, as in ``Peer-Address``, is a finding (libzmq 4.3.5).  One in another form is let
in: messages are looked at, too.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Final

import zmq

from npgxd.errors import ProtocolError
from npgxd.wire.credentials import parse_peer_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.wire.credentials import PeerCredentials

log = logging.getLogger(__name__)

DOMAIN: Final = b"ranks"
"""Set as ZAP_DOMAIN, it makes libzmq ask for a socket's connections."""
_ENDPOINT: Final = "inproc://zeromq.zap.01"
_VERSION: Final = b"1.0"
_YES: Final = (b"200", b"")
_NO: Final = (b"400", b"too much came from this process or user")


class Admission:
    """Lets everybody in, until ``refuses`` is set to something that says of some peers, in the other thread, that they are not."""

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self.refuses: Callable[[PeerCredentials], bool] = lambda _peer: False
        self._questions = context.socket(zmq.REP)
        self._questions.linger = 0
        self._questions.setsockopt(zmq.RCVHWM, 0)  # at a bound libzmq would let in without asking
        self._questions.bind(_ENDPOINT)
        self._thread = threading.Thread(target=self._answer, name="admission", daemon=True)
        self._thread.start()

    def join(self) -> None:
        """Wait for the thread's end, which is when the context is terminated."""
        self._thread.join()

    def _answer(self) -> None:
        with self._questions, contextlib.suppress(zmq.ContextTerminated):
            while True:
                _version, number, _domain, address, *_ = self._questions.recv_multipart()
                code, why = _NO if self._is_refused(address) else _YES
                self._questions.send_multipart([_VERSION, number, code, why, b"", b""])

    def _is_refused(self, address: bytes) -> bool:
        try:
            return self.refuses(parse_peer_address(address.decode(errors="replace")))
        except ProtocolError:
            return False
        except Exception:  # a fault of ours must not keep ranks out; what they send is looked at all the same
            log.exception("internal error where a connection is let in")
            return False
