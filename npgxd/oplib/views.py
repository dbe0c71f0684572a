"""Views: immutable op-library roots that hold exactly the kernels that a client asked for.

A view is made in staging and published by one rename, so readers never coordinate.  Equal requests share one.  The layout is what
the CANN runtime reads (docs/cann.md, sections 3 and 4): ``static_kernel/ai_core/config/<family>/binary_info_config.json`` and, beside it,
the kernels as hard links.  Views are not forced to the disk: those of an earlier boot are dropped, not trusted.

A view that turned out damaged is never mended or replaced under a process that may be reading it: the next generation of the same
request gets another digest.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import secrets
import stat
from dataclasses import dataclass
from itertools import count
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from npgxd.errors import StoreError
from npgxd.oplib.sweeping import Step, sweep_slowly
from npgxd.store.index import INDEX_NAME, MAX_INDEX_BYTES, PackagedEntry, build_index, index_pieces, parse_index
from npgxd.store.plain import digest_plain, read_plain

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Sequence

    from npgxd.oplib.sweeping import Steps
    from npgxd.store.kernels import KernelStore
    from npgxd.store.manifest import KernelManifest
    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

LAYOUT: Final = 2
"""Part of every digest: a view of another layout is never shared.  2: kernels of one view share directories, as in one package."""
_GENERATIONS: Final = 1000
_AI_CORE: Final = PurePosixPath("static_kernel/ai_core")
_VIEW_FILE: Final = "view.json"
_MAX_VIEW_FILE: Final = 16 * 1024 * 1024
STEP_FILES: Final = 32
"""Files that are linked, or compared, between two steps: a millisecond or so."""
STEP_ENTRIES: Final = 64
"""Entries of an index that are written between two steps: the same."""


@dataclass(frozen=True, slots=True)
class View:
    """A view: its digest, and what it holds. ``shadowed`` are keys that lost a simplified key to another of the same request."""

    digest: str
    path: Path
    kernels: tuple[str, ...]
    shadowed: tuple[str, ...]


class Views:
    """All views of a state directory."""

    def __init__(self, state: StateDirectory, kernels: KernelStore, boot: str) -> None:
        self._state = state
        self._kernels = kernels
        self._boot = boot
        self._sound: set[str] = set()
        self.step_files = STEP_FILES
        self._hidden: list[Path] = []
        """Views that are out of sight already, in staging, and are to be removed."""
        self.lately: set[str] = set()
        """Views that were asked for since this was last emptied, whether they are leased yet or not."""

    @property
    def kernels(self) -> KernelStore:
        """The store whose kernels are linked."""
        return self._kernels

    def path(self, digest: str) -> Path:
        """Where a view lies: the root that is given to reselect."""
        return self._state.views / digest

    def assemble(self, manifests: Sequence[KernelManifest]) -> View:
        """The view of exactly these kernels (at least one, all of one SoC family), made now or shared with an equal request.

        There is one entry per simplified key: the first kernel in order of keys wins, and the others are named as shadowed.
        """
        steps = self.assembling(manifests)
        while True:
            try:
                next(steps)
            except StopIteration as end:
                made: View = end.value
                return made

    def assembling(self, manifests: Sequence[KernelManifest]) -> Steps[View]:
        """``assemble`` bit by bit: the view that is given at the end is there, whole, at that moment.

        Between two steps others may make the same view, or drop it while nobody has leased it.
        """
        chosen, shadowed = _choose(manifests)
        if len({manifest.origin.family for manifest in chosen}) != 1:
            raise StoreError("a view needs kernels of one SoC family", hint="this is a fault of npgxd: please report it")
        ids = tuple(sorted(manifest.id for manifest in chosen))
        family = chosen[0].origin.family
        for generation in range(_GENERATIONS):
            digest = hashlib.sha256("\0".join((str(LAYOUT), str(generation), family, *ids)).encode()).hexdigest()
            there = os.path.lexists(self.path(digest)) and (yield from self._can_be_shared(digest, chosen))
            while not os.path.lexists(self.path(digest)):
                there = (yield from self._make(digest, chosen)) or (yield from self._can_be_shared(digest, chosen))
            if there:
                self.lately.add(digest)
                return View(digest, self.path(digest), ids, shadowed)
            log.error("view %s does not hold what it should; another one is made", digest[:16])
        raise StoreError(
            f"{_GENERATIONS} damaged views of one request", hint="look for what changes files below the state directory"
        )

    def kernels_of(self, digest: str) -> tuple[str, ...]:
        """The kernel ids of a view; StoreError if there is none."""
        return tuple(self._facts(digest)["kernels"])

    def keys_of(self, digest: str) -> frozenset[str]:
        """Every simplified key that a view serves, by its own index; StoreError if that cannot be read."""
        found: set[str] = set()
        for path in (self.path(digest) / _AI_CORE / "config").glob(f"*/{INDEX_NAME}"):
            for entry in parse_index(read_plain(path, MAX_INDEX_BYTES)):
                found.update(entry.facts.simplified_keys)
        return frozenset(found)

    def __contains__(self, digest: str) -> bool:
        return (self.path(digest) / _VIEW_FILE).is_file()

    def count(self) -> int:
        """How many views there are."""
        return sum(1 for _ in self._state.views.iterdir())

    def drop_unleased(self, keep: Collection[str]) -> list[str]:
        """Remove every view that is not in ``keep``: first out of sight by one rename, then file by file. The dropped ones.

        One that cannot be removed is named in the log, and the others are removed all the same.
        """
        dropped = self.hide_unleased(keep)
        for _ in self.sweep():
            pass
        return dropped

    def hide_unleased(self, keep: Collection[str]) -> list[str]:
        """Take every view that is not in ``keep`` out of sight, by one rename each; ``sweep`` removes them. Those views."""
        dropped: list[str] = []
        for path in sorted(self._state.views.iterdir()):
            if path.name not in keep:
                try:
                    self._hide(path.name)
                except StoreError as error:
                    log.warning("view %s cannot be removed: %s", path.name[:16], error)
                else:
                    dropped.append(path.name)
        return dropped

    def take_hidden(self) -> list[Path]:
        """Where the views lie that are out of sight, for a caller that removes them itself instead of ``sweep``."""
        hidden, self._hidden = self._hidden, []
        return hidden

    def sweep(self) -> Steps[None]:
        """Remove the files of the views that are out of sight, a few at a time."""
        while self._hidden:
            away = self._hidden.pop()
            try:
                yield from sweep_slowly(self._state, away, "views")
            except StoreError as error:
                log.warning("%s cannot be removed: %s", away, error)

    def examine(self, digest: str, bad: Collection[str]) -> Generator[None, None, str]:
        """What is wrong with a view, bit by bit; empty if nothing is. ``bad``: kernels that were found damaged.

        A view is not shared again without being looked at: whoever asks for it next gets a sound one, under another digest if need be.
        """
        self._sound.discard(digest)
        try:
            chosen: list[KernelManifest] = []
            for kernel in self.kernels_of(digest):
                if kernel in bad:
                    return f"kernel {kernel[:16]} in it is damaged"
                chosen.append(self._kernels.manifest(kernel))
                yield
            chosen.sort(key=lambda manifest: (manifest.key, manifest.id))
            entries: list[PackagedEntry] = []
            for manifest, place in _places(chosen):
                for member in manifest.members:
                    ours = self.path(digest) / _AI_CORE / place / member.name
                    theirs = self._kernels.directory(manifest.id) / member.name
                    if not _same_file(theirs, ours) and digest_plain(ours) != (member.sha256, member.size):
                        return f"{member.name} in it has other bytes than its manifest says"
                entries += [PackagedEntry(manifest.origin.op_type, str(place / f"{e.stem}.o"), e.facts) for e in manifest.entries]
                yield
            if read_plain(self._config(digest, chosen) / INDEX_NAME, MAX_INDEX_BYTES) != build_index(entries):
                return "its index is not the one that was written"
        except (StoreError, IndexError) as error:
            if isinstance(error, StoreError) and error.no_means:
                raise
            return str(error)
        return ""

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _make(self, digest: str, chosen: Sequence[KernelManifest]) -> Steps[bool]:
        """Stage a view and publish it by one rename; False: another one was quicker, and nothing was changed."""
        staged = self._state.staging / f"view-{secrets.token_hex(8)}"
        damaged = self._damaged(chosen)
        published = False
        if len(chosen) > self.step_files:  # choosing them was a step by itself
            yield Step("view", 0, len(chosen))
        try:
            for step in self._fill(staged, chosen):
                yield step
                if os.path.lexists(self.path(digest)):
                    return False
            if self._damaged(chosen) != damaged:
                raise StoreError("a kernel was found damaged while it was linked", hint="submit the round again")
            published = self._state.disk.publish(staged, self.path(digest), durable=False)
        finally:
            if not published:
                with contextlib.suppress(StoreError):  # what is left in staging is dropped at the next start
                    self._state.disk.remove_tree(staged)
        if published:
            self._sound.add(digest)
        return published

    def _fill(self, root: Path, chosen: Sequence[KernelManifest]) -> Steps[None]:
        disk = self._state.disk
        linked = 0
        made: dict[PurePosixPath, Path] = {}

        def directory(relative: PurePosixPath) -> Path:
            if relative not in made:
                for part in (*reversed(relative.parents), relative):
                    if part not in made:
                        disk.make_directory(root / part)
                        made[part] = root / part
            return made[relative]

        entries: list[PackagedEntry] = []
        for manifest, place in _places(chosen):
            source = self._kernels.directory(manifest.id)
            target = directory(_AI_CORE / place)
            for member in manifest.members:
                if linked and not linked % self.step_files:
                    yield Step("view", linked, 0)
                linked += 1
                same = disk.link_or_copy(source / member.name, target / member.name)
                if not same and digest_plain(target / member.name) != (member.sha256, member.size):
                    raise StoreError(f"{member.name} of kernel {manifest.id[:16]} has other bytes than its manifest says")
            entries += [PackagedEntry(manifest.origin.op_type, str(place / f"{e.stem}.o"), e.facts) for e in manifest.entries]
        config = directory(_AI_CORE / "config" / chosen[0].origin.family)
        index = yield from _index_of(entries)
        disk.write_file(config / INDEX_NAME, index, durable=False)
        facts = {"layout": LAYOUT, "boot": self._boot, "kernels": sorted(manifest.id for manifest in chosen)}
        disk.write_file(root / _VIEW_FILE, json.dumps(facts).encode(), durable=False)

    def _can_be_shared(self, digest: str, chosen: Sequence[KernelManifest]) -> Steps[bool]:
        """Whether a view that is there can be shared: of this boot, whole, and with the store's own, verified, files.

        Looked at once in a life, and again where one of its kernels was found damaged since.  If it is True the view is there now.
        """
        if digest in self._sound and not self._damaged(chosen):
            return (self.path(digest) / _VIEW_FILE).is_file()
        self._sound.discard(digest)
        try:
            if self._facts(digest).get("boot") != self._boot or not (self._config(digest, chosen) / INDEX_NAME).is_file():
                return False
            for at, (manifest, place) in enumerate(_places(chosen), 1):
                source = self._kernels.directory(manifest.id)
                for member in manifest.members:
                    ours = self.path(digest) / _AI_CORE / place / member.name
                    if not _same_file(source / member.name, ours) and digest_plain(ours) != (member.sha256, member.size):
                        return False
                if not at % self.step_files:
                    yield Step("view", at, len(chosen))
        except StoreError as error:
            if error.no_means:
                raise
            return False
        if not os.path.lexists(self.path(digest)):
            return False
        self._sound.add(digest)
        return True

    def _damaged(self, chosen: Sequence[KernelManifest]) -> set[str]:
        return self._kernels.damaged.intersection(manifest.id for manifest in chosen)

    def _config(self, digest: str, chosen: Sequence[KernelManifest]) -> Path:
        return self.path(digest) / _AI_CORE / "config" / chosen[0].origin.family

    def _facts(self, digest: str) -> dict[str, Any]:
        try:
            facts = json.loads(read_plain(self.path(digest) / _VIEW_FILE, _MAX_VIEW_FILE))
        except ValueError as error:
            raise StoreError(f"view {digest[:16]} has no readable {_VIEW_FILE}: {error}") from None
        if not isinstance(facts, dict) or not isinstance(facts.get("kernels"), list):
            raise StoreError(f"view {digest[:16]} has no readable {_VIEW_FILE}")
        return facts

    def _hide(self, digest: str) -> None:
        self._sound.discard(digest)
        self._hidden.append(self._state.hide(self.path(digest)))


def _places(chosen: Sequence[KernelManifest]) -> list[tuple[KernelManifest, PurePosixPath]]:
    """Where each kernel's files lie in a view, relative to ``ai_core/``: ``kernels_<n>/<family>/<OpType>/``, as in a run package.

    ``n`` is 0 but for kernels whose files would take the names of others: making directories is most of what a view costs.
    """
    taken: set[tuple[int, str, str]] = set()
    places: list[tuple[KernelManifest, PurePosixPath]] = []
    known: dict[tuple[int, str, str], PurePosixPath] = {}
    for manifest in chosen:
        op_type = manifest.origin.op_type
        names = [member.name for member in manifest.members]
        slot = next(n for n in count() if not any((n, op_type, name) in taken for name in names))
        taken.update((slot, op_type, name) for name in names)
        name = (slot, manifest.origin.family, op_type)
        if name not in known:
            known[name] = PurePosixPath(f"kernels_{slot}", manifest.origin.family, op_type)
        places.append((manifest, known[name]))
    return places


def _index_of(entries: Sequence[PackagedEntry]) -> Steps[bytes]:
    pieces: list[bytes] = []
    for piece in index_pieces(entries):
        if pieces and not len(pieces) % STEP_ENTRIES:
            yield Step("index", len(pieces), len(entries))
        pieces.append(piece)
    return b"".join(pieces)


def _same_file(one: Path, other: Path) -> bool:
    """Whether two names are links of one plain file."""
    try:
        first, second = os.lstat(one), os.lstat(other)
    except OSError:
        return False
    return stat.S_ISREG(first.st_mode) and (first.st_dev, first.st_ino) == (second.st_dev, second.st_ino)


def _choose(manifests: Sequence[KernelManifest]) -> tuple[list[KernelManifest], tuple[str, ...]]:
    """One kernel per simplified key, in order of keys; and the keys of those that lost.

    A kernel that would be found under the same names with the same bytes loses nothing: it is neither listed twice nor shadowed.
    """
    taken: dict[str, KernelManifest] = {}
    chosen: list[KernelManifest] = []
    shadowed: list[str] = []
    for manifest in sorted({manifest.id: manifest for manifest in manifests}.values(), key=lambda m: (m.key, m.id)):
        names = manifest.simplified_keys
        if taken.keys().isdisjoint(names):
            taken.update(dict.fromkeys(names, manifest))
            chosen.append(manifest)
        elif any(name not in taken or _offered(taken[name])[name] != offer for name, offer in _offered(manifest).items()):
            shadowed.append(manifest.key)
    if not chosen:
        raise StoreError("a view needs at least one kernel", hint="this is a fault of npgxd: please report it")
    return chosen, tuple(shadowed)


def _offered(manifest: KernelManifest) -> dict[str, tuple[object, ...]]:
    """simplified key -> all that the runtime would load under it."""
    digests = {member.name: member.sha256 for member in manifest.members}
    return {
        name: (manifest.origin.op_type, entry.facts, digests[f"{entry.stem}.o"], digests[f"{entry.stem}.json"])
        for entry in manifest.entries
        for name in entry.facts.simplified_keys
    }
