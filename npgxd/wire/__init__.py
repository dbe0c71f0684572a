"""The protocol that ranks and the daemon speak: messages, their codec and limits, peer credentials, where sockets are found.

Promise: decoding is total and bounded (any bytes give a checked message or a ``ProtocolError``), no message carries code, and the
uid and pid of a peer come from the kernel.  Imported by every rank, so it needs only pyzmq and msgpack and imports fast.
docs/protocol.md is this package in words.
"""
