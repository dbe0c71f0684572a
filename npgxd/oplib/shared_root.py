"""The default root of a CANN before 9.1.0, which every process of the node reads and other installers rewrite in place.

Promise: against this project's own acts and crashes a reader sees, at every instant, an index whose entries of ours name files that are
there whole; what others have in the root stays as it is; and what they do to ours is noticed by ``look`` and mended by ``sync``, from the
store, without compiling.  Kernels come in first and the index is replaced last, by one rename; entries leave first and files last.

A root is known by its device, inode and a generation marker, never by how it is spelled.  One npgxd at a time works in it.
``config.ini`` is neither read nor written: only the vendor's installer needs it.  Methods may take seconds: not for a loop, and not
for two threads at once; ``check`` takes microseconds, and so does ``intact`` for each kernel.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.oplib.shared_root_choice import Choice, choose, directory_of, member_digests, short
from npgxd.oplib.shared_root_files import KernelFiles, Signature, signature
from npgxd.oplib.shared_root_index import OURS, TotalEntry, TotalIndex, canonical
from npgxd.oplib.shared_root_locks import RootLock, vendor_lock
from npgxd.oplib.shared_root_past import Past
from npgxd.oplib.shared_root_place import AI_CORE, check_root, explained
from npgxd.oplib.shared_root_total import TotalFile
from npgxd.store.disk import DIRECTORY_MODE, DISK, TEMPORARY_PREFIX, Disk
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from npgxd.oplib.shared_root_past import Key
    from npgxd.store.manifest import KernelManifest, ManifestEntry

log = logging.getLogger(__name__)

MARKER: Final = ".npgxd.root"
"""``ai_core/.npgxd.root``: which generation of the root this is, as 32 hexadecimal digits; it goes when the tree does."""
VENDOR_LOCK_S: Final = 10.0
TORN_S: Final = 2.0
"""How long somebody else's write of the index may take."""
_MARKER_TEXT: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Synced:
    """What the root holds of what was wanted. ``left``: our kernels (first digits of ids) whose entries went just now."""

    marker: str
    installed: frozenset[str] = frozenset()
    shadowed: Mapping[str, str] | None = None
    failed: Mapping[str, str] | None = None
    left: frozenset[str] = frozenset()
    brought: frozenset[str] = frozenset()
    """Kernels of which files had to be written."""


@dataclass(frozen=True, slots=True)
class Look:
    """What somebody did to the root: whether ``sync`` has something to do, and the kernels that lost files, or entries."""

    changed: bool = False
    recreated: bool = False
    files: frozenset[str] = frozenset()
    entries: frozenset[str] = frozenset()


class SharedRoot:
    """One shared root. ``source`` says where the store has a kernel."""

    def __init__(
        self,
        root: Path,
        family: str,
        source: Callable[[str], Path],
        *,
        disk: Disk = DISK,
        past: Past | None = None,
        vendor_lock_s: float = VENDOR_LOCK_S,
        torn_s: float = TORN_S,
    ) -> None:
        self.root = root
        self.real = Path(os.path.realpath(root))
        self.family = family
        self._disk = disk
        self._past = past if past is not None else Past()
        self._past.of_root(str(self.real))
        self._vendor_lock_s = vendor_lock_s
        self._ai_core = self.real / AI_CORE
        self._lock = RootLock(self._ai_core)
        self._files = KernelFiles(self._ai_core, source, disk)
        self._total = TotalFile(self._ai_core / "config" / family, disk, torn_s)
        self._choice = Choice()
        self._leaving: dict[str, KernelManifest] = {}
        """Kernels that have no entry any more, and files for those that loaded them."""
        self._identity: tuple[int, int] | None = None
        self._marker_seen: Signature | None = None
        self._marker = ""

    # ---- cheap -------------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is a tree of static kernels in the root, whoever made it."""
        return self._ai_core.is_dir()

    def check(self) -> None:
        """LibraryError or NotWritable if nothing can be installed here."""
        check_root(self.root, self.family)

    def intact(self, kernels: Iterable[str] = ()) -> bool:
        """Whether marker and index are as the last ``sync`` left them, and the files of these kernels, by their stats."""
        try:
            return bool(self._marker) and self._same_root() and not self._total.changed() and self._files.untouched(kernels)
        except StoreError:  # for want of means: whoever syncs is told
            return False

    def earlier(self, manifest: KernelManifest, since: float) -> str:
        """What a process that started at ``since`` (seconds since boot) may have loaded instead of this kernel; "" if nothing.

        Processes load the root by themselves, at their first operator: so what had a key then may have it there for good.
        """
        keys = ((manifest.origin.op_type, key) for key in manifest.simplified_keys)
        return next(filter(None, (self._past.earlier(key, since, but=short(manifest.id)) for key in keys)), "")

    # ---- acts --------------------------------------------------------------------------------------------------------

    def sync(self, wanted: Iterable[KernelManifest], outdated: Iterable[KernelManifest] = ()) -> Synced:
        """Make the root hold these kernels, each as far as others' leave it room, and no entry of ours besides.

        What is there already costs no write.  Files of kernels that are no longer wanted stay, for processes that loaded them; those of
        ``outdated`` kernels are needed as such, and are put back if they are not there.
        LibraryError: nothing, or only some kernels' files, could be brought in; the index is as it was, and so is every process.
        """
        unique = {manifest.id: manifest for manifest in wanted}
        with self._explained():
            self._prepare()
            self._leaving.update((manifest.id, manifest) for manifest in outdated if manifest.id not in unique)
            with vendor_lock(self._ai_core, self._vendor_lock_s):
                return self._sync(unique)

    def present(self) -> frozenset[str]:
        """First digits of the ids of our kernels that the index names, from an earlier life; takes the lock where there is a tree."""
        with self._explained():
            self.check()
            if not self._ai_core.is_dir():
                return frozenset()
            self._own()
            return frozenset(self._total.read().ours())

    def look(self) -> Look:
        """What changed since the last ``sync``; only what has other stats than then is read."""
        with self._explained():
            if not self._marker:
                return Look(changed=True)
            if not self._same_root():
                entries = frozenset((*self._choice.installed, *self._choice.borrowed))
                return Look(changed=True, recreated=True, files=entries | self._leaving.keys(), entries=entries)
            files = frozenset(self._files.damaged({**self._leaving, **self._choice.installed}))
            if not self._total.changed():
                return Look(changed=bool(files), files=files)
            present = {name: {canonical(e.raw) for e in entries} for name, entries in self._total.read().ours().items()}
            entries = frozenset(
                kernel for kernel, texts in self._choice.texts.items() if not texts <= present.get(short(kernel), set())
            )
            return Look(changed=True, files=files, entries=entries)

    def leftovers(self) -> frozenset[str]:
        """First digits of the ids of our kernels that have files here and no entry."""
        with self._explained():
            if not self._same_root():
                return frozenset()
            return self._unnamed(self._total.read())

    def remove(self, kernels: Iterable[str]) -> frozenset[str]:
        """Remove the files of kernels (first digits of their ids) that no entry names; those that are gone now.

        The caller knows that no process that could have loaded them runs any more.
        """
        gone: set[str] = set()
        with self._explained():
            self._prepare()
            for kernel in frozenset(kernels) & self._unnamed(self._total.read_durable()):
                away = self._ai_core / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
                self._disk.move(self._ai_core / directory_of(kernel), away, durable=False)
                self._disk.remove_tree(away)
                gone.add(kernel)
            if gone:
                self._disk.fsync_directory(self._ai_core)
        self._leaving = {kernel: manifest for kernel, manifest in self._leaving.items() if short(kernel) not in gone}
        self._files.forget(but={*self._choice.installed, *self._leaving})
        return frozenset(gone)

    def close(self) -> None:
        """Let another npgxd have the root; what is in it stays."""
        self._lock.release()
        self._total.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except StoreError as error:
            raise explained(self.root, error.data.get("errno"), f"the op library: {error.message}", error.hint) from error
        except OSError as error:
            raise explained(self.root, error.errno, f"the op library {self.root}: {error}", "see the daemon's log") from error

    def _prepare(self) -> None:
        """The directories, our lock, the marker; and what a crash of ours left half-made goes."""
        self.check()
        if not self._ai_core.parent.is_dir():
            self._plant()
        for path in (self._ai_core.parent, self._ai_core, self._total.path.parent.parent, self._total.path.parent):
            if not path.is_dir():
                self._disk.make_directory(path, DIRECTORY_MODE, exist_ok=True)
                self._disk.fsync_directory(path.parent)
        self._own()
        if not self._same_root():
            self._begin()

    def _plant(self) -> None:
        """A tree with an empty index, by one rename: a process that finds a tree finds an index in it."""
        staged = self.real / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        path = staged
        self._disk.make_directory(path)
        for part in self._total.path.parent.relative_to(self._ai_core.parent).parts:
            path /= part
            self._disk.make_directory(path)
        self._disk.write_file(path / self._total.path.name, TotalIndex().text(), durable=False)
        self._disk.fsync_tree(staged)
        if not self._disk.publish(staged, self._ai_core.parent):  # somebody else was faster
            self._disk.remove_tree(staged)

    def _own(self) -> None:
        """Our lock; under it goes what an act of ours left half-made, and what a life before left done is forced to the disk."""
        fresh = self._lock.take()
        config = self._total.path.parent
        for place in (self.real, self._ai_core, config):
            for left in place.glob(f"{TEMPORARY_PREFIX}*"):
                self._disk.remove_tree(left)
        for place in (config, config.parent, self._ai_core, self._ai_core.parent, self.real) if fresh else ():
            if place.is_dir() and os.access(place, os.R_OK):
                self._disk.fsync_directory(place)

    def _begin(self) -> None:
        """A root that is not the one of before: nothing that was known of it holds."""
        path = self._ai_core / MARKER
        marker = self._read_marker()
        if not marker:
            marker = secrets.token_hex(16)
            self._disk.write_file(path, f"{marker}\n".encode())
        if self._marker and marker != self._marker:
            log.warning("the op library %s was made anew: everything that is needed is installed again", self.root)
        facts = self.real.stat()
        self._identity, self._marker, self._marker_seen = (facts.st_dev, facts.st_ino), marker, signature(path)
        self._files.forget()
        self._choice = Choice()
        self._total.seen = None

    def _same_root(self) -> bool:
        try:
            facts = self.real.stat()
        except OSError:
            return False
        if not self._marker or (facts.st_dev, facts.st_ino) != self._identity:
            return False
        seen = signature(self._ai_core / MARKER)
        if seen is None or seen != self._marker_seen:
            if self._read_marker() != self._marker:
                return False
            self._marker_seen = seen
        return True

    def _read_marker(self) -> str:
        try:
            text = read_plain(self._ai_core / MARKER, 100).decode(errors="replace").strip()
        except StoreError as error:
            if error.no_means:
                raise
            return ""
        return text if _MARKER_TEXT.fullmatch(text) else ""

    def _sync(self, wanted: Mapping[str, KernelManifest]) -> Synced:
        failed: dict[str, str] = {}
        state: dict[str, Choice] = {}
        found: dict[str, TotalIndex] = {}

        def decide(index: TotalIndex) -> bytes | None:
            found["index"] = index
            while True:
                choice = choose((m for m in wanted.values() if m.id not in failed), index, self._same_bytes)
                newly = self._files.place(choice.installed.values())
                if not newly:
                    break
                failed.update(newly)
            state["choice"] = choice
            have = {canonical(e.raw) for entries in index.ours().values() for e in entries}
            want = {text for texts in choice.texts.values() for text in texts}
            count = sum(1 for entry in index.entries() if entry.ours)
            if have == want and count == len(want):
                return None
            self._past.replacing(dict(_changes(index, choice)))
            return index.with_ours(choice.entries)

        self._files.brought.clear()
        self._keep_leaving(wanted)
        try:
            self._total.replace(decide)
        except BaseException:
            self._past.replaced(None)
            raise
        self._past.replaced(self._total.replaced_at)
        choice, index = state["choice"], found["index"]
        left = frozenset(index.ours()) - frozenset(map(short, choice.installed))
        gone = {**self._leaving, **self._choice.installed}
        self._leaving = {kernel: manifest for kernel, manifest in gone.items() if kernel not in choice.installed}
        self._choice = choice
        self._files.forget(but={*choice.installed, *self._leaving})
        self._files.borrow(choice.borrowed)
        covered = frozenset(wanted) - failed.keys() - choice.shadowed.keys()
        return Synced(self._marker, covered, choice.shadowed, failed, left, frozenset(self._files.brought))

    def _keep_leaving(self, wanted: Mapping[str, KernelManifest]) -> None:
        """The files of kernels that processes may have loaded are mended, too; one that the store has no more is not looked after."""
        leaving = [manifest for kernel, manifest in self._leaving.items() if kernel not in wanted]
        for kernel in self._files.place(leaving):
            del self._leaving[kernel]

    def _unnamed(self, index: TotalIndex) -> frozenset[str]:
        """First digits of the ids of our kernels that have files here, and no entry in ``index``."""
        named = set(index.ours()) | {short(kernel) for kernel in self._choice.installed}
        found = (OURS.fullmatch(name) for name in os.listdir(self._ai_core))  # noqa: PTH208 -- names alone
        return frozenset(match[1] for match in found if match) - named

    def _same_bytes(self, other: TotalEntry, manifest: KernelManifest, entry: ManifestEntry) -> bool:
        """Whether another installer's kernel is what ours would be, byte for byte."""
        if other.facts != entry.facts or not other.bin_path.endswith(".o"):
            return False
        return self._files.others(other.bin_path) == member_digests(manifest, entry)


def _changes(index: TotalIndex, choice: Choice) -> Iterator[tuple[Key, str]]:
    """Keys that will have another kernel than they have in ``index``, or none, and what has them there."""
    for entry in index.entries():
        before = entry.ours or entry.bin_path
        for key in entry.keys:
            after = choice.occupants.get((entry.op_type, key), "" if entry.ours else before)
            if (short(after) if "/" not in after else after) != before:
                yield (entry.op_type, key), before
