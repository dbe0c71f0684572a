"""``binary_info_config.json``: the index by which the CANN runtime finds kernels. Strict reading, and canonical writing.

The form is that of docs/cann.md, section 3, "Index entries".
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from npgxd.errors import StoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

INDEX_NAME: Final = "binary_info_config.json"
MAX_INDEX_BYTES: Final = 64 * 1024 * 1024
MAX_WORKSPACES: Final = 20
MAX_CORE_TYPE: Final = 4
_OP_TYPE: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,127}")
_FILE_STEM: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_+-]{0,199}")
_MAX_INT: Final = 2**63 - 1
_MAX_EXTRA: Final = 64 * 1024
_ENTRY_FIELDS: Final = frozenset({"simplifiedKey", "coreType", "binPath", "binDesc", "multiKernelType"})
_DESC_FIELDS: Final = frozenset({"blockDim", "kernelName", "workspace"})


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
    extra: str = ""
    """Fields that this version does not know, as canonical JSON: what a newer CANN adds travels along untouched."""

    def to_json(self, bin_path: str) -> dict[str, Any]:
        """As an element of ``staticList``."""
        unknown: dict[str, Any] = json.loads(self.extra) if self.extra else {}
        described = {"blockDim": self.block_dim, "kernelName": self.kernel_name, "workspace": list(self.workspace)}
        entry: dict[str, Any] = {
            **unknown,
            "binDesc": {**unknown.get("binDesc", {}), **described},
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
        check_op_type(op_type)
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
    if not isinstance(names, list) or not names or not all(_is_name(name) for name in names):
        raise StoreError(f"an index entry of {where} has no simplifiedKey")
    described = entry.get("binDesc")
    if not isinstance(described, dict):
        raise StoreError(f"an index entry of {where} has no binDesc")
    name, workspace = described.get("kernelName"), described.get("workspace", [])
    if not _is_name(name):
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
        extra=_extra(where, entry, described),
    )


def build_index(entries: Iterable[PackagedEntry]) -> bytes:
    """The index over ``entries`` as canonical JSON: equal sets of entries give equal bytes."""
    return b"".join(index_pieces(entries))


def index_pieces(entries: Iterable[PackagedEntry]) -> Iterator[bytes]:
    """``build_index`` one entry at a time, for a caller that has other things to do meanwhile."""
    before = None
    for entry in sorted(entries, key=lambda e: (e.op_type, e.facts.simplified_keys, e.bin_path)):
        if entry.op_type == before:
            lead = ",\n   "
        else:
            start = "{" if before is None else "\n  ]\n },"
            lead = f'{start}\n {json.dumps(entry.op_type, ensure_ascii=False)}: {{\n  "staticList": [\n   '
        before = entry.op_type
        text = json.dumps(entry.facts.to_json(entry.bin_path), sort_keys=True, indent=1, ensure_ascii=False)
        yield (lead + text.replace("\n", "\n   ")).encode()  # JSON has no line break within a text
    yield b"{}" if before is None else b"\n  ]\n }\n}"


def check_op_type(name: object) -> str:
    """An op type, which also names a directory."""
    if not isinstance(name, str) or not _OP_TYPE.fullmatch(name):
        raise StoreError(f"{str(name)[:80]!r} is no op type")
    return name


def check_stem(stem: str) -> str:
    """A kernel file's name without its suffix; no dot, so that the runtime finds ``.o`` where it is."""
    if not isinstance(stem, str) or not _FILE_STEM.fullmatch(stem):
        raise StoreError(f"{str(stem)[:80]!r} cannot be a kernel's file name")
    return stem


def _integer(where: str, name: str, value: object, high: int, *, low: int = 0) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise StoreError(f"an index entry of {where} has {name} {value!r}; it must be an integer from {low} to {high}")
    return value


def _is_name(value: object) -> TypeGuard[str]:
    """Text that is not empty, and has no half of a surrogate pair, which JSON can spell and no file can hold."""
    return isinstance(value, str) and value != "" and not any("\ud800" <= character <= "\udfff" for character in value)


def _extra(where: str, entry: Mapping[str, Any], described: Mapping[str, Any]) -> str:
    unknown = {name: value for name, value in entry.items() if name not in _ENTRY_FIELDS}
    inner = {name: value for name, value in described.items() if name not in _DESC_FIELDS}
    if inner:
        unknown["binDesc"] = inner
    if not unknown:
        return ""
    text = json.dumps(unknown, sort_keys=True, separators=(",", ":"))
    if len(text) > _MAX_EXTRA:
        raise StoreError(f"an index entry of {where} has {len(text)} bytes of unknown fields")
    return text


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name occurs twice in one object")
    return found


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not JSON")
