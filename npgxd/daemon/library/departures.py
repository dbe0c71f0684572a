"""Kernels that have left a shared op library's index: their files wait for every process that may have loaded them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

    from npgxd.oplib.users import User


@dataclass(frozen=True, slots=True)
class Witnesses:
    """Who may have loaded what was in the index a moment ago: visible processes; of those that are not visible here, leases and sessions."""

    users: frozenset[User] = frozenset()
    hidden: frozenset[str] = frozenset()


class Departures:
    """Kernels by the first digits of their ids. Nothing here is kept over a restart: then all wait for whoever runs at that time."""

    def __init__(self) -> None:
        self._waiting: dict[str, Witnesses] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, kernel: str) -> bool:
        return kernel in self._waiting

    @property
    def users(self) -> frozenset[User]:
        """Every process that is waited for."""
        return frozenset(user for witnesses in self._waiting.values() for user in witnesses.users)

    def begin(self, kernels: Iterable[str], witnesses: Witnesses) -> None:
        """These have no entry any more, as of just before ``witnesses`` were looked for; those that wait already go on waiting."""
        for kernel in kernels:
            self._waiting.setdefault(kernel, witnesses)

    def again(self, kernels: Iterable[str]) -> None:
        """These are needed again, or gone."""
        for kernel in kernels:
            self._waiting.pop(kernel, None)

    def over(self, running: Collection[User], there: Collection[str]) -> frozenset[str]:
        """The kernels whose files may go, when of all witnesses only these are left."""
        return frozenset(
            kernel
            for kernel, witnesses in self._waiting.items()
            if witnesses.users.isdisjoint(running) and witnesses.hidden.isdisjoint(there)
        )
