"""Which kernels a shared op library is to hold: those that somebody needs or needed a short while ago, and that are not stale."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from npgxd.errors import NpgxError, StoreError
from npgxd.oplib.shared_root_place import LibraryError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.store.manifest import KernelManifest

log = logging.getLogger(__name__)


class Wanted:
    """Kernels by id, each with when it was last needed (monotonic seconds)."""

    def __init__(self, leave_after_s: float, stores: Stores, keyer: Keyer) -> None:
        self._leave_after_s = leave_after_s
        self._stores = stores
        self._keyer = keyer
        self._needed: dict[str, float] = {}
        self._held: dict[str, tuple[str, ...]] = {}
        """view -> its kernels, which never change."""

    def need(self, kernels: Iterable[str], now: float) -> None:
        """These are needed now."""
        self._needed.update(dict.fromkeys(kernels, now))

    def need_views(self, views: set[str], now: float) -> None:
        """What is in these views is needed now."""
        self._held = {view: kernels for view, kernels in self._held.items() if view in views}
        for view in views:
            if view not in self._held:
                try:
                    self._held[view] = self._stores.views.kernels_of(view)
                except StoreError as error:
                    if view in self._stores.views:
                        log.warning("view %s cannot be read: %s", view[:16], error)
                    continue
            self.need(self._held[view], now)

    def adopt(self, digits: Iterable[str], now: float) -> None:
        """Kernels of which the root had an entry already, by the first digits of their ids: they stay as if just needed."""
        for name in digits:
            rows = self._stores.catalog.read("SELECT id FROM kernels WHERE id >= ? AND id < ?", (name, name + "g"))
            self.need((str(row[0]) for row in rows), now)

    def manifests(self, now: float) -> tuple[dict[str, KernelManifest], list[KernelManifest]]:
        """What the root is to hold, by id; and what is outdated: processes may have loaded it and need its files, nobody is offered it.

        Outdated is what the toolchain would compile otherwise today.  LibraryError if a kernel cannot be looked at now, for want of
        descriptors or memory: it stays where it is until it can be.
        """
        self._needed = {kernel: at for kernel, at in self._needed.items() if now - at <= self._leave_after_s}
        held = {kernel for kernels in self._held.values() for kernel in kernels}
        found: dict[str, KernelManifest] = {}
        outdated: list[KernelManifest] = []
        for kernel in self._needed:
            try:
                manifest = self._stores.kernels.get(kernel)
            except StoreError as error:
                if error.no_means:
                    raise LibraryError(f"the op library stays as it is: {error.message}", hint=error.hint) from error
                log.debug("kernel %s is not offered: %s", kernel[:16], error)
                continue
            if self._is_current(manifest):
                found[kernel] = manifest
            elif kernel in held:
                outdated.append(manifest)
        return found, outdated

    def _is_current(self, manifest: KernelManifest) -> bool:
        try:
            return self._keyer.fingerprint(manifest.origin.op_type) == manifest.origin.fingerprint
        except NpgxError as error:
            log.debug("kernel %s is not offered: %s", manifest.id[:16], error)
            return False
