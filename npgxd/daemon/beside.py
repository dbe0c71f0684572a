"""Beside the loop: one thread does what only waits for the disk, one act after the other, while the loop answers ranks.

Promise: what is begun is done before anything that can wait (``later``), and in the order in which it was begun; what an act raises is told
to whoever began it.  The acts touch nothing but the disk: what the loop knows changes in the loop alone.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING, Final, TypeVar

from npgxd.daemon.bell import Bell
from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.oplib.sweeping import Step, Steps

log = logging.getLogger(__name__)

T = TypeVar("T")

END_S: Final = 10.0
"""How long an end waits for what is under way or was put off: what is left of that lies in staging, and is dropped at the next start."""


class Beside:
    """The thread of one daemon; it is there from the first act on."""

    def __init__(self) -> None:
        self._news = threading.Condition()
        self._first: deque[Callable[[], None]] = deque()
        self._later: deque[Callable[[], None]] = deque()
        self._busy = self._ending = False
        self._thread: threading.Thread | None = None
        self._ended = Bell()

    def fileno(self) -> int:
        """Readable when an act that was begun has ended."""
        return self._ended.fileno()

    def rest(self) -> None:
        """What has ended was seen."""
        self._ended.hush()

    def begin(self, act: Callable[[], T]) -> Future[T]:
        """Have it done next."""
        future: Future[T] = Future()

        def told() -> None:
            try:
                future.set_result(act())
            except BaseException as error:  # noqa: BLE001 -- it is raised where the act was begun
                future.set_exception(error)
            self._ended.ring()

        self._put(self._first, told)
        return future

    def later(self, act: Callable[[], object], what: str) -> None:
        """Have it done when nothing else is to be done; where it fails, the log says so of ``what``."""

        def told() -> None:
            try:
                act()
            except (NpgxError, OSError) as error:
                log.warning("%s cannot be removed now: %s", what, error)
            except Exception:  # a fault of ours there must not end the thread
                log.exception("internal error beside the loop, at %s", what)

        self._put(self._later, told)

    def idle(self, limit_s: float) -> bool:
        """Wait, for ``limit_s`` at most, until there is nothing to do; whether that is so."""
        with self._news:
            return self._news.wait_for(lambda: not (self._first or self._later or self._busy), limit_s)

    def close(self, limit_s: float = END_S) -> None:
        """Let what there is be done, for ``limit_s`` at most, and end. Closed again it does nothing."""
        if self._ending:
            return
        done = self.idle(limit_s)
        with self._news:
            self._ending = True
            self._news.notify_all()
        if not done:
            log.warning("the disk did not answer within %.0f s: what was to be removed is removed at the next start", limit_s)
            return
        if self._thread is not None:
            self._thread.join()
        self._ended.close()

    # ---- inside ------------------------------------------------------------------------------------------------------

    def _put(self, queue: deque[Callable[[], None]], act: Callable[[], None]) -> None:
        if self._thread is None and not self._start():
            act()
            return
        with self._news:
            queue.append(act)
            self._news.notify_all()

    def _start(self) -> bool:
        """Whether there is a thread from now on: where no more threads may be started, acts are done where they are begun."""
        # A daemon thread: a disk that never answers must not keep the interpreter from its end.
        thread = threading.Thread(target=self._work, name="disk", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            log.warning("ranks wait for the disk, too: %s", error)
            return False
        self._thread = thread
        return True

    def _work(self) -> None:
        while True:
            with self._news:
                self._busy = False
                self._news.notify_all()
                self._news.wait_for(lambda: self._first or self._later or self._ending)
                if self._ending:
                    return
                act = (self._first or self._later).popleft()
                self._busy = True
            act()


def until(asked: Future[T], step: Step) -> Steps[T]:
    """What was begun comes to, for a long act that has nothing else to do meanwhile; ``step`` says how far that is."""
    while not asked.done():
        yield step._replace(waits=True)
    return asked.result()
