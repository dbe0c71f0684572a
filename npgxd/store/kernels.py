"""Kernels: staged by workers, published by the daemon, found by key, checked by digest.

Publishing order: stage -> manifest -> fsync the tree -> one rename -> fsync the parent -> catalog.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.errors import StoreError
from npgxd.store.catalog import Catalog, KernelRow
from npgxd.store.disk import DISK, Disk
from npgxd.store.index import check_stem
from npgxd.store.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    KernelManifest,
    Making,
    ManifestEntry,
    Member,
    Origin,
    parse_manifest,
)
from npgxd.store.plain import digest_plain, read_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

RECENT = 2048
"""Manifests kept in memory."""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """One kernel file as a compiler left it: an index entry with its two files, below ``beneath``."""

    entry: ManifestEntry
    object: Path
    description: Path
    beneath: Path


def stage_kernel(target: Path, origin: Origin, making: Making, files: Sequence[MadeFile], *, disk: Disk = DISK) -> KernelManifest:
    """Copy a kernel's files into the new directory ``target`` with their manifest, all of it on the disk on return.

    Only plain files are taken, through no link.  Called in a worker process.
    """
    disk.make_directory(target)
    members: list[Member] = []
    for made in sorted(files, key=lambda made: made.entry.stem):
        stem = check_stem(made.entry.stem)
        for suffix, source in ((".json", made.description), (".o", made.object)):
            digest, size = disk.copy_file(source, target / f"{stem}{suffix}", beneath=made.beneath)
            members.append(Member(f"{stem}{suffix}", digest, size))
    entries = tuple(sorted((made.entry for made in files), key=lambda entry: entry.stem))
    manifest = parse_manifest(KernelManifest(origin, tuple(members), entries, making).to_json())
    disk.write_file(target / MANIFEST_NAME, manifest.to_json())
    disk.fsync_directory(target)
    return manifest


class KernelStore:
    """All kernels of a state directory. ``find`` answers from the catalog; bytes are checked when a kernel is first served."""

    def __init__(self, state: StateDirectory, catalog: Catalog) -> None:
        self._state = state
        self._catalog = catalog
        self._verified: set[str] = set()
        """Served before in this life: their bytes were compared with their manifests."""
        self._recent: OrderedDict[str, KernelManifest] = OrderedDict()

    def directory(self, kernel: str) -> Path:
        """Where a kernel lies."""
        return self._state.kernels / kernel[:2] / kernel

    def count(self) -> int:
        """How many kernels there are."""
        return self._catalog.kernel_count()

    def publish(self, staged: Iterable[Path]) -> list[KernelManifest]:
        """Make staged kernels visible and findable; a kernel that is there already stays as it is."""
        disk = self._state.disk
        published: list[KernelManifest] = []
        parents: set[Path] = set()
        for path in staged:
            manifest = parse_manifest(read_plain(path / MANIFEST_NAME, MAX_MANIFEST_BYTES))
            final = self.directory(manifest.id)
            if disk.make_directory(final.parent, exist_ok=True):
                parents.add(self._state.kernels)
            if not disk.publish(path, final, durable=False):
                disk.remove_tree(path)
            parents.add(final.parent)
            published.append(manifest)
        for parent in sorted(parents):
            disk.fsync_directory(parent)
        self._catalog.add_kernels([row_of(manifest) for manifest in published])
        return published

    def find(self, key: str) -> KernelManifest | None:
        """The kernel that answers ``key``, verified; None if there is none."""
        return self.find_many([key]).get(key)

    def find_many(self, keys: Sequence[str]) -> Mapping[str, KernelManifest]:
        """Those of ``keys`` that are present, with their kernels. A damaged one is set aside, and is missing from now on."""
        found: dict[str, KernelManifest] = {}
        for key, kernel in self._catalog.kernel_ids(keys).items():
            manifest = self._serve(kernel)
            if manifest is not None:
                found[key] = manifest
        return found

    def get(self, kernel: str) -> KernelManifest:
        """A kernel by id; StoreError if it is not there any more."""
        manifest = self._serve(kernel)
        if manifest is None:
            raise StoreError(f"kernel {kernel[:16]} is gone or damaged", hint="submit the round again; it is compiled anew")
        return manifest

    def verify(self, kernel: str) -> KernelManifest:
        """Read a kernel and compare every member with its manifest; StoreError says what is wrong."""
        directory = self.directory(kernel)
        manifest = parse_manifest(read_plain(directory / MANIFEST_NAME, MAX_MANIFEST_BYTES))
        if manifest.id != kernel:
            raise StoreError(f"kernel {kernel[:16]} has another kernel's manifest", path=str(directory))
        for member in manifest.members:
            digest, size = digest_plain(directory / member.name)
            if (digest, size) != (member.sha256, member.size):
                raise StoreError(
                    f"{member.name} of kernel {kernel[:16]} has other bytes than its manifest says", path=str(directory)
                )
        return manifest

    def _serve(self, kernel: str) -> KernelManifest | None:
        manifest = self._recent.get(kernel)
        try:
            if manifest is not None and (self.directory(kernel) / MANIFEST_NAME).exists():
                self._recent.move_to_end(kernel)
                return manifest
            if kernel in self._verified:
                manifest = parse_manifest(read_plain(self.directory(kernel) / MANIFEST_NAME, MAX_MANIFEST_BYTES))
            else:
                manifest = self.verify(kernel)
        except StoreError as error:
            self._set_aside(kernel, error)
            return None
        self._verified.add(kernel)
        self._recent[kernel] = manifest
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        return manifest

    def _set_aside(self, kernel: str, error: StoreError) -> None:
        """Quarantine what is left of a damaged kernel, and forget it, so that it is compiled again."""
        log.error("kernel %s is damaged and is compiled again when it is needed: %s", kernel[:16], error)
        self._catalog.drop_kernel(kernel)
        self._verified.discard(kernel)
        self._recent.pop(kernel, None)
        directory = self.directory(kernel)
        if directory.is_dir() and not directory.is_symlink():
            target = self._state.quarantine / kernel
            self._state.disk.remove_tree(target)
            self._state.disk.move(directory, target)
            self._state.disk.write_file(target / "REASON", f"{error}\n".encode(), 0o600)


def row_of(manifest: KernelManifest) -> KernelRow:
    """A kernel as the catalog lists it."""
    return KernelRow(
        key=manifest.key,
        id=manifest.id,
        op_type=manifest.origin.op_type,
        size=manifest.size,
        package=manifest.package,
        cost_s=manifest.making.cost_s,
        made_at=manifest.making.made_at,
    )


def scan(state: StateDirectory) -> Iterable[KernelRow]:
    """Every readable kernel on the disk, for a catalog that has to be made anew."""
    for shelf in sorted(state.kernels.iterdir()):
        for directory in sorted(shelf.iterdir()) if shelf.is_dir() and not shelf.is_symlink() else ():
            try:
                manifest = parse_manifest(read_plain(directory / MANIFEST_NAME, MAX_MANIFEST_BYTES))
            except StoreError as error:
                log.warning("%s is not a kernel: %s", directory, error)
                continue
            if manifest.id == directory.name:
                yield row_of(manifest)
