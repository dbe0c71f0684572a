"""The files of our kernels in a shared root: copied whole, on the disk before an index names them, and looked after by their stats.

They are copies and not links, so that what somebody does to them in the root does not reach the store that mends them.  Stats are always
taken before the bytes are looked at: what is changed in between is seen at the next look.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.oplib.shared_root_choice import directory_of, place_of
from npgxd.store.disk import TEMPORARY_PREFIX, Disk
from npgxd.store.plain import digest_plain, read_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from npgxd.store.manifest import KernelManifest

log = logging.getLogger(__name__)

MAX_KERNEL_FILE: Final = 1024 * 1024 * 1024
Signature = tuple[int, int, int, int, int, int]


def signature(path: str | Path) -> Signature | None:
    """What changes when a file does: device, inode, size, times and mode; None if there is none."""
    try:
        facts = os.stat(path)  # noqa: PTH116 -- asked for every file at every look
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_size, facts.st_mtime_ns, facts.st_ctime_ns, facts.st_mode


class KernelFiles:
    """Our kernels' directories below one ``ai_core``. ``source`` says where the store has a kernel."""

    def __init__(self, ai_core: Path, source: Callable[[str], Path], disk: Disk) -> None:
        self._ai_core = ai_core
        self._source = source
        self._disk = disk
        self._seen: dict[str, dict[str, Signature | None]] = {}
        """kernel -> its files in the root, as they were when they were whole."""
        self._others: dict[str, tuple[Signature | None, str]] = {}
        """Others' files that may serve us -> their stats and sha256, as they were when they were read."""
        self._borrowed: dict[str, dict[str, Signature | None]] = {}
        self.brought: set[str] = set()
        """Kernels of which files had to be written since this was last emptied."""

    def place(self, manifests: Iterable[KernelManifest]) -> dict[str, str]:
        """Have the files of all these kernels there, whole and on the disk; kernel -> why not, for those that could not be."""
        failed: dict[str, str] = {}
        fresh: list[KernelManifest] = []
        for manifest in manifests:
            if manifest.id in self._seen and not self._changed(self._seen[manifest.id]):
                continue
            if os.path.lexists(self._ai_core / directory_of(manifest.id)):
                self._attempt(manifest, failed, self._mend)
            else:
                fresh.append(manifest)
        if fresh:
            self._bring(fresh, failed)
        return failed

    def others(self, name: str) -> tuple[str, str] | None:
        """sha256 of another installer's object (its path relative to ``ai_core/``) and of its json; None if they cannot be read."""
        found: list[str] = []
        for path in self._both(name):
            seen = signature(path)
            known = self._others.get(path)
            if known is None or seen is None or known[0] != seen:
                try:
                    known = seen, digest_plain(Path(path))[0]
                except StoreError as error:
                    if error.no_means:
                        raise
                    return None
                self._others[path] = known
            found.append(known[1])
        return found[0], found[1]

    def borrow(self, borrowed: Mapping[str, Iterable[str]]) -> None:
        """Look after others' objects that ``others`` has read, too: kernel -> their paths relative to ``ai_core/``."""
        self._borrowed = {
            kernel: {path: self._others[path][0] for name in paths for path in self._both(name)}
            for kernel, paths in borrowed.items()
        }
        used = {path for files in self._borrowed.values() for path in files}
        self._others = {path: known for path, known in self._others.items() if path in used}

    def forget(self, *, but: Iterable[str] = ()) -> None:
        """Look after no kernels but these any more."""
        kept = set(but)
        self._seen = {kernel: files for kernel, files in self._seen.items() if kernel in kept}

    def damaged(self, manifests: Mapping[str, KernelManifest]) -> set[str]:
        """Of the kernels that are looked after, those with a file that is gone or has other bytes; only changed files are read.

        StoreError if that cannot be told now, for want of descriptors or memory: nothing counts as damaged for that.
        """
        found = {kernel for kernel, files in self._borrowed.items() if self._changed(files)}
        for kernel, files in self._seen.items():
            if not self._changed(files):
                continue
            present = self._signatures(manifests[kernel]) if kernel in manifests else {}
            if present and self._is_whole(manifests[kernel]):
                self._seen[kernel] = present
            else:
                found.add(kernel)
        return found

    def untouched(self, kernels: Iterable[str]) -> bool:
        """Whether the files of these kernels, as far as they are looked after, are as they were."""
        looked_after = (files for kernel in kernels for files in (self._seen.get(kernel), self._borrowed.get(kernel)) if files)
        return not any(map(self._changed, looked_after))

    # ---- inside ------------------------------------------------------------------------------------------------------

    @staticmethod
    def _changed(files: Mapping[str, Signature | None]) -> bool:
        return any(seen is None or signature(path) != seen for path, seen in files.items())

    def _both(self, name: str) -> tuple[str, str]:
        """An object and its json, as text."""
        stem = f"{self._ai_core}/{name.removesuffix('.o')}"
        return f"{stem}.o", f"{stem}.json"

    def _signatures(self, manifest: KernelManifest, at: Path | None = None) -> dict[str, Signature | None]:
        """Of the kernel's files at their place; ``at``: below which directory they lie until they are renamed to there."""
        place = f"{self._ai_core}/{place_of(manifest)}"
        now = place if at is None else f"{at}/{place_of(manifest)}"
        return {f"{place}/{member.name}": signature(f"{now}/{member.name}") for member in manifest.members}

    def _is_whole(self, manifest: KernelManifest) -> bool:
        place = self._ai_core / place_of(manifest)
        try:
            return all(digest_plain(place / m.name) == (m.sha256, m.size) for m in manifest.members)
        except StoreError as error:
            if error.no_means:
                raise
            return False

    def _attempt(self, manifest: KernelManifest, failed: dict[str, str], act: Callable[[KernelManifest], None]) -> None:
        try:
            act(manifest)
        except StoreError as error:
            log.error("kernel %s cannot be put into the op library: %s", manifest.id[:16], error)
            failed[manifest.id] = error.message
            self._seen.pop(manifest.id, None)

    def _mend(self, manifest: KernelManifest) -> None:
        """Replace what is gone or has other bytes, file by file, each by one rename; and see to it that all is on the disk."""
        present = self._signatures(manifest)
        if not self._is_whole(manifest):
            self.brought.add(manifest.id)
            self._replace(manifest)
            present = self._signatures(manifest)
            if not self._is_whole(manifest):
                raise StoreError(f"kernel {manifest.id[:16]} has other bytes in the store than its manifest says")
        # What an earlier life was killed over, or somebody wrote, may be whole and not be on the disk yet.
        path = self._ai_core / place_of(manifest)
        for member in manifest.members:
            self._disk.fsync_file(path / member.name)
        for place in (path, path.parent, path.parent.parent):
            self._disk.fsync_directory(place)
        self._seen[manifest.id] = present

    def _replace(self, manifest: KernelManifest) -> None:
        disk = self._disk
        path = self._ai_core
        for part in place_of(manifest).split("/"):
            path /= part
            if not path.is_dir():
                disk.remove_tree(path)  # whatever it is: nothing but ours belongs there
            if disk.make_directory(path, exist_ok=True):
                disk.fsync_directory(path.parent)
        for member in manifest.members:
            target = path / member.name
            try:
                whole = digest_plain(target) == (member.sha256, member.size)
            except StoreError as error:
                if error.no_means:
                    raise
                whole = False
            if not whole:
                content = read_plain(self._source(manifest.id) / member.name, MAX_KERNEL_FILE)
                if target.is_dir():
                    disk.remove_tree(target)
                disk.write_file(target, content, staging=self._ai_core)

    def _bring(self, fresh: Iterable[KernelManifest], failed: dict[str, str]) -> None:
        """Copy kernels into a directory that nobody looks into, force all of it to the disk at once, and rename each into place."""
        disk = self._disk
        staged = self._ai_core / f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}"
        disk.make_directory(staged)
        try:
            copied: list[KernelManifest] = []
            for manifest in fresh:
                self._attempt(manifest, failed, lambda manifest: self._copy(manifest, staged))
                if manifest.id not in failed:
                    copied.append(manifest)
            disk.fsync_tree(staged)
            for manifest in copied:
                name, present = directory_of(manifest.id), self._signatures(manifest, at=staged)
                if not disk.publish(staged / name, self._ai_core / name, durable=False):
                    failed[manifest.id] = f"{name} is in the way"
                    continue
                self._seen[manifest.id] = present
                self.brought.add(manifest.id)
            disk.fsync_directory(self._ai_core)
        finally:
            disk.remove_tree(staged)

    def _copy(self, manifest: KernelManifest, staged: Path) -> None:
        path = staged
        for part in place_of(manifest).split("/"):
            path /= part
            self._disk.make_directory(path)
        for member in manifest.members:
            source = self._source(manifest.id) / member.name
            if self._disk.copy_file(source, path / member.name, durable=False) != (member.sha256, member.size):
                raise StoreError(f"{member.name} has other bytes in the store than its manifest says")
