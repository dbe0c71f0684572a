"""The operator dump switch: one holder per process, as CANN has it (docs/cann.md, "The dump").

The Ascend profiler's ``record_op_args=True`` uses the same switch.  Everyone who takes it goes through this object: the recorders
by ``hold``, others through the wrapped functions of torch_npu (npugraph_ex/recording/npu_dump.py) or, where there is no NPU, by
``ask`` and ``give_back``.  A second start is never let through: it would fail, and its stop would end the holder's dump.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from npugraph_ex import _notices
from npugraph_ex.recording.recorded import DumpSwitchHeld

if TYPE_CHECKING:
    from collections.abc import Iterator

PROFILER_HINT = (
    "Profile without record_op_args, or with schedule(skip_first=1) or more, so that it starts after each graph's first run"
)


class Hold:
    """One recording's time with the switch; ``contender`` names who asked for it meanwhile."""

    def __init__(self, owner: str) -> None:
        self.owner = owner
        self.contender = ""

    def problem(self) -> DumpSwitchHeld | None:
        """What to report if someone else wanted the switch during this recording."""
        if not self.contender:
            return None
        return DumpSwitchHeld(
            f"{self.contender} asked for the operator dump while {self.owner} was being recorded, and was refused",
            hint=PROFILER_HINT,
            holder=self.contender,
        )


class DumpSwitch:
    """At most one holder at a time; all others are told who it is."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hold: Hold | None = None
        self._other = ""

    @contextmanager
    def hold(self, owner: str) -> Iterator[Hold]:
        """Take the switch for a recording, or raise DumpSwitchHeld with the holder's name; never waits."""
        hold = Hold(owner)
        with self._lock:
            holder = self._other or (self._hold.owner if self._hold else "")
            if holder:
                raise DumpSwitchHeld(
                    f"the operator dump of this process is held by {holder}, so {owner} cannot be recorded",
                    hint=PROFILER_HINT if self._other else "It is recorded at its next call",
                    holder=holder,
                    ours=not self._other,
                )
            self._hold = hold
        try:
            yield hold
        finally:
            with self._lock:
                self._hold = None

    def ask(self, name: str) -> bool:
        """Someone else wants the switch: True if it is theirs now, False (and told so once) while a recording has it."""
        with self._lock:
            hold = self._hold
            if hold is None and not self._other:
                self._other = name
                return True
            if hold is None:
                return False
            hold.contender = hold.contender or name
        _notices.once(
            ("dump switch", name),
            logging.WARNING,
            f"{name} asked for the operator dump while {hold.owner} is being recorded; it is refused. {PROFILER_HINT}",
        )
        return False

    def give_back(self) -> bool:
        """Someone else is done: True if they did hold it. A refused one's stop does not end a recording."""
        with self._lock:
            held, self._other = bool(self._other), ""
            return held

    def recording_here(self) -> bool:
        """A recording holds the switch now."""
        return self._hold is not None


SWITCH = DumpSwitch()
"""This process's switch."""
