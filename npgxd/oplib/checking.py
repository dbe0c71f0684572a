"""Verifying: every digest, and the catalog against the files; and mending what can be mended without touching what somebody reads.

Works as a generator, bit by bit, so that look-ups go on meanwhile.  What is published or removed while it runs is looked at as it is
then, and is never called a problem.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.errors import StoreError
from npgxd.oplib.checking_artifacts import check_artifacts
from npgxd.oplib.sweeping import Step, Steps, digest_slowly, remove_slowly
from npgxd.store.kernels import directories, row_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npgxd.oplib.leases import Leases
    from npgxd.oplib.pins import Pins
    from npgxd.oplib.views import Views
    from npgxd.store.artifacts import ArtifactStore
    from npgxd.store.catalog import Catalog
    from npgxd.store.packages import PackageStore
    from npgxd.store.rounds import RoundJournal
    from npgxd.store.state import StateDirectory


_PAGE: Final = 64


class Problem(NamedTuple):
    """One thing that is not as it should be. ``done``: how it was mended; empty: it was not."""

    kind: str
    """kernel_damaged, kernel_unlisted, row_stale, package_damaged, package_unlisted, view_damaged, round_damaged, pin_damaged,
    lease_damaged, artifact_damaged, artifact_unlisted, catalog_damaged. Stable."""
    name: str
    detail: str
    done: str = ""


@dataclass(slots=True)
class Findings:
    """What was looked at, and every problem."""

    repair: bool
    kernels: int = 0
    packages: int = 0
    views: int = 0
    rounds: int = 0
    pins: int = 0
    artifacts: int = 0
    bytes: int = 0
    problems: list[Problem] = field(default_factory=list)
    bad: set[str] = field(default_factory=set)
    """Ids of damaged kernels."""

    @property
    def left(self) -> int:
        """Problems that are not mended."""
        return sum(not problem.done for problem in self.problems)


@dataclass(frozen=True, slots=True)
class Checking:
    """Everything in a state directory that has a digest, or an index."""

    state: StateDirectory
    catalog: Catalog
    views: Views
    leases: Leases
    packages: PackageStore
    rounds: RoundJournal
    pins: Pins
    artifacts: ArtifactStore

    def check(self, *, repair: bool) -> Steps[Findings]:
        """Look at everything. With ``repair``: quarantine what is damaged, drop stale rows, adopt what is unlisted, drop bad views.

        StoreError where there are no descriptors or no memory left to look: that is no word against what is there.
        """
        found = Findings(repair)
        if repair:
            self.leases.release_dead()
        self._catalog(found)
        yield from self._rows(found)
        yield from self._kernels(found)
        yield from self._packages(found)
        yield from self._views(found)
        self._rounds(found)
        self._pins(found)
        yield from check_artifacts(self.artifacts, found, self._add)
        yield Step("leases", 0, 0)
        self._leases(found)
        return found

    # ---- the steps ---------------------------------------------------------------------------------------------------

    def _catalog(self, found: Findings) -> None:
        said = self.catalog.read("PRAGMA quick_check(1)")[0][0]
        if said != "ok":
            detail = f"{said}; restart the daemon: it makes the catalog anew from the kernels"
            found.problems.append(Problem("catalog_damaged", self.state.catalog.name, detail))

    def _rows(self, found: Findings) -> Steps[None]:
        """The catalog lists exactly what is there."""
        there: dict[str, Path] = {}
        for at, (kernel, place) in enumerate(directories(self.state)):
            there[kernel] = place
            if not at % _PAGE:
                yield Step("rows", at, 0)
        listed = self.catalog.all_kernel_ids()
        yield Step("rows", 0, len(listed))
        for kernel in sorted(listed - there.keys()):
            if os.path.lexists(self.views.kernels.directory(kernel)) or not self._is_listed(kernel):
                continue  # published, or removed, meanwhile
            self._add(found, "row_stale", kernel, "its files are gone", "dropped", partial(self.catalog.drop_kernel, kernel))
            yield Step("rows", 0, len(listed))
        for kernel in sorted(there.keys() - listed):
            if not there[kernel].exists() or self._is_listed(kernel) or kernel in self.views.kernels.arriving:
                continue
            yield from self._unlisted(found, kernel, there[kernel])

    def _unlisted(self, found: Findings, kernel: str, place: Path) -> Steps[None]:
        problem = yield from self._bytes(found, kernel)
        if problem:
            found.bad.add(kernel)
            done = self._aside(place, problem)
            self._add(found, "kernel_damaged", kernel, problem, "set aside in the quarantine", done)
            return
        adopt = partial(self.views.kernels.adopt, [kernel])
        self._add(found, "kernel_unlisted", kernel, "the catalog does not list it", "listed again", adopt)

    def _kernels(self, found: Findings) -> Steps[None]:
        uses, kernels = self.views.kernels.uses, self.views.kernels
        after, total = 0, kernels.count()
        while page := uses.page(after, _PAGE):
            after = page[-1].sequence
            for row in page:
                yield Step("kernels", found.kernels, total)
                problem = yield from self._bytes(found, row.id)
                if not self._is_listed(row.id):
                    continue  # removed meanwhile
                found.kernels += 1
                if problem:
                    found.bad.add(row.id)

                    condemn = partial(kernels.condemn, row.id, StoreError(problem))
                    self._add(found, "kernel_damaged", row.id, problem, "set aside in the quarantine", condemn)
                    continue
                manifest = kernels.manifest(row.id)
                if (row.key, row.package, row.size) != (manifest.key, manifest.package, manifest.size):
                    self._add(
                        found,
                        "row_stale",
                        row.id,
                        "the catalog says other things of it than its manifest",
                        "listed anew",
                        partial(self.catalog.add_kernels, [row_of(manifest)]),
                    )

    def _bytes(self, found: Findings, kernel: str) -> Steps[str]:
        """What is wrong with a kernel's files; empty if nothing is."""
        store = self.views.kernels
        try:
            manifest = store.manifest(kernel)
            for member in manifest.members:
                told = yield from digest_slowly(store.directory(kernel) / member.name, "kernels")
                found.bytes += told[1]
                if told != (member.sha256, member.size):
                    return f"{member.name} has other bytes than its manifest says"
        except StoreError as error:
            if error.no_means:
                raise
            return error.message
        return ""

    def _packages(self, found: Findings) -> Steps[None]:
        listed = {str(row[0]) for row in self.catalog.read("SELECT digest FROM packages")}
        there = {entry.name.removesuffix(".run") for entry in os.scandir(self.state.packages) if entry.name.endswith(".run")}
        for digest in sorted(there):
            yield Step("packages", found.packages, len(there))
            path = self.packages.path(digest)
            try:
                told, size = yield from digest_slowly(path, "packages")
            except StoreError as error:
                if error.no_means:
                    raise
                if not os.path.lexists(path):
                    continue  # removed meanwhile
                told, size = error.message, 0
            found.packages += 1
            found.bytes += size
            if told != digest:
                self._add(
                    found,
                    "package_damaged",
                    digest,
                    "its bytes are not those of its name",
                    "set aside in the quarantine",
                    partial(self._drop_package, path, digest),
                )
            elif digest not in listed and (name := self._package_name(digest)):
                self._add(
                    found,
                    "package_unlisted",
                    digest,
                    "the catalog does not list it",
                    "listed again",
                    partial(self.catalog.add_package, digest, name, size),
                )
        for digest in sorted(listed - there):
            if not os.path.lexists(self.packages.path(digest)):
                self._add(found, "row_stale", digest, "its package is gone", "dropped", partial(self.packages.remove, digest))

    def _package_name(self, digest: str) -> str:
        """The vendor's name of a package, from a kernel that came out of it; empty if none did."""
        for (kernel,) in self.catalog.read("SELECT id FROM kernels WHERE package = ? LIMIT 1", (digest,)):
            try:
                return self.views.kernels.manifest(kernel).making.package_name or f"static_kernel_{digest[:18]}.run"
            except StoreError:
                return ""
        return ""

    def _views(self, found: Findings) -> Steps[None]:
        names = sorted(path.name for path in self.state.views.iterdir())
        for name in names:
            yield Step("views", found.views, len(names))
            examining = self.views.examine(name, found.bad)
            problem = ""
            while True:
                try:
                    next(examining)
                except StopIteration as end:
                    problem = end.value
                    break
                yield Step("views", found.views, len(names))
            if not os.path.lexists(self.views.path(name)):
                continue  # dropped meanwhile
            found.views += 1
            if not problem:
                continue
            if name in self.leases.views_in_use():
                detail = f"{problem}; processes use it: they should be restarted. Nobody else gets it"
                found.problems.append(Problem("view_damaged", name, detail))
                continue
            done = "removed; it is made anew when it is asked for" if found.repair else ""
            found.problems.append(Problem("view_damaged", name, problem, done))
            if found.repair:
                yield from remove_slowly(self.state, self.views.path(name), "views")

    def _rounds(self, found: Findings) -> None:
        found.rounds = sum(1 for _ in self.state.rounds.iterdir())
        for path, problem in self.rounds.damaged():
            done = self._aside(path, f"not a round: {problem}")
            self._add(found, "round_damaged", path.name, problem, "set aside in the quarantine", done)

    def _pins(self, found: Findings) -> None:
        found.pins = len(self.pins.all())
        for name in self.pins.damaged():
            problem = "its file does not say what it should"
            self._add(found, "pin_damaged", name, problem, "written anew", partial(self.pins.rewrite, name))
        found.problems += [Problem("pin_damaged", text, "set aside at the start", "pin it again") for text in self.pins.problems]
        if found.repair:
            self.pins.problems.clear()

    def _leases(self, found: Findings) -> None:
        for name, held in self.leases.unreadable():
            if held:
                detail = "a process holds it and it cannot be read: nothing is removed until that ends"
                found.problems.append(Problem("lease_damaged", name, detail))
            else:
                detail = "it cannot be read, and nobody holds it"
                self._add(found, "lease_damaged", name, detail, "removed", self.leases.release_dead)

    # ---- what they use -----------------------------------------------------------------------------------------------

    def _add(self, found: Findings, kind: str, name: str, detail: str, remedy: str, mend: Callable[[], object]) -> None:
        done = ""
        if found.repair:
            try:
                mend()
                done = remedy
            except StoreError as error:
                detail = f"{detail}; it cannot be mended: {error}"
        found.problems.append(Problem(kind, name, detail, done))

    def _is_listed(self, kernel: str) -> bool:
        return bool(self.catalog.read("SELECT 1 FROM kernels WHERE id = ?", (kernel,)))

    def _aside(self, path: Path, why: str) -> Callable[[], object]:
        return partial(self.state.set_aside, path, why)

    def _drop_package(self, path: Path, digest: str) -> None:
        with self.catalog.transaction() as db:
            db.execute("DELETE FROM packages WHERE digest = ?", (digest,))
        self.state.set_aside(path, f"the package {digest} has other bytes than its name says")
