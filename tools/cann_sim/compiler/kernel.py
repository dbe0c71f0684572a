"""One kernel: its object's bytes, its own json and its index entry, all decided by the same facts."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .costs import CUBE_WEIGHT
from .record import Record, dumps

if TYPE_CHECKING:
    from pathlib import Path

    from .socs import Soc

_BLOCK = 4096
_LIST_KEYED = frozenset({"Cast", "Transpose", "RmsNorm", "SoftmaxV2"})
"""Op types whose index entries carry their simplifiedKey as an array; both forms are documented."""


@dataclass(frozen=True)
class Target:
    """What one kernel is compiled from and for."""

    record: Record
    deterministic: bool
    soc: Soc
    implementation: str
    build: str
    flags: str
    object_bytes: int

    @property
    def name(self) -> str:
        """The kernel's name, and the stem of its files."""
        return self.record.kernel_name(deterministic=self.deterministic)

    @property
    def seed(self) -> bytes:
        """Everything that decides the object's bytes."""
        facts = [self.record.canonical, self.deterministic, self.soc.name, self.record.platform(self.soc), self.implementation]
        return dumps([*facts, self.build, self.flags]).encode()


def object_bytes(target: Target) -> bytes:
    """The kernel object: an ELF-like head, then as many bytes as asked for (up to an eighth more), decided by the seed."""
    seed = target.seed
    digest = hashlib.sha256(seed).digest()
    size = target.object_bytes + int.from_bytes(digest[:2], "big") % (target.object_bytes // 8 + 1)
    head = b"\x7fELF\x02\x01\x01SIMULATED KERNEL " + digest.hex().encode() + b"\n"
    block = hashlib.shake_256(seed).digest(min(_BLOCK, max(size, 1)))
    return head + (block * (size // len(block) + 1))[: max(size - len(head), 0)]


def kernel_json(target: Target, content: bytes) -> dict[str, Any]:
    """The kernel's own json (docs/cann.md, the run package)."""
    desc = _bin_desc(target)
    return {
        "binFileName": target.name,
        "binFileSuffix": ".o",
        "coreType": "MIX" if _core_type(target) == _MIX else "AiCore",
        "magic": "RT_DEV_BINARY_MAGIC_ELF",
        "opType": target.record.op_type,
        "sha256": hashlib.sha256(content).hexdigest(),
        "supportInfo": target.record.support_info(deterministic=target.deterministic),
        "platformInfo": target.record.platform(target.soc),
        "deterministic": "true" if target.deterministic else "false",
        "simulated": {
            "compiledFor": hashlib.sha256(dumps(target.record.meaning(deterministic=target.deterministic)).encode()).hexdigest(),
            "record": target.record.digest,
        },
        **desc,
    }


def index_entry(target: Target, package: str) -> dict[str, Any]:
    """The kernel's entry in an index; ``binPath`` is relative to ``ai_core/``."""
    key = target.record.simplified_key(deterministic=target.deterministic)
    return {
        "simplifiedKey": [key] if target.record.op_type in _LIST_KEYED else key,
        "coreType": _core_type(target),
        "binPath": f"{package}/{target.soc.family}/{target.record.op_type}/{target.name}.o",
        "binDesc": _bin_desc(target),
    }


def write_kernel(target: Target, directory: Path) -> None:
    """Write ``<name>.o`` and ``<name>.json`` into ``directory``."""
    content = object_bytes(target)
    (directory / f"{target.name}.o").write_bytes(content)
    described = json.dumps(kernel_json(target, content), indent=2, sort_keys=True)
    temporary = directory / f"{target.name}.tmp"
    temporary.write_text(described)
    temporary.replace(directory / f"{target.name}.json")


_MIX = 4


def _core_type(target: Target) -> int:
    """0 AiCore, 2 vector, 4 mixed, as the index numbers them."""
    weight_is_cube = any(word in target.record.op_type for word in ("MatMul", "Gemm", "Conv"))
    if weight_is_cube:
        return _MIX if "V3" in target.record.op_type else 0
    return 2


def _bin_desc(target: Target) -> dict[str, Any]:
    cores = target.record.platform(target.soc)
    limit = cores["cube_core_cnt" if _core_type(target) in (0, _MIX) else "vector_core_cnt"]
    per_core = 16384
    blocks = max(1, min(limit, -(-target.record.elements() // per_core)))
    workspace = [int(CUBE_WEIGHT * per_core) * blocks] if _core_type(target) == _MIX else []
    return {"blockDim": blocks, "kernelName": f"{target.name}__kernel0", "workspace": workspace}
