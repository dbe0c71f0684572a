"""Removal: mark what somebody needs, and sweep the rest by last use, to a size and to free space, a little at a time.

A pass is a generator: it does a millisecond or so of work between two yields, so that whoever drives it can answer look-ups meanwhile.
What a round uses, or a process leases, while a pass is under way is kept by that pass.  A kernel leaves the catalog first, then its
directory goes out of sight by one rename, then its files go: a crash leaves whole kernels that are adopted again, never a row without bytes.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.errors import StoreError
from npgxd.oplib.sweeping import Step, Steps, bound_quarantine, remove_slowly
from npgxd.store.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, parse_manifest
from npgxd.store.plain import read_plain
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from npgxd.oplib.leases import Leases
    from npgxd.oplib.pins import Pins
    from npgxd.oplib.views import Views
    from npgxd.store.packages import PackageStore
    from npgxd.store.state import StateDirectory
    from npgxd.store.uses import Standing

log = logging.getLogger(__name__)


OVERHEAD: Final = 12 * 1024
"""Bytes on the disk that a kernel takes beside its members: directory, manifest, and what rounding up to blocks adds."""
NAMED: Final = 200
"""Removed kernels that a report names."""
_PAGE: Final = 100
_BATCH: Final = 32
"""Kernels that leave together: waiting for the disk (the catalog, the rename) is most of what a small batch costs."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What may be kept. ``max_bytes``: kernels and run packages, 0 for no limit; ``min_free``: bytes of the disk that stay free."""

    max_bytes: int = 0
    min_free: int = 0
    quarantine_bytes: int = 0
    recent_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Marks:
    """What somebody needs: views, kernels by id and kernels by key, each with the word for why; ``hold``: why nothing may go at all."""

    views: frozenset[str] = frozenset()
    kernels: Mapping[str, str] = field(default_factory=dict)
    keys: Mapping[str, str] = field(default_factory=dict)
    hold: str = ""


class Victim(NamedTuple):
    """A kernel that a pass removed, or would remove. ``why``: ``retired`` or ``least recently used``."""

    id: str
    key: str
    op_type: str
    size: int
    why: str


@dataclass(frozen=True, slots=True)
class Report:
    """What a pass did (``dry_run``: would do). ``bytes`` and ``free`` are as of its end; ``over``, ``short``: a budget is still not met."""

    dry_run: bool
    scanned: int
    kept: Mapping[str, int]
    retired: int
    removed: int
    freed: int
    views: int
    packages: int
    quarantine_bytes: int
    bytes: int
    free: int
    over: bool
    short: bool
    hold: str
    victims: tuple[Victim, ...]

    def line(self) -> str:
        """One line for the log."""
        kept = ", ".join(f"{count} {why}" for why, count in sorted(self.kept.items())) or "none"
        limits = "".join((", over the size limit" if self.over else "", ", short of free space" if self.short else ""))
        held = f", on hold: {self.hold}" if self.hold else ""
        return (
            f"{'would remove' if self.dry_run else 'removed'} {self.removed} of {counted(self.scanned, 'kernel')}, "
            f"{counted(self.packages, 'run package')}, {counted(self.views, 'view')}, {counted(self.freed, 'byte')}; "
            f"kept: {kept}; {self.bytes} bytes kept, {self.free} free{limits}{held}"
        )


def order(candidates: Iterable[Standing], retired: Collection[str]) -> list[Standing]:
    """Who goes first: retired kernels, then the longest unused, then the oldest."""
    return sorted(candidates, key=lambda row: (row.id not in retired, row.used, row.sequence))


def choose(ordered: Sequence[Standing], packages: Mapping[str, tuple[int, int]], over: int, short: int) -> list[Standing]:
    """The first of ``ordered`` that free as many bytes as are too many (``over``) and are missing on the disk (``short``).

    Where all of them would not make up what is missing on the disk, none goes for it: that would cost kernels and help nobody.  A
    package (digest -> size, kernels) goes with the last of its kernels.
    """
    chosen, freed = _first(ordered, packages, max(over, short))
    return chosen if freed >= short else _first(ordered, packages, over)[0]


def _first(ordered: Sequence[Standing], packages: Mapping[str, tuple[int, int]], need: int) -> tuple[list[Standing], int]:
    """As many of ``ordered`` as free ``need`` bytes, and what they free."""
    left = {digest: kernels for digest, (_, kernels) in packages.items()}
    chosen: list[Standing] = []
    freed = 0
    for row in ordered:
        if freed >= need:
            break
        chosen.append(row)
        freed += row.size + OVERHEAD
        left[row.package] = left.get(row.package, 0) - 1
        if not left[row.package] and row.package in packages:
            freed += packages[row.package][0]
    return chosen, freed


@dataclass(slots=True)
class _Pass:
    """What one pass knows so far."""

    marks: Marks
    number: int
    dry_run: bool
    rows: list[Standing] = field(default_factory=list)
    candidates: list[Standing] = field(default_factory=list)
    retired: set[str] = field(default_factory=set)
    kept: Counter[str] = field(default_factory=Counter)
    victims: list[Victim] = field(default_factory=list)
    freed: int = 0


class Removal:
    """Takes away what nobody needs.

    ``free``: the bytes that are free on the state directory's disk.  ``done``: does an act that touches nothing but the disk, and whose
    end is waited for.
    """

    def __init__(
        self,
        state: StateDirectory,
        views: Views,
        leases: Leases,
        packages: PackageStore,
        pins: Pins,
        *,
        free: Callable[[], int] | None = None,
        done: Callable[[Callable[[], object]], Steps[None]] | None = None,
    ) -> None:
        self._done = done or _here
        self._state = state
        self._views = views
        self._kernels = views.kernels
        self._uses = views.kernels.uses
        self._leases = leases
        self._packages = packages
        self._pins = pins
        self.free = free or self._free_bytes

    def collect(
        self,
        budget: Budget,
        marking: Callable[[], Steps[Marks]],
        is_retired: Callable[[Standing], bool],
        *,
        dry_run: bool = False,
    ) -> Steps[Report]:
        """One pass. ``marking`` says what is needed; what comes to be needed later is seen by the pass itself.

        A StoreError ends it; what it did until then is whole.
        """
        self._leases.lately.clear()
        self._views.lately.clear()
        number = self._uses.number
        marks = yield from marking()
        work = _Pass(marks, number, dry_run)
        views = yield from self._drop_views(work)
        yield from self._scan(work, budget, is_retired)
        sizes = yield from self._package_sizes()
        kernels_of = Counter(row.package for row in work.rows)
        total = sum(row.size + OVERHEAD for row in work.rows) + sum(sizes[d] for d in sizes if kernels_of[d])
        over = max(total - budget.max_bytes, 0) if budget.max_bytes else 0
        missing = max(budget.min_free - self.free(), 0)
        chosen = choose(order(work.candidates, work.retired), {d: (sizes[d], kernels_of[d]) for d in sizes}, over, missing)
        work.kept["within the limits"] += len(work.candidates) - len(chosen)
        yield from self._sweep(work, chosen)
        packages = yield from self._drop_packages(work, sizes)
        quarantine = yield from bound_quarantine(self._state, budget.quarantine_bytes, dry_run=dry_run)
        if work.victims and not dry_run:
            self._uses.forget_strays()
        kept_bytes, free = max(0, total - work.freed), self.free() + (work.freed if dry_run else 0)
        return Report(
            dry_run=dry_run,
            scanned=len(work.rows),
            kept={why: count for why, count in work.kept.items() if count},
            retired=len(work.retired) - sum(victim.why == "retired" for victim in work.victims if not dry_run),
            removed=len(work.victims),
            freed=work.freed,
            views=views,
            packages=packages,
            quarantine_bytes=quarantine,
            bytes=kept_bytes,
            free=free,
            over=bool(budget.max_bytes) and kept_bytes > budget.max_bytes,
            short=free < budget.min_free,
            hold=marks.hold,
            victims=tuple(work.victims[:NAMED]),
        )

    # ---- the steps ---------------------------------------------------------------------------------------------------

    def _drop_views(self, work: _Pass) -> Steps[int]:
        """Views that nobody has leased or was told of lately."""
        dropped = 0
        if work.marks.hold:
            return 0
        for path in sorted(self._state.views.iterdir()):
            yield Step("views", dropped, 0)
            if path.name in work.marks.views or path.name in self._leases.lately or path.name in self._views.lately:
                continue
            dropped += 1
            if not work.dry_run:
                yield from remove_slowly(self._state, path, "views")
        return dropped

    def _scan(self, work: _Pass, budget: Budget, is_retired: Callable[[Standing], bool]) -> Steps[None]:
        after = 0
        total = self._kernels.count()
        while page := self._uses.page(after, _PAGE):
            after = page[-1].sequence
            for row in page:
                if row.fingerprint:
                    work.rows.append(row)
                else:
                    work.rows.append(self._look(row))
                    yield Step("kernels", len(work.rows), total)
            yield Step("kernels", len(work.rows), total)
        newest = {row.key: row.id for row in work.rows}
        pinned = self._pins.keys()
        op_types: set[str] = set()
        for at, row in enumerate(work.rows):
            if row.op_type not in op_types:  # its fingerprint may have to be taken: that is work by itself
                op_types.add(row.op_type)
                yield Step("kernels", at, total)
            if newest[row.key] != row.id or is_retired(row):
                work.retired.add(row.id)
            why = self._why_kept(work, row, budget, pinned)
            if why:
                work.kept[why] += 1
            else:
                work.candidates.append(row)
            if not at % _PAGE:
                yield Step("kernels", at, total)

    def _look(self, row: Standing) -> Standing:
        """A row whose fingerprint nobody wrote down yet (the catalog was made anew)."""
        try:
            manifest = parse_manifest(read_plain(self._kernels.directory(row.id) / MANIFEST_NAME, MAX_MANIFEST_BYTES))
        except StoreError as error:
            log.warning("kernel %s cannot be read: %s", row.id[:16], error)
            return row
        self._uses.learned(row.id, manifest.origin.fingerprint)
        return type(row)(row.sequence, row.id, row.key, row.op_type, row.size, row.package, row.used, manifest.origin.fingerprint)

    def _why_kept(self, work: _Pass, row: Standing, budget: Budget, pinned: Collection[str]) -> str:
        marks = work.marks
        return (
            (marks.hold and "on hold")
            or marks.kernels.get(row.id, "")
            or ("pinned" if row.key in pinned else "")
            or marks.keys.get(row.key, "")
            or ("used meanwhile" if self._uses.touched_since(row.id, work.number) else "")
            or ("published lately" if self._uses.is_recent(row.id, budget.recent_s) else "")
        )

    def _sweep(self, work: _Pass, chosen: Sequence[Standing]) -> Steps[None]:
        for start in range(0, len(chosen), _BATCH):
            yield Step("removing", start, len(chosen))
            held = self._held_lately()
            pinned = self._pins.keys()
            going = [
                row
                for row in chosen[start : start + _BATCH]
                if row.id not in held and row.key not in pinned and not self._uses.touched_since(row.id, work.number)
            ]
            work.kept["used meanwhile"] += len(chosen[start : start + _BATCH]) - len(going)
            if not work.dry_run:
                self._kernels.forget([row.id for row in going])
            for row in going:
                why = "retired" if row.id in work.retired else "least recently used"
                work.victims.append(Victim(row.id, row.key, row.op_type, row.size, why))
                work.freed += row.size + OVERHEAD
            if not work.dry_run:
                yield from self._remove_directories(going)

    def _remove_directories(self, going: Sequence[Standing]) -> Steps[None]:
        """First all of them out of sight, in this step: until then a crash, or a round that compiles one anew, finds them whole."""
        away = self._state.staging / f"dropped-{secrets.token_hex(8)}"
        try:
            self._state.disk.make_directory(away, 0o700)
            for row in going:
                if os.path.lexists(self._kernels.directory(row.id)):
                    self._state.disk.move(self._kernels.directory(row.id), away / row.id, durable=False)
        except StoreError:
            # What stays is listed again: else it would lie there until the next start, count for nothing, and be compiled anew.
            with contextlib.suppress(StoreError):
                self._kernels.adopt(row.id for row in going if os.path.lexists(self._kernels.directory(row.id)))
            raise
        # Else power loss could undo a rename, and not what was then unlinked.
        yield from self._done(partial(self._state.disk.fsync_directory, away))
        for row in going:
            yield from self._done(partial(self._state.disk.remove_tree, away / row.id))
        self._state.disk.remove_tree(away)

    def _held_lately(self) -> set[str]:
        """The kernels of views that were told or offered while this pass is under way."""
        held: set[str] = set()
        for view in self._leases.lately | self._views.lately:
            try:
                held.update(self._views.kernels_of(view))
            except StoreError as error:
                log.warning("view %s cannot be read: %s", view[:16], error)
        return held

    def _package_sizes(self) -> Steps[dict[str, int]]:
        sizes: dict[str, int] = {}
        for at, entry in enumerate(os.scandir(self._state.packages)):
            if entry.name.endswith(".run"):
                sizes[entry.name.removesuffix(".run")] = entry.stat(follow_symlinks=False).st_size
            if not at % _PAGE:
                yield Step("packages", at, 0)
        return sizes

    def _drop_packages(self, work: _Pass, sizes: Mapping[str, int]) -> Steps[int]:
        """Run packages that no kernel names any more; looked up again for each, since a job may have published meanwhile."""
        gone = {victim.id for victim in work.victims}
        named = {row.package for row in work.rows if row.id not in gone}
        dropped = 0
        for digest in sorted(sizes.keys() - named):
            yield Step("packages", dropped, len(sizes))
            if work.marks.hold or self._packages.is_named(digest, apart_from=gone if work.dry_run else ()):
                continue
            dropped += 1
            work.freed += sizes[digest]
            if not work.dry_run:
                self._packages.remove(digest)
        return dropped

    def _free_bytes(self) -> int:
        found = os.statvfs(self._state.path)
        return found.f_bavail * found.f_frsize


def _here(act: Callable[[], object]) -> Steps[None]:
    act()
    yield Step("removing", 0, 0)
