"""The kernel key: the name under which a kernel is looked up, made from everything that decides its bytes and nothing else."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from npgxd.toolchain.flags import CompilerFlags
    from npgxd.toolchain.record import Record
    from npgxd.wire.messages import CompileOptions

KEY_SCHEMA: Final = 1
"""Raised when the meaning of any part changes, so that no kernel is found under a key that meant something else."""


def kernel_key(record: Record, op_fingerprint: str, options: CompileOptions, flags: CompilerFlags) -> str:
    """64 hexadecimal digits over canonical record, op fingerprint, compile options, compiler flags and the key schema."""
    parts = {
        "schema": KEY_SCHEMA,
        "record": record.digest,
        "fingerprint": op_fingerprint,
        "options": options.canonical(),
        "flags": flags.canonical(),
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
