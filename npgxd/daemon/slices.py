"""Long acts in short slices: a generator that is driven a little between two looks at the sockets."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from npgxd.errors import NpgxError
from npgxd.oplib.sweeping import Step

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

T = TypeVar("T")

SLICE_S: Final = 0.002
"""How long one slice may take; a single step that takes longer is not interrupted."""


class Task(Generic[T]):
    """One long act. ``result`` is set when it ended well, ``error`` when it did not; ``step`` says how far it is."""

    def __init__(self, steps: Generator[Step, None, T], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._steps = steps
        self._clock = clock
        self.began = clock()
        self.busy_s = 0.0
        self.step = Step("starting", 0, 0)
        self.result: T | None = None
        self.error: NpgxError | None = None
        self.ended = False

    def run(self, slice_s: float = SLICE_S, *, at_least_once: bool = False) -> bool:
        """Work for one slice, or until it waits for others; True when it has ended."""
        begun = self._clock()
        try:
            if at_least_once or self.step.waits:
                self.step = next(self._steps)
            while not self.step.waits and self._clock() - begun < slice_s:
                self.step = next(self._steps)
        except StopIteration as end:
            self.result = end.value
            self.ended = True
        except NpgxError as error:
            self.error = error
            self.ended = True
        except OSError as error:  # a file that changed under a walk; what was done until then is whole
            self.error = NpgxError(
                f"{error.strerror or error}: {error.filename}",
                hint="npgxctl doctor says what is closed or full; then run it again",
            )
            self.ended = True
        self.busy_s += self._clock() - begun
        return self.ended

    def stop(self) -> None:
        """End it where it is."""
        self._steps.close()
        self.ended = True
