"""What a run package really holds, by its own index and its kernels' own json; nothing that op_compiler said counts here.

Promise: a kernel that is accepted is a plain file inside the installed tree, has the bytes that its json says, and was compiled
for exactly one record of the job.  Everything else is refused or reported, by name.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from npgxd.errors import CompileError, RecordError, StoreError
from npgxd.store.index import INDEX_NAME, MAX_INDEX_BYTES, PackagedEntry, check_stem, parse_index
from npgxd.store.plain import digest_plain, read_plain
from npgxd.toolchain.record import coarse_trace, trace_of_support_info

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npgxd.compile.job import JobItem, JobSpec

_MAX_KERNEL_JSON = 16 * 1024 * 1024
_MAX_OBJECT = 1024 * 1024 * 1024
_MAX_ENTRIES = 40_000
"""Of one index: two for each record of the largest round."""
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class VerifiedKernel:
    """One index entry with its two files, checked; paths are absolute, ``beneath`` is the tree that they must not leave."""

    entry: PackagedEntry
    object: Path
    description: Path
    beneath: Path
    sha256: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verified kernels of each key (two where op_compiler made d0 and d1), and the keys whose kernels cannot be used."""

    kernels: Mapping[str, tuple[VerifiedKernel, ...]]
    refused: Mapping[str, str]
    notes: tuple[str, ...] = ()


class _Unusable(Exception):
    """One index entry cannot be used, and why."""


@dataclass(frozen=True, slots=True)
class _Looked:
    """One index entry, looked at: whose it is (empty: nobody can tell), and what is wrong with it."""

    op_type: str
    key: str
    kernel: VerifiedKernel | None
    problem: str


def verify(ai_core: Path, spec: JobSpec) -> Verdict:
    """Check the package that was installed into ``ai_core``; CompileError if it is not one package with one index."""
    package = _only_package(ai_core, spec.toolchain.family)
    index = PurePosixPath(package, "config", spec.toolchain.family, INDEX_NAME)
    try:
        entries = parse_index(read_plain(ai_core / index, MAX_INDEX_BYTES, beneath=ai_core))
    except StoreError as error:
        raise CompileError(f"the run package's index cannot be used: {error.message}", transient=True) from error
    if len(entries) > _MAX_ENTRIES:
        raise CompileError(f"the run package's index has {len(entries)} kernels, more than any round", transient=True)
    owners = _Owners(spec.items, both=not spec.flags.follow_op_params_jit)
    return _verdict([_look(ai_core, entry, owners) for entry in entries], owners)


class _Owners:
    """Which record of the job a kernel was compiled for, by the trace that its json gives.

    Where that finds none, the coarse trace is tried, for a compiler that tells less; and, where op_compiler does not follow a
    record's own flag but makes both, the trace with the other ``deterministic``.
    """

    def __init__(self, items: Sequence[JobItem], *, both: bool) -> None:
        self.items = items
        self._both = both
        self._full: dict[str, list[JobItem]] = defaultdict(list)
        self._coarse: dict[str, list[JobItem]] = defaultdict(list)
        for item in items:
            self._full[item.trace].append(item)
            self._coarse[coarse_trace(item.trace)].append(item)

    def of(self, op_type: str, described: dict[str, Any], kernel: str) -> JobItem:
        """The one item; _Unusable if no item, or more than one, could be meant."""
        try:
            traces = [trace_of_support_info(op_type, described)]
            if self._both:
                traces += [trace_of_support_info(op_type, _with_deterministic(described, word)) for word in ("false", "true")]
        except RecordError as error:
            raise _Unusable(f"{kernel}: {error.message}") from error
        looked = [self._full.get(trace, []) for trace in traces] + [self._coarse.get(coarse_trace(trace), []) for trace in traces]
        found = next((items for items in looked if items), [])
        if len(found) != 1:
            raise _Unusable(f"{kernel} was compiled for {'none' if not found else 'more than one'} of the records")
        return found[0]


def _only_package(ai_core: Path, family: str) -> str:
    """The name of the directory of the one package that is installed in a fresh root."""
    names = sorted(entry.name for entry in os.scandir(ai_core) if entry.is_dir(follow_symlinks=False) and entry.name != "config")
    indexed = [name for name in names if (ai_core / name / "config" / family / INDEX_NAME).is_file()]
    if len(indexed) == 1:
        return indexed[0]
    if indexed:
        raise CompileError(f"the run package installed {len(indexed)} packages: {_listed(indexed)}", transient=True)
    seen = f"it installed {_listed(names)}" if names else "it installed no package directory"
    raise CompileError(f"the run package has no index for {family} ({seen})", transient=True)


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - _MAX_LISTED} more" if len(names) > _MAX_LISTED else ""
    return ", ".join(names[:_MAX_LISTED]) + more


def _look(ai_core: Path, entry: PackagedEntry, owners: _Owners) -> _Looked:
    """Read one entry's files. Whose it is is found out first, so that a damaged kernel can be told to who waits for it."""
    name = PurePosixPath(entry.bin_path)
    owner: JobItem | None = None
    try:
        described = _description(ai_core, name)
        owner = owners.of(entry.op_type, described, name.name)
        digest = _check_bytes(ai_core, name, described)
    except _Unusable as problem:
        return _Looked(entry.op_type, owner.key if owner else "", None, str(problem))
    kernel = VerifiedKernel(entry, ai_core / name, ai_core / name.with_suffix(".json"), ai_core, digest)
    return _Looked(entry.op_type, owner.key, kernel, "")


def _description(ai_core: Path, name: PurePosixPath) -> dict[str, Any]:
    """A kernel's own json."""
    if name.is_absolute() or ".." in name.parts or name.suffix != ".o":
        raise _Unusable(f"the index names {str(name)[:200]!r}, which is no path of a kernel")
    path = name.with_suffix(".json")
    try:
        described = json.loads(read_plain(ai_core / path, _MAX_KERNEL_JSON, beneath=ai_core))
    except (StoreError, ValueError, RecursionError) as error:
        raise _Unusable(f"{path} cannot be used: {_brief(error)}") from error
    if not isinstance(described, dict):
        raise _Unusable(f"{path} is not a JSON object")
    return described


def _check_bytes(ai_core: Path, name: PurePosixPath, described: Mapping[str, Any]) -> str:
    """The digest of the object, which is the one that its json tells."""
    try:
        check_stem(name.stem)
        digest, _ = digest_plain(ai_core / name, beneath=ai_core, most=_MAX_OBJECT)
    except StoreError as error:
        raise _Unusable(f"{name.name} cannot be used: {_brief(error)}") from error
    if described.get("sha256") != digest:
        raise _Unusable(f"{name.name} has other bytes than its json says (sha256)")
    return digest


def _verdict(looked: Sequence[_Looked], owners: _Owners) -> Verdict:
    kernels: dict[str, list[VerifiedKernel]] = defaultdict(list)
    refused: dict[str, str] = {}
    for one in looked:
        if one.kernel is not None and one.kernel.object.stem in {known.object.stem for known in kernels[one.key]}:
            refused.setdefault(one.key, f"the index names {one.kernel.object.name} twice")
        elif one.kernel is not None:
            kernels[one.key].append(one.kernel)
        elif one.key:
            refused.setdefault(one.key, one.problem)
    unowned = [one for one in looked if not one.key]
    for one in unowned:
        # Nobody can tell whose a kernel with an unreadable json is, unless one key of its op type alone is without a kernel.
        missing = [item for item in owners.items if item.op_type == one.op_type and item.key not in kernels]
        if len(missing) == 1:
            refused.setdefault(missing[0].key, one.problem)
    accepted = {key: tuple(found) for key, found in kernels.items() if key not in refused}
    return Verdict(accepted, refused, tuple(one.problem for one in unowned))


def _with_deterministic(described: dict[str, Any], word: str) -> dict[str, Any]:
    """As if the kernel had been compiled with the other flag; its record asked for one of the two."""
    info = described.get("supportInfo")
    return {**described, "supportInfo": {**info, "deterministic": word}} if isinstance(info, dict) else described


def _brief(error: Exception) -> str:
    return error.message if isinstance(error, StoreError) else str(error)
