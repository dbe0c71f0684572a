"""Views: immutable op-library roots that hold exactly the kernels that a client asked for.

A view is made in staging and published by one rename, so readers never coordinate.  Equal requests share one.  The layout is what
the CANN runtime reads (docs/cann.md, sections 3 and 4): ``static_kernel/ai_core/config/<family>/binary_info_config.json`` and, beside it,
the kernels as hard links.  Views are not forced to the disk: those of an earlier boot are dropped, not trusted.
"""

from __future__ import annotations

import hashlib
import json
import logging
import secrets
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from npgxd.errors import StoreError
from npgxd.store.index import INDEX_NAME, PackagedEntry, build_index
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npgxd.store.kernels import KernelStore
    from npgxd.store.manifest import KernelManifest
    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

LAYOUT: Final = 1
_AI_CORE: Final = PurePosixPath("static_kernel/ai_core")
_VIEW_FILE: Final = "view.json"
_MAX_VIEW_FILE: Final = 16 * 1024 * 1024


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

    def path(self, digest: str) -> Path:
        """Where a view lies: the root that is given to reselect."""
        return self._state.views / digest

    def assemble(self, manifests: Sequence[KernelManifest]) -> View:
        """The view of exactly these kernels (at least one, all of one SoC family), made now or shared with an equal request.

        There is one entry per simplified key: the first kernel in order of keys wins, and the others are named as shadowed.
        """
        chosen, shadowed = _choose(manifests)
        if len({manifest.origin.family for manifest in chosen}) != 1:
            raise StoreError("a view needs kernels of one SoC family", hint="this is a fault of npgxd: please report it")
        ids = tuple(sorted(manifest.id for manifest in chosen))
        digest = hashlib.sha256("\0".join((str(LAYOUT), chosen[0].origin.family, *ids)).encode()).hexdigest()
        final = self.path(digest)
        if not self._is_current(digest):
            self._drop(digest)
            staged = self._state.staging / f"view-{secrets.token_hex(8)}"
            try:
                self._fill(staged, chosen)
                self._state.disk.publish(staged, final, durable=False)
            finally:
                self._state.disk.remove_tree(staged)
        return View(digest, final, ids, shadowed)

    def kernels_of(self, digest: str) -> tuple[str, ...]:
        """The kernel ids of a view; StoreError if there is none."""
        return tuple(self._facts(digest)["kernels"])

    def __contains__(self, digest: str) -> bool:
        return (self.path(digest) / _VIEW_FILE).is_file()

    def count(self) -> int:
        """How many views there are."""
        return sum(1 for _ in self._state.views.iterdir())

    def drop_unleased(self, keep: Collection[str]) -> list[str]:
        """Remove every view that is not in ``keep``: first out of sight by one rename, then file by file. The dropped ones."""
        return [path.name for path in sorted(self._state.views.iterdir()) if path.name not in keep and self._drop(path.name)]

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _fill(self, root: Path, chosen: Sequence[KernelManifest]) -> None:
        disk = self._state.disk
        made: set[PurePosixPath] = set()

        def directory(relative: PurePosixPath) -> Path:
            for part in (*reversed(relative.parents), relative):
                if part not in made:
                    disk.make_directory(root / part, exist_ok=True)
                    made.add(part)
            return root / relative

        entries: list[PackagedEntry] = []
        for manifest in chosen:
            source = self._kernels.directory(manifest.id)
            place = PurePosixPath(manifest.id[:16], manifest.origin.family, manifest.origin.op_type)
            target = directory(_AI_CORE / place)
            for member in manifest.members:
                disk.link_or_copy(source / member.name, target / member.name)
            entries += [PackagedEntry(manifest.origin.op_type, str(place / f"{e.stem}.o"), e.facts) for e in manifest.entries]
        config = directory(_AI_CORE / "config" / chosen[0].origin.family)
        disk.write_file(config / INDEX_NAME, build_index(entries), durable=False)
        facts = {"layout": LAYOUT, "boot": self._boot, "kernels": sorted(manifest.id for manifest in chosen)}
        disk.write_file(root / _VIEW_FILE, json.dumps(facts).encode(), durable=False)

    def _is_current(self, digest: str) -> bool:
        try:
            return self._facts(digest).get("boot") == self._boot
        except StoreError:
            return False

    def _facts(self, digest: str) -> dict[str, Any]:
        try:
            facts = json.loads(read_plain(self.path(digest) / _VIEW_FILE, _MAX_VIEW_FILE))
        except ValueError as error:
            raise StoreError(f"view {digest[:16]} has no readable {_VIEW_FILE}: {error}") from None
        if not isinstance(facts, dict) or not isinstance(facts.get("kernels"), list):
            raise StoreError(f"view {digest[:16]} has no readable {_VIEW_FILE}")
        return facts

    def _drop(self, digest: str) -> bool:
        path = self.path(digest)
        if not path.is_symlink() and not path.exists():
            return False
        away = self._state.staging / f"dropped-{secrets.token_hex(8)}"
        self._state.disk.move(path, away, durable=False)
        self._state.disk.remove_tree(away)
        return True


def _choose(manifests: Sequence[KernelManifest]) -> tuple[list[KernelManifest], tuple[str, ...]]:
    """One kernel per simplified key, in order of keys; and the keys of those that lost."""
    taken: dict[str, str] = {}
    chosen: list[KernelManifest] = []
    shadowed: list[str] = []
    for manifest in sorted({manifest.id: manifest for manifest in manifests}.values(), key=lambda m: (m.key, m.id)):
        if any(name in taken for name in manifest.simplified_keys):
            shadowed.append(manifest.key)
            continue
        taken.update(dict.fromkeys(manifest.simplified_keys, manifest.id))
        chosen.append(manifest)
    if not chosen:
        raise StoreError("a view needs at least one kernel", hint="this is a fault of npgxd: please report it")
    return chosen, tuple(shadowed)
