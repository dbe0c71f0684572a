"""What was done to a shared root that processes of now may still feel: who had a key before, and whose kernels others damaged.

Kept over restarts of the daemon, and void after a reboot, which no process outlives; so nothing here is forced to the disk.  A file that
is lost or cannot be written costs a warning that somebody would have had, and nothing else.  Threads may share one.
"""

from __future__ import annotations

import json
import logging
import threading
import time
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from npgxd.store.state import StateDirectory

log = logging.getLogger(__name__)

NAME: Final = "op_library.json"
_MAX_BYTES: Final = 32 * 1024 * 1024
_REMEMBERED: Final = 20_000
_OPEN: Final = float("inf")
Key = tuple[str, str]
"""Op type and simplified key."""


def since_boot() -> float:
    """Seconds since boot, as the starts of processes are told."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Past:
    """One root's past. Without a state directory nothing is kept."""

    def __init__(self, state: StateDirectory | None = None, boot: str = "") -> None:
        self._state = state
        self._boot = boot
        self._lock = threading.Lock()
        self._root = ""
        self._before: dict[Key, dict[str, float]] = {}
        """Key -> what has had it before (ids or paths), and until when at last, in seconds since boot."""
        self._replacing: dict[Key, tuple[str, float | None]] = {}
        """Keys that are about to change hands -> what has them, and what was said of that before."""
        self._hurt: dict[str, str] = {}
        """Lease -> what was done to its kernels."""
        self._load()

    # ---- keys --------------------------------------------------------------------------------------------------------

    def of_root(self, root: str) -> None:
        """It is this root that is spoken of from now on; what is known of another one is forgotten."""
        with self._lock:
            if root != self._root:
                self._root, self._before = root, {}

    def replacing(self, occupants: Mapping[Key, str]) -> None:
        """These keys are about to change hands; until ``replaced`` says when, they may have done so at any time."""
        with self._lock:
            self._undo()
            if not occupants:
                return
            for key, occupant in occupants.items():
                known = self._before.pop(key, {})
                self._replacing[key] = (occupant, known.get(occupant))
                self._before[key] = {**known, occupant: _OPEN}
            while len(self._before) > _REMEMBERED:
                del self._before[next(iter(self._before))]
            self._write()

    def replaced(self, at: float | None) -> None:
        """They have changed hands by ``at`` (seconds since boot); None: nothing has come of it."""
        with self._lock:
            if not self._replacing:
                return
            if at is None:
                self._undo()
            else:
                for key, (occupant, _) in self._replacing.items():
                    if key in self._before:
                        self._before[key][occupant] = at
                self._replacing = {}
            self._write()

    def earlier(self, key: Key, since: float, *, but: str) -> str:
        """What else than ``but`` had the key at ``since`` or later and has it no more; "" if nothing."""
        before = self._before.get(key, {})
        return next((occupant for occupant, until in before.items() if until >= since and occupant != but), "")

    # ---- leases ------------------------------------------------------------------------------------------------------

    def hurt(self, leases: Mapping[str, str], there: Collection[str]) -> None:
        """Kernels of these leases were damaged, with what to say of it; of all leases only those that are ``there`` are remembered."""
        with self._lock:
            self._hurt = {lease: said for lease, said in {**self._hurt, **leases}.items() if lease in there}
            self._write()

    def hurt_of(self, leases: Iterable[str]) -> str:
        """What was done to the kernels of these leases; "" if nothing."""
        return next((self._hurt[lease] for lease in leases if lease in self._hurt), "")

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _undo(self) -> None:
        for key, (occupant, until) in self._replacing.items():
            known = self._before.get(key, {})
            known.pop(occupant, None)
            if until is not None:
                known[occupant] = until
        self._replacing = {}

    def _write(self) -> None:
        if self._state is None:
            return
        before = [
            [*key, occupant, None if until == _OPEN else until]
            for key, occupants in self._before.items()
            for occupant, until in occupants.items()
        ]
        said = {"boot": self._boot, "root": self._root, "before": before, "hurt": self._hurt}
        try:
            path = self._state.path / NAME
            self._state.disk.write_file(path, json.dumps(said).encode(), 0o600, staging=self._state.staging, durable=False)
        except StoreError as error:
            log.warning("what was done to the op library is forgotten at the next start: %s", error)

    def _load(self) -> None:
        """What an earlier life of this boot wrote down; a key that was about to change hands then has done so by now."""
        if self._state is None:
            return
        try:
            said = json.loads(read_plain(self._state.path / NAME, _MAX_BYTES))
            if said["boot"] != self._boot:
                return
            now = since_boot()
            before: dict[Key, dict[str, float]] = {}
            for op_type, key, occupant, until in said["before"]:
                before.setdefault((str(op_type), str(key)), {})[str(occupant)] = now if until is None else float(until)
            self._root, self._before = str(said["root"]), before
            self._hurt = {str(lease): str(text) for lease, text in said["hurt"].items()}
        except (StoreError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, StoreError) and error.no_means:
                raise
            log.debug("nothing is known of the op library's past: %s", error)
