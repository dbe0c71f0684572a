"""Whose a compile-cache entry is: the uid that the kernel tells, and by configuration the user namespace that its process is in.

An entry is code, so it goes only where its maker could have put it anyway.  Processes in the daemon's own user namespace, and those whose
namespace this daemon may not see (it needs to be root, or the same user), are told apart by uid alone.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from npgxd.daemon.sessions import Session

BY_NAMESPACE: Final = "namespace"
BY_USER: Final = "user"
_PROC: Final = Path("/proc")


class Scopes:
    """The scope of each session; found out once, since a process cannot leave a user namespace for another's unnoticed by its ``exec``."""

    def __init__(self, by: str, trusted: tuple[int, ...], *, proc: Path = _PROC) -> None:
        self._by = by
        self._trusted = trusted
        self._proc = proc
        self._own = self._namespace("self")
        self._boot = (proc / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()[:8]
        self._known: dict[str, str] = {}

    def of(self, session: Session) -> str:
        """The scope of what a session publishes."""
        known = self._known.get(session.id)
        if known is None:
            known = self._known[session.id] = self._scope(session.peer.uid, session.peer.pid)
        return known

    def known(self, session: Session) -> str | None:
        """The scope of a session, if it was found out. It may be asked in another thread."""
        return self._known.get(session.id)

    def trusted(self, session: Session) -> list[str]:
        """Scopes of the publishers whose proven entries this session may have beside its own, by the administrator's word."""
        return [str(uid) for uid in self._trusted if uid != session.peer.uid]

    def forget(self, session: Session) -> None:
        """A session has ended."""
        self._known.pop(session.id, None)

    def _scope(self, uid: int, pid: int) -> str:
        if self._by == BY_USER or not pid:
            return str(uid)
        found = self._namespace(str(pid))
        # The number of a namespace is given again after its end, and after a boot.
        return str(uid) if found in {"", self._own} else f"{uid}/{found}@{self._boot}"

    def _namespace(self, pid: str) -> str:
        """The name of a process's user namespace; empty if it cannot be seen."""
        try:
            return os.readlink(self._proc / pid / "ns/user")  # noqa: PTH115 -- not a path: user:[4026531837]
        except OSError:
            return ""
