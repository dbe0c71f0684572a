"""What each user may have under way: counted as rounds come and go, and refused clearly at a limit, so that nobody keeps another out.

Pure state, no I/O.  Promise: a round whose kernels are all known is never refused; what is refused leaves no trace; a user at a limit is
no other user's trouble; and the sums change by what one round brings, never by a walk over all rounds.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from npgxd.daemon.refusals import Refused
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Collection

    from npgxd.config import LimitsSection

MB: Final = 1_000_000
_SHOWN: Final = 50


@dataclass(slots=True)
class _Account:
    """What one user has under way."""

    rounds: int = 0
    size: int = 0
    keys: Counter[str] = field(default_factory=Counter)
    """key -> how many of the user's rounds wait for it."""


@dataclass(frozen=True, slots=True)
class _Charge:
    uid: int
    keys: tuple[str, ...]
    size: int


class Quotas:
    """The accounts of all users of a daemon. A kernel that several rounds of one user wait for is counted once."""

    def __init__(self, limits: LimitsSection) -> None:
        self._limits = limits
        self._accounts: dict[int, _Account] = {}
        self._charged: dict[str, _Charge] = {}
        self._queued = 0

    def check(self, uid: int, keys: Collection[str], size: int) -> None:
        """Refused (``LIMIT``), with what and how many, if a round that waits for ``keys`` and has ``size`` bytes would be too much."""
        limits, has = self._limits, self._accounts.get(uid, _Account())
        more = sum(key not in has.keys for key in keys)
        if has.rounds + 1 > limits.rounds:
            raise _refused(uid, counted(has.rounds, "unsettled round"), "rounds", limits.rounds)
        if has.size + size > limits.records_mb * MB:
            told = f"{has.size / MB:.1f} MB of records in unsettled rounds, and {size / MB:.1f} MB more were sent"
            raise _refused(uid, told, "records_mb", limits.records_mb)
        if len(has.keys) + more > limits.keys:
            raise _refused(uid, f"{counted(len(has.keys), 'kernel')} under way, and asked for {more} more", "keys", limits.keys)
        if self._queued + more > limits.queue and len(has.keys) + more > self._share(uid):
            raise Refused(
                "LIMIT",
                f"{counted(self._queued, 'kernel is', 'kernels are')} under way on this node, of at most {limits.queue} ([limits] queue); "
                f"user {uid} has {len(has.keys)} of them and asked for {more} more",
                hint="submit the round again when some are done (npgxctl status), or let an administrator raise the limit",
            )

    def charge(self, name: str, uid: int, keys: Collection[str], size: int) -> None:
        """A round is under way, whatever the limits say: it was checked, or was accepted in an earlier life of the daemon."""
        self.release(name)
        account = self._accounts.setdefault(uid, _Account())
        before = len(account.keys)
        account.rounds += 1
        account.size += size
        account.keys.update(keys)
        self._queued += len(account.keys) - before
        self._charged[name] = _Charge(uid, tuple(keys), size)

    def release(self, name: str) -> None:
        """A round is settled; nothing happens if it was not under way."""
        charge = self._charged.pop(name, None)
        if charge is None:
            return
        account = self._accounts[charge.uid]
        before = len(account.keys)
        account.rounds -= 1
        account.size -= charge.size
        for key in charge.keys:
            account.keys[key] -= 1
            if not account.keys[key]:
                del account.keys[key]
        self._queued += len(account.keys) - before
        if not account.rounds:
            del self._accounts[charge.uid]

    def check_connection(self, uid: int, connections: int) -> None:
        """Refused (``LIMIT``) if a user may not have one more connection than ``connections``."""
        if connections + 1 > self._limits.connections:
            raise Refused(
                "LIMIT",
                f"user {uid} has {connections} connections; at most {self._limits.connections} are allowed ([limits] connections)",
                hint="npgxctl status lists them; end some of them, or let an administrator raise the limit",
            )

    def check_pin(self, pins: int) -> None:
        """Refused (``LIMIT``) if there may not be one more pin than ``pins``."""
        if pins + 1 > self._limits.pins:
            raise Refused(
                "LIMIT",
                f"there are {pins} pins, of at most {self._limits.pins} ([limits] pins)",
                hint="npgxctl pins lists them; npgxctl unpin ends one",
            )

    def describe(self) -> list[dict[str, int]]:
        """For the status document: who has most under way."""
        most = sorted(self._accounts.items(), key=lambda item: (-len(item[1].keys), -item[1].rounds))[:_SHOWN]
        return [{"uid": uid, "rounds": has.rounds, "keys": len(has.keys), "bytes": has.size} for uid, has in most]

    def _share(self, uid: int) -> float:
        """What a user may have of a full queue: an equal part of it, among those who have something in it."""
        return self._limits.queue / len(self._accounts.keys() | {uid})


def _refused(uid: int, told: str, what: str, most: int) -> Refused:
    return Refused(
        "LIMIT",
        f"user {uid} has {told}; at most {most} are allowed ([limits] {what})",
        hint="submit the round again when earlier ones are settled (npgxctl status), or let an administrator raise the limit",
    )
