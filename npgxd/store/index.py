"""``binary_info_config.json``: the index by which the CANN runtime finds kernels. Strict reading, and canonical writing.

The form is that of docs/cann.md, section 3, "Index entries".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from npgxd.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INDEX_NAME: Final = "binary_info_config.json"
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
MAX_WORKSPACES: Final = 20
MAX_CORE_TYPE: Final = 4
_OP_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_FILE_STEM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+-]{0,199}")
_MAX_INT: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """What the runtime needs to know of one kernel, without where it lies."""

    simplified_keys: tuple[str, ...]
    core_type: int
    block_dim: int
    kernel_name: str
    workspace: tuple[int, ...]
    multi_kernel_type: int | None = None
    single: bool = True
    """Whether ``simplifiedKey`` is written as one text rather than a list."""

    def to_json(self, bin_path: str) -> dict[str, Any]:
        """As an element of ``staticList``."""
        entry: dict[str, Any] = {
            "binDesc": {"blockDim": self.block_dim, "kernelName": self.kernel_name, "workspace": list(self.workspace)},
            "binPath": bin_path,
            "coreType": self.core_type,
            "simplifiedKey": self.simplified_keys[0] if self.single else list(self.simplified_keys),
        }
        if self.multi_kernel_type is not None:
            entry["multiKernelType"] = self.multi_kernel_type
        return entry


@dataclass(frozen=True, slots=True)
class PackagedEntry:
    """One entry of an index, with its op type and where its object lies, relative to ``ai_core/``."""

    op_type: str
    bin_path: str
    facts: IndexEntry


def parse_index(raw: bytes) -> list[PackagedEntry]:
    """Every entry of an index, in order; StoreError says what is wrong with it. Paths are not followed or judged here."""
    try:
        index = json.loads(raw, object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise StoreError(f"the index is not JSON: {error}") from None
    if not isinstance(index, dict):
        raise StoreError("the index is not a JSON object")
    entries: list[PackagedEntry] = []
    for op_type, listed in index.items():
        if not _OP_TYPE.fullmatch(op_type):
            raise StoreError(f"the index names {op_type[:80]!r}, which is no op type")
        if not isinstance(listed, dict) or not isinstance(listed.get("staticList"), list):
            raise StoreError(f"the index has no staticList for {op_type}")
        for entry in listed["staticList"]:
            if not isinstance(entry, dict):
                raise StoreError(f"the index of {op_type} has an entry that is no object")
            bin_path = entry.get("binPath")
            if not isinstance(bin_path, str) or not bin_path or "\0" in bin_path:
                raise StoreError(f"the index of {op_type} has an entry without binPath")
            entries.append(PackagedEntry(op_type, bin_path, parse_entry(op_type, entry)))
    return entries


def parse_entry(where: str, entry: Mapping[str, Any]) -> IndexEntry:
    """One entry's facts, checked."""
    keys = entry.get("simplifiedKey")
    single = isinstance(keys, str)
    names = [keys] if single else keys
    if not isinstance(names, list) or not names or not all(isinstance(name, str) and name for name in names):
        raise StoreError(f"an index entry of {where} has no simplifiedKey")
    described = entry.get("binDesc")
    if not isinstance(described, dict):
        raise StoreError(f"an index entry of {where} has no binDesc")
    name, workspace = described.get("kernelName"), described.get("workspace", [])
    if not isinstance(name, str) or not name:
        raise StoreError(f"an index entry of {where} has no kernelName")
    if not isinstance(workspace, list) or len(workspace) > MAX_WORKSPACES:
        raise StoreError(f"an index entry of {where} has a workspace that is no list of at most {MAX_WORKSPACES}")
    multi = entry.get("multiKernelType")
    return IndexEntry(
        simplified_keys=tuple(names),
        core_type=_integer(where, "coreType", entry.get("coreType"), MAX_CORE_TYPE),
        block_dim=_integer(where, "blockDim", described.get("blockDim"), _MAX_INT),
        kernel_name=name,
        workspace=tuple(_integer(where, "workspace", size, _MAX_INT, low=-_MAX_INT) for size in workspace),
        multi_kernel_type=None if multi is None else _integer(where, "multiKernelType", multi, _MAX_INT),
        single=single,
    )


def build_index(entries: Iterable[PackagedEntry]) -> bytes:
    """The index over ``entries`` as canonical JSON: equal sets of entries give equal bytes."""
    index: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for entry in sorted(entries, key=lambda e: (e.op_type, e.facts.simplified_keys, e.bin_path)):
        index.setdefault(entry.op_type, {"staticList": []})["staticList"].append(entry.facts.to_json(entry.bin_path))
    return json.dumps(index, sort_keys=True, indent=1, ensure_ascii=False).encode()


def check_stem(stem: str) -> str:
    """A kernel file's name without its suffix; no dot, so that the runtime finds ``.o`` where it is."""
    if not _FILE_STEM.fullmatch(stem):
        raise StoreError(f"{stem[:80]!r} cannot be a kernel's file name")
    return stem


def _integer(where: str, name: str, value: object, high: int, *, low: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise StoreError(f"an index entry of {where} has {name} {value!r}; it must be an integer from {low} to {high}")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
