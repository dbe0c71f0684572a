"""Getting what a settled round gives: its view under a lease, and the run packages that served it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, NamedTuple

from npgxd.client.connection import DaemonSilent
from npgxd.client.default_root import RootDiffers, check_root, default_root
from npgxd.client.lease import LeaseGone, StoreNotVisible, below, hold, store_root
from npgxd.errors import DaemonUnavailable, NpgxError, ProtocolError, RequestRefused
from npgxd.wire.messages import Lease, Leased, LeaseOffer, Package, RoundProgress
from npgxd.wire.states import Reason, Strategy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from npgxd.client.journey import Journey
    from npgxd.client.session import Session

log = logging.getLogger("npgxd")

_TRIES = 3
_FORGOTTEN = frozenset({"UNKNOWN_VIEW", "UNKNOWN_LEASE"})


class Fetched(NamedTuple):
    """A leased view and the packages; or the reason why there is no view. ``root``: with a shared root, what to load instead of it."""

    view: Path | None = None
    root: Path | None = None
    packages: tuple[tuple[str, Path], ...] = ()
    reason: Reason = Reason.STORE_NOT_VISIBLE
    problem: str = ""
    hint: str = ""


def fetch(
    session: Session, environ: Mapping[str, str], journey: Journey, settled: RoundProgress
) -> tuple[Fetched, RoundProgress]:
    """Lease the view of a settled round; where the daemon no longer knows it, settle the round again (nothing compiles twice).

    Raises as ``Journey.settle`` does when no daemon is left to lease from.
    """
    for tried in range(1, _TRIES + 1):
        try:
            return _fetch(session, environ, settled), settled
        except StoreNotVisible as error:
            return Fetched(problem=error.message, hint=error.hint), settled
        except RootDiffers as error:  # it may have been made anew a moment ago
            if tried == _TRIES:
                return Fetched(problem=error.message, hint=error.hint), settled
            reason: NpgxError = error
        except DaemonSilent:
            raise
        except (DaemonUnavailable, LeaseGone) as error:
            reason = error
        except RequestRefused as error:
            if error.refusal not in _FORGOTTEN:
                raise
            reason = error
        log.debug("npgxd: lease, try %d: %s", tried, reason)
        settled = journey.again()
    return Fetched(reason=Reason.REFUSED, problem=f"no lease after {_TRIES} tries: {reason.message}", hint=reason.hint), settled


def _fetch(session: Session, environ: Mapping[str, str], settled: RoundProgress) -> Fetched:
    result = settled.result
    if result is None or (result.view is None and not result.packages):
        return Fetched()
    try:
        root = store_root(session.welcome(), environ)
    except StoreNotVisible as error:
        if result.view is not None:
            raise
        log.debug("npgxd: run packages: %s", error)
        return Fetched()
    own = default_root(environ) if result.view is not None and result.strategy is Strategy.SHARED_ROOT else None
    view = _lease(session, root, result.view, own, result.root) if result.view is not None else None
    return Fetched(view=view, root=own, packages=_packages(root, result.packages))


def _lease(session: Session, root: Path, view: str, own: Path | None, marker: str) -> Path:
    """Hold the view's lease; with a shared root, say so only if ``own``, which this process will load from, is the daemon's root."""
    reply = session.request(Lease(view=view)).message
    if not isinstance(reply, LeaseOffer):
        raise ProtocolError(f"the daemon answers lease with {reply.op!r}")
    held = hold(root, reply)
    if own is not None:
        check_root(own, marker)
    try:
        session.request(Leased(lease=held.lease))
    except (DaemonUnavailable, ProtocolError) as error:
        log.debug("npgxd: the lease is held, and the daemon was not told: %s", error)  # the lock is what counts
    return held.view


def _packages(root: Path, packages: tuple[Package, ...]) -> tuple[tuple[str, Path], ...]:
    found: list[tuple[str, Path]] = []
    for package in packages:
        try:
            found.append((package.name, below(root, package.path)))
        except StoreNotVisible as error:
            log.debug("npgxd: run package %s: %s", package.name, error)
    return tuple(found)
