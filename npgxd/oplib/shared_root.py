"""The default root of a CANN before 9.1.0, which every process of the node reads and other installers rewrite in place.

Promise: against this project's own acts and crashes a reader sees, at every instant, an index whose entries of ours name files that are
there whole; what others have in the root stays as it is; and what they do to ours is noticed by ``look`` and mended by ``sync``, from the
store, without compiling.  Kernels come in first and the index is replaced last, by one rename; entries leave first and files last.

A root is known by its device, inode and a generation marker, never by how it is spelled.  One npgxd at a time works in it.
``config.ini`` is neither read nor written: only the vendor's installer needs it.  Methods may take seconds: not for a loop, and not
for two threads at once; ``check`` and ``intact`` take microseconds.
"""

from __future__ import annotations

import logging
import os
import re
import secrets
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.oplib.shared_root_choice import Choice, choose, directory_of, member_digests, short
from npgxd.oplib.shared_root_files import KernelFiles, Signature, signature
from npgxd.oplib.shared_root_index import OURS, TotalEntry, TotalIndex, canonical
from npgxd.oplib.shared_root_locks import RootLock, vendor_lock
from npgxd.oplib.shared_root_place import AI_CORE, LibraryError, check_root
from npgxd.oplib.shared_root_total import TotalFile
from npgxd.store.disk import DIRECTORY_MODE, DISK, TEMPORARY_PREFIX, Disk
from npgxd.store.plain import digest_plain, read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

    from npgxd.store.manifest import KernelManifest, ManifestEntry

log = logging.getLogger(__name__)

MARKER: Final = ".npgxd.root"
"""``ai_core/.npgxd.root``: which generation of the root this is, as 32 hexadecimal digits; it goes when the tree does."""
VENDOR_LOCK_S: Final = 10.0
TORN_S: Final = 2.0
"""How long somebody else's write of the index may take."""
_REMEMBERED: Final = 50_000
_MARKER_TEXT: Final = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class Synced:
    """What the root holds of what was wanted. ``left``: our kernels (first digits of ids) whose entries went just now."""

    marker: str
    installed: frozenset[str] = frozenset()
    shadowed: Mapping[str, str] | None = None
    failed: Mapping[str, str] | None = None
    left: frozenset[str] = frozenset()


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
        vendor_lock_s: float = VENDOR_LOCK_S,
        torn_s: float = TORN_S,
    ) -> None:
        self.root = root
        self.family = family
        self._disk = disk
        self._vendor_lock_s = vendor_lock_s
        self._ai_core = root / AI_CORE
        self._lock = RootLock(self._ai_core)
        self._files = KernelFiles(self._ai_core, source, disk)
        self._total = TotalFile(self._ai_core / "config" / family, disk, torn_s)
        self._choice = Choice()
        self._identity: tuple[int, int] | None = None
        self._marker_seen: Signature | None = None
        self._marker = ""
        self._before: dict[tuple[str, str], tuple[str, float]] = {}
        """(op type, simplified key) -> what had it before (id or path), and until when, in seconds since boot, as processes' starts are."""

    # ---- cheap -------------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """Whether there is a tree of static kernels in the root, whoever made it."""
        return self._ai_core.is_dir()

    def check(self) -> None:
        """LibraryError or NotWritable if nothing can be installed here."""
        check_root(self.root, self.family)

    def intact(self) -> bool:
        """Whether marker and index are as the last ``sync`` left them. The kernels' files are not looked at."""
        return bool(self._marker) and self._same_root() and not self._total.changed()

    def earlier(self, manifest: KernelManifest, since: float) -> str:
        """What a process that started at ``since`` (seconds since boot) may have loaded instead of this kernel; "" if nothing.

        Processes load the root by themselves, at their first operator: so what had a key then may have it there for good.
        """
        for entry in manifest.entries:
            for key in entry.facts.simplified_keys:
                occupant, until = self._before.get((manifest.origin.op_type, key), ("", 0.0))
                if occupant and occupant != short(manifest.id) and until >= since:
                    return occupant
        return ""

    # ---- acts --------------------------------------------------------------------------------------------------------

    def sync(self, wanted: Iterable[KernelManifest]) -> Synced:
        """Make the root hold these kernels, each as far as others' leave it room, and no entry of ours besides.

        What is there already costs no write.  Files of kernels that are no longer wanted stay, for processes that loaded them.
        LibraryError: nothing, or only some kernels' files, could be brought in; the index is as it was, and so is every process.
        """
        unique = {manifest.id: manifest for manifest in wanted}
        with self._explained():
            self._prepare()
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
                everything = frozenset((*self._choice.installed, *self._choice.borrowed))
                return Look(changed=True, recreated=True, files=everything, entries=everything)
            files = frozenset(self._files.damaged(self._choice.installed))
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
            named = set(self._total.read().ours()) | {short(kernel) for kernel in self._choice.installed}
            found = (OURS.fullmatch(name) for name in os.listdir(self._ai_core))  # noqa: PTH208 -- names alone
            return frozenset(match[1] for match in found if match) - named

    def remove(self, kernels: Iterable[str]) -> frozenset[str]:
        """Remove the files of kernels (first digits of their ids) that no entry names; those that are gone now.

        The caller knows that no process that could have loaded them runs any more.
        """
        gone: set[str] = set()
        with self._explained():
            self._prepare()
            for kernel in frozenset(kernels) & self.leftovers():
                away = self._ai_core / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
                self._disk.move(self._ai_core / directory_of(kernel), away, durable=False)
                self._disk.remove_tree(away)
                gone.add(kernel)
            if gone:
                self._disk.fsync_directory(self._ai_core)
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
            raise LibraryError(f"the op library: {error.message}", hint=error.hint) from error
        except OSError as error:
            raise LibraryError(f"the op library {self.root}: {error}", hint="see the daemon's log") from error

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
        staged = self.root / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
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
        """Our lock; with it goes what a crash of ours left half-made."""
        if self._lock.take():
            for place in (self.root, self._ai_core, self._total.path.parent):
                for left in place.glob(f"{TEMPORARY_PREFIX}*"):
                    self._disk.remove_tree(left)

    def _begin(self) -> None:
        """A root that is not the one of before: nothing that was known of it holds."""
        path = self._ai_core / MARKER
        marker = self._read_marker()
        if not marker:
            marker = secrets.token_hex(16)
            self._disk.write_file(path, f"{marker}\n".encode())
        if self._marker and marker != self._marker:
            log.warning("the op library %s was made anew: everything that is needed is installed again", self.root)
        facts = self.root.stat()
        self._identity, self._marker, self._marker_seen = (facts.st_dev, facts.st_ino), marker, signature(path)
        self._files.forget()
        self._choice = Choice()
        self._total.seen = None

    def _same_root(self) -> bool:
        try:
            facts = self.root.stat()
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
        except StoreError:
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
            return index.with_ours(choice.entries)

        self._total.replace(decide)
        choice, index = state["choice"], found["index"]
        present = frozenset(map(short, choice.installed))
        left = frozenset(index.ours()) - present
        self._remember(index, choice)
        self._choice = choice
        self._files.forget(but=choice.installed)
        self._files.borrow(choice.borrowed)
        covered = frozenset(wanted) - failed.keys() - choice.shadowed.keys()
        return Synced(self._marker, covered, choice.shadowed, failed, left)

    def _same_bytes(self, other: TotalEntry, manifest: KernelManifest, entry: ManifestEntry) -> bool:
        """Whether another installer's kernel is what ours would be, byte for byte."""
        if other.facts != entry.facts or not other.bin_path.endswith(".o"):
            return False
        path = self._ai_core / other.bin_path
        try:
            found = digest_plain(path)[0], digest_plain(path.with_suffix(".json"))[0]
        except StoreError:
            return False
        return found == member_digests(manifest, entry)

    def _remember(self, index: TotalIndex, choice: Choice) -> None:
        """Which keys have another kernel from now on than the index had a moment ago, or none."""
        now = self._total.replaced_at
        for entry in index.entries():
            before = entry.ours or entry.bin_path
            for key in entry.keys:
                name = (entry.op_type, key)
                after = choice.occupants.get(name, "" if entry.ours else before)
                if (short(after) if "/" not in after else after) != before:
                    self._before.pop(name, None)
                    self._before[name] = (before, now)
        while len(self._before) > _REMEMBERED:
            del self._before[next(iter(self._before))]
