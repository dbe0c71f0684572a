"""Every limit of the protocol in one place; both ends hold to them (docs/protocol.md, "Limits")."""

from __future__ import annotations

from typing import Final

PROTOCOL_VERSION: Final = 1

MAX_HEADER_BYTES: Final = 256 * 1024
"""One msgpack header. A settled round's failures and a status document travel in frames, not here."""
MAX_FRAME_BYTES: Final = 1024 * 1024
"""One payload frame. Larger payloads go in parts, so that they do not delay look-ups."""
MAX_FRAMES: Final = 16
"""Payload frames in one message."""
MAX_TEXT: Final = 4096
MAX_NAME: Final = 255
MAX_DEPTH: Final = 16

MAX_RECORD_BYTES: Final = 256 * 1024
"""One operator shape record, as JSON."""
MAX_ROUND_RECORDS: Final = 20_000
MAX_ROUND_BYTES: Final = 64 * 1024 * 1024
MAX_ROUND_PARTS: Final = 256

ARTIFACT_PART_BYTES: Final = 512 * 1024
"""One part of a compile-cache entry, in either direction: small, so that a large entry does not delay other look-ups."""
MAX_ARTIFACT_BYTES: Final = 1024 * 1024 * 1024
"""What no daemon takes; ``[cache] max_artifact_mb`` is what this one does."""
MAX_ARTIFACT_FACTS: Final = 32

PROGRESS_INTERVAL_S: Final = 1.0
"""The daemon says something about every followed round, and every build that is waited for, at least this often."""
SILENCE_S: Final = 5.0
"""A client that hears nothing for this long takes the daemon for silent."""
RECONNECT_S: Final = 10.0
"""A client tries this long to reach a restarted daemon before it goes on with dynamic kernels."""
