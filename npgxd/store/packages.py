"""Run packages by digest: the provenance of kernels, and what the documented output tree shows."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING

from npgxd.store.disk import FILE_MODE
from npgxd.store.plain import open_plain
from npgxd.store.waits import at_once

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from npgxd.store.catalog import Catalog
    from npgxd.store.state import StateDirectory
    from npgxd.store.waits import Waits


class PackageStore:
    """All run packages of a state directory."""

    def __init__(self, state: StateDirectory, catalog: Catalog) -> None:
        self._state = state
        self._catalog = catalog

    def path(self, digest: str) -> Path:
        """Where a package lies."""
        return self._state.packages / f"{digest}.run"

    def publish(self, staged: Path, digest: str, name: str) -> Path:
        """Make a staged package (already on the disk) visible under its digest; one that is there already stays."""
        return at_once(self.publishing(staged, digest, name))

    def publishing(self, staged: Path, digest: str, name: str) -> Waits[Path]:
        """``publish``, for a caller that has other things to do while the disk is waited for."""
        final = self.path(digest)
        with open_plain(staged) as fd:
            size = os.fstat(fd).st_size
        self._state.disk.set_mode(staged, FILE_MODE)
        if self._state.disk.publish(staged, final, durable=False):
            yield partial(self._state.disk.fsync_directory, final.parent)
        else:
            self._state.disk.unlink(staged)
        self._catalog.add_package(digest, name, size)
        return final

    def name(self, digest: str) -> str:
        """The vendor's file name, or one made of the digest where it is not known any more."""
        return self._catalog.package_name(digest) or f"static_kernel_{digest[:18]}.run"

    def is_named(self, digest: str, *, apart_from: Collection[str] = ()) -> bool:
        """Whether a listed kernel, other than those, came out of this package."""
        rows = self._catalog.read("SELECT id FROM kernels WHERE package = ?", (digest,))
        return any(row[0] not in apart_from for row in rows)

    def remove(self, digest: str) -> None:
        """Remove a package that no kernel names; its row goes first."""
        with self._catalog.transaction() as db:
            db.execute("DELETE FROM packages WHERE digest = ?", (digest,))
        self._state.disk.unlink(self.path(digest))

    def count(self) -> int:
        """How many there are."""
        return self._catalog.package_count()
