"""Telling the daemon that this process does not use static kernels: off is a state of its own, and not the silence of a perfect cache.

Promise: it costs the program one thread for a moment, reads nothing of CANN, and is taken back when a graph does ask for static kernels.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from npgxd.client import Client

DETAIL = "option static_kernel_compile is not on"


class OptionOff:
    """This process, as one without static kernels."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._client: Client | None = None
        self._over = False

    def tell(self, graph: str) -> None:
        """A graph was compiled with the option off. Told once, unless another graph of this process has it on."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            if self._over or self._client is not None:
                return
            from npgxd.client import Client  # noqa: PLC0415 -- a start from the compile cache need not import it here

            self._client = Client(compares=False)
        _begin(self._report, self._client, graph)

    def take_back(self) -> None:
        """A graph of this process asks for static kernels: that one's state is the process's."""
        if self._pid != os.getpid():
            self._begin()
        with self._lock:
            client, self._client, self._over = self._client, None, True
        if client is not None:
            _begin(client.close)

    def _report(self, client: Client, graph: str) -> None:
        from npgxd.wire.states import ClientState, Reason  # noqa: PLC0415 -- the same

        client.report(ClientState.DISABLED, Reason.OPTION_OFF, detail=DETAIL, graph=graph)
        if self._over:
            client.close()


def _begin(act: Callable[..., None], *given: object) -> None:
    """In a thread of its own; where none can be had it is not told."""
    with contextlib.suppress(RuntimeError):
        threading.Thread(target=act, args=given, name="npgxd option off", daemon=True).start()


OFF = OptionOff()
"""This process's."""
