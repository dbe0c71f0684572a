"""Kernels: staged by workers (``staging``), published by the daemon, found by key, checked by digest.

Publishing order: stage -> manifest -> fsync the tree -> one rename -> fsync the parent -> catalog.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections import OrderedDict
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from npgxd.errors import StoreError
from npgxd.store.catalog import Catalog, KernelRow
from npgxd.store.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, KernelManifest, parse_manifest
from npgxd.store.plain import digest_plain, read_plain
from npgxd.store.uses import Uses
from npgxd.store.waits import at_once
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from npgxd.store.state import StateDirectory
    from npgxd.store.waits import Waits

log = logging.getLogger(__name__)

RECENT = 2048
"""Manifests kept in memory."""
_INDEPENDENT = frozenset({"id", "simplified_keys"})
"""What is computed from a manifest, and not from its ``making``."""
SHELF_DIGITS = 2
"""A kernel's directory lies in one named by the first digits of its id."""


class Staged(NamedTuple):
    """A kernel that is ready to be shown: where it lies in staging, and its manifest as it is there."""

    path: Path
    manifest: KernelManifest


@dataclass(frozen=True, slots=True)
class Found:
    """What there is under the keys that were asked for.

    ``unread``: keys whose kernel may be as good as ever, but cannot be looked at now, for want of descriptors or memory.
    """

    kernels: Mapping[str, KernelManifest]
    unread: Mapping[str, StoreError]


@dataclass(frozen=True, slots=True)
class Reconciled:
    """What ``reconcile`` found: kernels that the catalog did not know, kernels that only it knew, and directories that are none."""

    adopted: int
    forgotten: int
    problems: tuple[str, ...]


class KernelStore:
    """All kernels of a state directory. ``find`` answers from the catalog; bytes are checked when a kernel is first served."""

    def __init__(self, state: StateDirectory, catalog: Catalog) -> None:
        self._state = state
        self._catalog = catalog
        self.uses = Uses(catalog)
        self._root = os.fspath(state.kernels)
        self._sequence = 0
        """The highest that was given to a kernel, published or not."""
        self._verified: set[str] = set()
        """Served before in this life: their bytes were compared with their manifests."""
        self._shelves: set[Path] = set()
        """Those that were made, or given their mode, in this life."""
        self._recent: OrderedDict[str, KernelManifest] = OrderedDict()
        self.arriving: set[str] = set()
        """Kernels that are under their names, and are listed as soon as those are on the disk."""
        self.damaged: set[str] = set()
        """Kernels that were set aside in this life: views that link their files are not to be trusted either."""

    def directory(self, kernel: str) -> Path:
        """Where a kernel lies."""
        return self._state.kernels / kernel[:SHELF_DIGITS] / kernel

    def count(self) -> int:
        """How many kernels there are."""
        return self._catalog.kernel_count()

    def publish(self, staged: Iterable[Path]) -> list[KernelManifest]:
        """Make staged kernels visible and findable, each by one rename; for its key, the last one published answers.

        A kernel that is there already, byte for byte, keeps its files; only how it was made is told anew in its manifest.
        """
        ready = [self.number(path) for path in staged]
        self.make_durable(ready)
        return at_once(self.showing(ready))

    def number(self, staged: Path) -> Staged:
        """The first act of ``publish``: a staged kernel is given its place in the order."""
        self._sequence = max(self._catalog.next_sequence(), self._sequence + 1)
        return Staged(staged, numbered(parse_manifest(read_plain(staged / MANIFEST_NAME, MAX_MANIFEST_BYTES)), self._sequence))

    def make_durable(self, staged: Collection[Staged]) -> None:
        """The second act: all of them are on the disk when this returns, with their places, though under no name that anybody looks for.

        It touches nothing but the disk: any thread may do it.
        """
        for path, manifest in staged:  # all are on their way there before the first is waited for
            self._state.disk.rewrite_staged(path / MANIFEST_NAME, manifest.to_json())
        for path, _ in staged:
            self._state.disk.fsync_file(path / MANIFEST_NAME)

    def showing(self, staged: Sequence[Staged]) -> Waits[list[KernelManifest]]:
        """The last act, for several kernels together: visible, findable and durable when it ends.

        While the disk is waited for they are under their names, and answer no key yet.
        """
        ids = {manifest.id for _, manifest in staged}
        self.arriving |= ids
        try:
            yield partial(self._make_names_durable, self._give_names(staged))
            self._catalog.add_kernels([row_of(manifest) for _, manifest in staged])
        finally:
            self.arriving -= ids
        self.uses.published({manifest.id: manifest.origin.fingerprint for _, manifest in staged})
        return [manifest for _, manifest in staged]

    def _give_names(self, staged: Sequence[Staged]) -> set[Path]:
        """Rename each to where it belongs; the directories whose names have changed."""
        disk = self._state.disk
        parents: set[Path] = set()
        for path, manifest in staged:
            final = self.directory(manifest.id)
            if self._make_shelf(final.parent):
                parents.add(self._state.kernels)
            if not disk.publish(path, final, durable=False):
                self.uses.touch([manifest.id])  # it is listed: removal, which may come before its new row, is to let it be
                self._renew(path, manifest)
            parents.add(final.parent)
        return parents

    def _make_names_durable(self, parents: Collection[Path]) -> None:
        for parent in sorted(parents):
            self._state.disk.fsync_directory(parent)

    def _make_shelf(self, shelf: Path) -> bool:
        """Whether the directory of a kernel's directory is new. Asking the file system to make one that is there costs a tenth of all."""
        if shelf in self._shelves and shelf.is_dir():
            return False
        new = self._state.disk.make_directory(shelf, exist_ok=True)
        self._shelves.add(shelf)
        return new

    def reconcile(self) -> Reconciled:
        """Make the catalog list exactly the kernels that are there, after a crash between a rename and its row.

        Only names are compared; a manifest is read where the catalog does not know the kernel.
        """
        listed = self._catalog.all_kernel_ids()
        there = dict(directories(self._state))
        for kernel in listed - there.keys():
            log.warning("kernel %s is gone from the disk; it is compiled again when it is needed", kernel[:16])
            self._catalog.drop_kernel(kernel)
        rows: list[KernelRow] = []
        problems: list[str] = []
        for kernel in sorted(there.keys() - listed):
            row = _read_row(there[kernel])
            if row is None:
                self._state.set_aside(there[kernel], "not a kernel: its manifest cannot be read, or is another kernel's")
                problems.append(f"kernels/{kernel[:SHELF_DIGITS]}/{kernel}")
            else:
                rows.append(row)
        found = there if self._catalog.was_rebuilt else [row.id for row in rows]
        for shelf in sorted({self.directory(kernel).parent for kernel in found}):
            # They were renamed; whether that, and the shelf's mode, reached the disk nobody can tell.
            self._state.disk.make_directory(shelf, exist_ok=True)
            self._state.disk.fsync_directory(shelf)
        self._catalog.add_kernels(sorted(rows, key=lambda row: (row.sequence, row.id)))
        self._reconcile_packages()
        return Reconciled(adopted=len(rows), forgotten=len(listed - there.keys()), problems=tuple(problems))

    def _reconcile_packages(self) -> None:
        """Let the catalog list exactly the run packages that are there and that a kernel came out of; a kernel knows their names."""
        listed = {str(row[0]) for row in self._catalog.read("SELECT digest FROM packages")}
        there = {path.stem: path for path in self._state.packages.iterdir() if path.suffix == ".run"}
        with self._catalog.transaction() as db:
            db.executemany("DELETE FROM packages WHERE digest = ?", ((digest,) for digest in listed - there.keys()))
        for digest in sorted(there.keys() - listed):
            for (kernel,) in self._catalog.read("SELECT id FROM kernels WHERE package = ? LIMIT 1", (digest,)):
                with contextlib.suppress(StoreError):  # it is found out about when the kernel is served
                    name = self.manifest(kernel).making.package_name or f"static_kernel_{digest[:18]}.run"
                    self._catalog.add_package(digest, name, there[digest].lstat().st_size)

    def find(self, key: str) -> KernelManifest | None:
        """The kernel that answers ``key``, verified; None if there is none. StoreError as for ``find_many``."""
        return self.find_many([key]).get(key)

    def find_many(self, keys: Sequence[str]) -> Mapping[str, KernelManifest]:
        """Those of ``keys`` that are present, with their kernels; StoreError if one is there and cannot be looked at now."""
        found = self.look_up(keys)
        for error in found.unread.values():
            raise error
        return found.kernels

    def look_up(self, keys: Sequence[str]) -> Found:
        """Those of ``keys`` that are present, with their kernels. A damaged one is set aside, and is missing from now on.

        One that cannot be looked at for want of means is neither present nor missing: nobody is to compile it again.
        """
        found: dict[str, KernelManifest] = {}
        unread: dict[str, StoreError] = {}
        used: list[str] = []
        asked = keys
        while asked:
            again: list[str] = []
            for key, kernel in self._catalog.kernel_ids(asked).items():
                try:
                    manifest = self._serve(kernel)
                except StoreError as error:
                    if not error.no_means:
                        raise
                    unread[key] = error
                else:
                    if manifest is None:
                        again.append(key)  # the damaged kernel is no longer listed; an older one of the key may be
                        continue
                    found[key] = manifest
                used.append(kernel)
            asked = again
        self.uses.touch(used)
        if unread:
            log.error("%s cannot be read now, and stay: %s", counted(len(unread), "kernel"), next(iter(unread.values())))
        return Found(found, unread)

    def get(self, kernel: str) -> KernelManifest:
        """A kernel by id; StoreError if it is not there any more, or cannot be looked at now.

        One that was found lately is not looked for again.
        """
        manifest = self._recent.get(kernel) or self._serve(kernel)
        if manifest is None:
            raise StoreError(f"kernel {kernel[:16]} is gone or damaged", hint="submit the round again; it is compiled anew")
        return manifest

    def at_hand(self, kernel: str) -> bool:
        """Whether ``get`` gives a kernel without reading anything."""
        return kernel in self._recent

    def manifest(self, kernel: str) -> KernelManifest:
        """A kernel's manifest as it is on the disk; StoreError if it cannot be read, or is another kernel's. Nothing is changed."""
        manifest = parse_manifest(read_plain(self.directory(kernel) / MANIFEST_NAME, MAX_MANIFEST_BYTES))
        if manifest.id != kernel:
            raise StoreError(f"kernel {kernel[:16]} has another kernel's manifest", path=str(self.directory(kernel)))
        return manifest

    def verify(self, kernel: str) -> KernelManifest:
        """Read a kernel and compare every member with its manifest; StoreError says what is wrong."""
        directory = self.directory(kernel)
        manifest = self.manifest(kernel)
        for member in manifest.members:
            digest, size = digest_plain(directory / member.name)
            if (digest, size) != (member.sha256, member.size):
                raise StoreError(
                    f"{member.name} of kernel {kernel[:16]} has other bytes than its manifest says", path=str(directory)
                )
        return manifest

    def adopt(self, kernels: Iterable[str]) -> None:
        """List kernels that are there, and are not listed; StoreError if one cannot be read."""
        self._catalog.add_kernels([row_of(self.manifest(kernel)) for kernel in kernels])

    def forget(self, kernels: Collection[str]) -> None:
        """These kernels answer no key from now on; their directories are the caller's to remove, and are no kernels any more.

        The catalog first: a crash before the directories are gone leaves kernels that are adopted again, never rows without bytes.
        """
        self.uses.forget(kernels)
        for kernel in kernels:
            self._verified.discard(kernel)
            self._recent.pop(kernel, None)

    def condemn(self, kernel: str, error: StoreError) -> None:
        """Quarantine what is left of a damaged kernel with the reason, and forget it, so that it is compiled again when it is needed.

        Raises ``error`` itself where that says nothing of the kernel: it stays.
        """
        if error.no_means:
            raise error
        log.error("kernel %s is damaged and is compiled again when it is needed: %s", kernel[:16], error)
        self._catalog.drop_kernel(kernel)
        self._verified.discard(kernel)
        self._recent.pop(kernel, None)
        self.damaged.add(kernel)
        if os.path.lexists(self.directory(kernel)):
            self._state.set_aside(self.directory(kernel), str(error))

    def recheck(self, kernel: str) -> bool:
        """Whether a kernel still has the bytes of its manifest; one that has not is set aside, and is missing from now on.

        StoreError if that cannot be told now.
        """
        try:
            self.verify(kernel)
        except StoreError as error:
            self.condemn(kernel, error)
            return False
        return True

    def _serve(self, kernel: str) -> KernelManifest | None:
        """A listed kernel; None: it was damaged, and is set aside. StoreError if that cannot be told now."""
        manifest = self._recent.get(kernel)
        try:
            # As text: this is asked for every kernel of every round.
            if manifest is not None and os.path.exists(f"{self._root}/{kernel[:SHELF_DIGITS]}/{kernel}/{MANIFEST_NAME}"):  # noqa: PTH110
                self._recent.move_to_end(kernel)
                return manifest
            if kernel in self._verified:
                manifest = parse_manifest(read_plain(self.directory(kernel) / MANIFEST_NAME, MAX_MANIFEST_BYTES))
            else:
                manifest = self.verify(kernel)
        except StoreError as error:
            self.condemn(kernel, error)
            return None
        self._verified.add(kernel)
        self._recent[kernel] = manifest
        if len(self._recent) > RECENT:
            self._recent.popitem(last=False)
        return manifest

    def _renew(self, staged: Path, manifest: KernelManifest) -> None:
        """The staged kernel is there already: take over its manifest, or all of it where the one that is there is damaged."""
        disk, final = self._state.disk, self.directory(manifest.id)
        try:
            self.verify(manifest.id)
        except StoreError as error:
            self.condemn(manifest.id, error)
            disk.publish(staged, final, durable=False)
        else:
            disk.write_file(final / MANIFEST_NAME, manifest.to_json(), staging=self._state.staging)
            disk.remove_tree(staged)
        self._recent.pop(manifest.id, None)


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
        sequence=manifest.making.sequence,
    )


def numbered(manifest: KernelManifest, sequence: int) -> KernelManifest:
    """The manifest with its place in the order of publication."""
    made = replace(manifest, making=replace(manifest.making, sequence=sequence))
    vars(made).update({name: known for name, known in vars(manifest).items() if name in _INDEPENDENT})
    return made


def directories(state: StateDirectory) -> Iterator[tuple[str, Path]]:
    """Every kernel's id and directory, as the names on the disk say."""
    for shelf in sorted(state.kernels.iterdir()):
        if len(shelf.name) == SHELF_DIGITS and shelf.is_dir() and not shelf.is_symlink():
            yield from ((place.name, place) for place in shelf.iterdir() if place.name.startswith(shelf.name))


def scan(state: StateDirectory) -> Iterator[KernelRow]:
    """Every readable kernel on the disk, for a catalog that has to be made anew."""
    for _, directory in directories(state):
        row = _read_row(directory)
        if row is not None:
            yield row


def _read_row(directory: Path) -> KernelRow | None:
    try:
        manifest = parse_manifest(read_plain(directory / MANIFEST_NAME, MAX_MANIFEST_BYTES))
    except StoreError as error:
        if error.no_means:
            raise
        log.warning("%s is not a kernel: %s", directory, error)
        return None
    if manifest.id != directory.name:
        log.warning("%s is not a kernel: its manifest is another kernel's", directory)
        return None
    return row_of(manifest)
