"""One CANN installation: where it is, what it holds, what a record means to it, and the key of the kernel that it would make.

Promise: two kernels have one key only if record, implementation, compiler, options and SoC are the same to the byte, and what
decides no byte (paths, file names, log levels, the order of keys in a file) is in no key. Bad records and incomplete
installations are told by name and reason, as ``RecordError`` and ``ToolchainError``.
"""

from npgxd.toolchain.discovery import Toolchain, ToolchainSettings, discover
from npgxd.toolchain.fingerprint import Fingerprinter
from npgxd.toolchain.flags import CompilerFlags
from npgxd.toolchain.key import KEY_SCHEMA, kernel_key
from npgxd.toolchain.record import Record, RecordParser, coarse_trace, parse_record, parse_records, trace_of_support_info
from npgxd.wire.soc import is_supported, soc_family

__all__ = [
    "KEY_SCHEMA",
    "CompilerFlags",
    "Fingerprinter",
    "Record",
    "RecordParser",
    "Toolchain",
    "ToolchainSettings",
    "coarse_trace",
    "discover",
    "is_supported",
    "kernel_key",
    "parse_record",
    "parse_records",
    "soc_family",
    "trace_of_support_info",
]
