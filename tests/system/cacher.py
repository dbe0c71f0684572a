"""A process that uses the compile cache as its test tells it, one JSON order a line: ``cacher.py [UID]``.

With a uid it gives up being root before it says hello.  It answers each order with one JSON line, and ends with its stdin.
"""

from __future__ import annotations

import encodings.ascii
import json
import os
import sys
from typing import Any

import npgxd.wire.identity
from npgxd.client import Client, Found, Patience

LATER = (encodings.ascii, npgxd.wire.identity)
"""Imported now: another user may not be able to read this Python's files."""
PATIENT = Patience(handshake_s=30, silence_s=30, reconnect_s=30)


def done(client: Client, order: dict[str, Any]) -> Any:
    name, arguments = order.pop("do"), order
    if name == "publish":
        arguments["data"] = bytes.fromhex(arguments["data"])
    came = getattr(client, name)(**arguments)
    if isinstance(came, Found):
        return {
            "state": str(came.state),
            "data": None if came.data is None else came.data.hex(),
            "digest": came.digest,
            "alone": came.alone,
            "code": came.code,
            "reason": came.reason,
            "proven": came.proven,
            "publisher": came.publisher,
        }
    return {"ok": came.ok, "reason": came.reason}


def main(uid: str = "") -> None:
    if uid:
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
    client = Client(patience=PATIENT)
    for line in sys.stdin:
        sys.stdout.write(json.dumps(done(client, json.loads(line))) + "\n")
        sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
