"""A look at this process's CANN before the daemon asks for it, beside whatever the process does meanwhile.

Looking at tens of thousands of files takes as long as all else that a hello needs together; a graph that has just come to be
compiled leaves time for it. Promise: nothing waits for the look but the hello, which would else make it itself; an exit is not held
up, a forked child looks for itself, and where no daemon listens nothing is looked at.
"""

from __future__ import annotations

import contextlib
import threading
import time
from typing import TYPE_CHECKING, Final

from npgxd.errors import NpgxError
from npgxd.wire.endpoint import find_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from npgxd.wire.identity import OpRoot

LIFE_S: Final = 60.0
"""What was seen so long ago is looked at again."""


class EarlyLook:
    """One look, in a thread of its own. ``environ`` is read now; ``clock`` is monotonic seconds."""

    def __init__(self, environ: Mapping[str, str], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._environ = dict(environ)
        self._clock = clock
        self._began = clock()
        self._made: tuple[tuple[OpRoot, ...], Path | None, str] | None = None
        self._thread = threading.Thread(target=self._run, name="npgxd early look", daemon=True)
        with contextlib.suppress(RuntimeError):  # no thread can be had: the hello looks
            self._thread.start()

    def digest(self, roots: tuple[OpRoot, ...], memo: Path | None) -> str:
        """As ``roots_digest``: what the look found, if it was of these roots and not long ago, else what is there now."""
        from npgxd.wire.identity import roots_digest  # noqa: PLC0415 -- as late as its caller imports it

        if self._thread.ident is not None:
            self._thread.join()  # in a forked child it counts as ended
        made = self._made
        if made is not None and made[:2] == (roots, memo) and made[2] and self._clock() - self._began < LIFE_S:
            return made[2]
        return roots_digest(roots, memo)

    def _run(self) -> None:
        from npgxd.wire.identity import default_memo, environment_roots, roots_digest  # noqa: PLC0415 -- not in the caller's time

        with contextlib.suppress(NpgxError, OSError, ValueError):  # no daemon, or a broken environment: nothing to tell
            find_socket(self._environ)
            roots, memo = environment_roots(self._environ), default_memo(self._environ)
            self._made = (roots, memo, roots_digest(roots, memo))
