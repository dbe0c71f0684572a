"""Which of the wanted kernels get an entry in a shared root's total index: a pure decision over what others have there.

Nobody's entry is ever overwritten.  A simplified key that another installer has with the same bytes is served by it; with other
bytes, our kernel is shadowed, and named.  Between our own, a newer kernel of one record takes the older one's place, and of
different records the one that is there stays: a process that loads the root twice keeps what it loaded first.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from npgxd.oplib.shared_root_index import TotalEntry, TotalIndex, entry_text

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable

    from npgxd.store.manifest import KernelManifest, ManifestEntry

ID_DIGITS: Final = 16


def short(kernel: str) -> str:
    """The digits of a kernel's id that name its directory."""
    return kernel[:ID_DIGITS]


def directory_of(kernel: str) -> str:
    """Where a kernel lies, relative to ``ai_core/``."""
    return f"npgxd_{short(kernel)}"


def place_of(manifest: KernelManifest) -> str:
    """The directory of a kernel's files, relative to ``ai_core/``: ``npgxd_<id>/<family>/<OpType>``, as in a package."""
    return f"{directory_of(manifest.id)}/{manifest.origin.family}/{manifest.origin.op_type}"


@dataclass(slots=True)
class Choice:
    """What the index shall hold of ours, and why something wanted is not in it."""

    entries: dict[str, list[str]] = field(default_factory=dict)
    """op type -> our entries as text."""
    installed: dict[str, KernelManifest] = field(default_factory=dict)
    """id -> kernels of which at least one entry is ours."""
    texts: dict[str, frozenset[str]] = field(default_factory=dict)
    """id -> the texts of its entries in the index."""
    borrowed: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """id -> the objects (relative to ``ai_core/``) of others that serve it with equal bytes."""
    shadowed: dict[str, str] = field(default_factory=dict)
    """id -> whose kernel has its place."""
    occupants: dict[tuple[str, str], str] = field(default_factory=dict)
    """(op type, simplified key) -> our kernel's id, or the path of another's object, for all keys of the wanted kernels."""


def choose(
    wanted: Iterable[KernelManifest], index: TotalIndex, same_bytes: Callable[[TotalEntry, KernelManifest, ManifestEntry], bool]
) -> Choice:
    """Decide for all of ``wanted`` at once; ``same_bytes`` compares another's kernel with one entry of ours."""
    choice = Choice()
    others = index.others()
    for manifest, newer in _in_order(wanted, index.ours().keys()):
        if newer is not None:
            choice.shadowed[manifest.id] = f"a newer kernel of the same record ({short(newer)})"
            continue
        for entry in manifest.entries:
            _decide(choice, others, manifest, entry, same_bytes)
    return choice


def _decide(
    choice: Choice,
    others: dict[tuple[str, str], TotalEntry],
    manifest: KernelManifest,
    entry: ManifestEntry,
    same_bytes: Callable[[TotalEntry, KernelManifest, ManifestEntry], bool],
) -> None:
    op_type = manifest.origin.op_type
    names = [(op_type, name) for name in entry.facts.simplified_keys]
    foreign = {others[name].bin_path: others[name] for name in names if name in others}
    mine = {choice.occupants[name] for name in names if name in choice.occupants} - foreign.keys()
    for name in names:
        if name in others:
            choice.occupants[name] = others[name].bin_path
    if foreign:
        if not mine and all(name in others for name in names) and all(same_bytes(e, manifest, entry) for e in foreign.values()):
            choice.borrowed[manifest.id] = (*choice.borrowed.get(manifest.id, ()), *foreign)
        else:
            choice.shadowed[manifest.id] = f"{next(iter(foreign)).partition('/')[0]}, which another installer put there"
        return
    if mine:
        if not all(_equal(choice.installed[kernel], manifest, entry) for kernel in mine):
            choice.shadowed[manifest.id] = f"the kernel of another record ({short(next(iter(mine)))})"
        return
    text = entry_text(entry.facts, f"{place_of(manifest)}/{entry.stem}.o")
    choice.occupants.update(dict.fromkeys(names, manifest.id))
    choice.entries.setdefault(op_type, []).append(text)
    choice.installed[manifest.id] = manifest
    choice.texts[manifest.id] = choice.texts.get(manifest.id, frozenset()) | {text}


def _in_order(wanted: Iterable[KernelManifest], present: Collection[str]) -> list[tuple[KernelManifest, str | None]]:
    """The kernels in the order in which they get their keys, each with the newer one of its record, if there is one."""
    unique = {manifest.id: manifest for manifest in wanted}
    newest: dict[tuple[object, ...], KernelManifest] = {}
    for manifest in unique.values():
        line = _lineage(manifest)
        if line not in newest or _age(newest[line]) < _age(manifest):
            newest[line] = manifest
    ordered = sorted(unique.values(), key=lambda m: (short(m.id) not in present, m.key, m.id))
    chosen = [(m, None if newest[_lineage(m)] is m else newest[_lineage(m)].id) for m in ordered]
    return sorted(chosen, key=lambda pair: pair[1] is not None)


def _lineage(manifest: KernelManifest) -> tuple[object, ...]:
    """What two compiles of one call have in common."""
    origin = manifest.origin
    return (origin.op_type, origin.record_digest, origin.soc, origin.options, origin.flags)


def _age(manifest: KernelManifest) -> tuple[int, str]:
    return (manifest.making.sequence, manifest.id)


def _equal(present: KernelManifest, manifest: KernelManifest, entry: ManifestEntry) -> bool:
    """Whether ``present`` has an entry that the runtime could not tell from ``entry``."""
    return any(e.facts == entry.facts and member_digests(present, e) == member_digests(manifest, entry) for e in present.entries)


def member_digests(manifest: KernelManifest, entry: ManifestEntry) -> tuple[str, str]:
    """sha256 of an entry's object and of its json."""
    digests = {member.name: member.sha256 for member in manifest.members}
    return digests[f"{entry.stem}.o"], digests[f"{entry.stem}.json"]
