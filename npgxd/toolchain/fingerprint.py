"""Fingerprints: what decides a kernel's bytes beside its record and its options, per op type, from content alone.

Promise: one changed byte in a file that an op resolves to changes that op's fingerprint, and no other op's; a file that
nothing resolves to changes none; a path that is searched before another counts from the moment it gains a file; and the same
files at another place have the same fingerprints. In every fingerprint are the compiler's bytes, every ``version.info`` of the
CANN home, the full SoC name and the core counts.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.errors import ToolchainError
from npgxd.toolchain._glance import Glance, Look, MovedError
from npgxd.toolchain._resolve import Resolution, Resolver
from npgxd.wire.identity import VERSION_FILE, OpRoot, digest_of_roots, environment_roots, package_versions
from npgxd.wire.messages import ToolchainIdentity
from npgxd.wire.stat_memo import StatMemo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npgxd.toolchain.discovery import Toolchain

FINGERPRINT_SCHEMA: Final = 1
SUMMARY_LIFE_S: Final = 2.0
"""How long ``summary`` and ``identity`` may go without looking at every file again, while no op is seen to change."""
MAX_OPS: Final = 4096
"""How many op types are remembered."""

_ATTEMPTS: Final = 4
_GLANCE_LIFE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class _Ground:
    """What counts for every op, and the roots in effect."""

    base: dict[str, object]
    roots: tuple[OpRoot, ...]
    look: Look


@dataclass(frozen=True, slots=True)
class _Made:
    fingerprint: str
    resolution: Resolution
    look: Look


class Fingerprinter:
    """The fingerprints of one toolchain, as of the last ``refresh``. ``memo``: where digests are kept between runs of the daemon.

    ToolchainError at construction, and from ``op``, if a file that counts cannot be read.  ``clock`` is monotonic seconds, ``now`` the
    wall clock in nanoseconds, as files carry it.
    """

    def __init__(
        self,
        toolchain: Toolchain,
        memo: Path | None,
        *,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], int] = time.time_ns,
    ) -> None:
        self._toolchain = toolchain
        self._memo = StatMemo(memo, now=now)
        self._clock = clock
        self._resolver = Resolver(toolchain.family)
        self._known: dict[str, _Made] = {}
        self._whole: tuple[float, str, ToolchainIdentity] | None = None
        self._ground = self._stand(Glance(self._memo))
        self._problem: ToolchainError | None = None
        self._glance: tuple[float, Glance] | None = None

    def op(self, op_type: str) -> str:
        """The fingerprint of an op type, 64 hexadecimal digits; an op that no root names has one too, over all of them."""
        return self._op(op_type, None).fingerprint

    def resolution(self, op_type: str) -> Resolution:
        """What an op type resolves to: for people who ask why a kernel was compiled again."""
        return self._op(op_type, None).resolution

    def summary(self, *, look: bool = True) -> str:
        """One fingerprint over the whole toolchain, 64 hexadecimal digits: for status and comparison, in no key.

        Without ``look`` it is as of the last look at all its files, which are thousands, if no op was seen to change since.
        """
        return self._all()[1] if look or self._whole is None else self._whole[1]

    def ground(self) -> str:
        """One fingerprint over what counts for every op (the compiler, the versions, the SoC), as of the last ``refresh``."""
        if self._problem is not None:
            raise self._problem
        return _digest(self._ground.base)

    def identity(self) -> ToolchainIdentity:
        """What a rank with this very toolchain says of it in its hello."""
        return self._all()[2]

    def refresh(self) -> frozenset[str]:
        """Look again at everything that fingerprints were made of; the op types whose fingerprint changed or cannot be told."""
        self._glance = None
        glance = self._recent()
        before = {op_type: made.fingerprint for op_type, made in self._known.items()}
        try:
            self._problem = None
            if not self._ground.look.holds(glance):
                self._move_to(self._stand(glance))
        except ToolchainError as error:
            self._problem = error
            self._known.clear()
        for op_type in before:
            self._look_again(op_type, glance)
        changed = frozenset(op_type for op_type, old in before.items() if not self._is_still(op_type, old))
        if changed:
            self._whole = None
        self._resolver.forget()
        self._memo.save()
        return changed

    # ---- single ops --------------------------------------------------------------------------------------------------

    def _op(self, op_type: str, glance: Glance | None) -> _Made:
        if self._problem is not None:
            raise self._problem
        if op_type not in self._known:
            made = self._make(op_type, glance or self._recent())
            while len(self._known) >= MAX_OPS:  # names come from clients
                del self._known[next(iter(self._known))]
            self._known[op_type] = made
        return self._known[op_type]

    def _recent(self) -> Glance:
        """A glance that several ops asked for in a row can share."""
        now = self._clock()
        if self._glance is None or not 0 <= now - self._glance[0] < _GLANCE_LIFE_S:
            self._glance = (now, Glance(self._memo))
        return self._glance[1]

    def _make(self, op_type: str, glance: Glance) -> _Made:
        problem = ""
        for _ in range(_ATTEMPTS):
            look = Look(glance)
            try:
                found = self._resolver.resolve(op_type, self._ground.roots, look)
            except MovedError as moved:
                problem, glance = str(moved), Glance(self._memo)
                continue
            facts = {"op": op_type, "base": self._ground.base, "entry": found.entry, "files": found.files}
            return _Made(_digest(facts), found, look)
        raise ToolchainError(
            f"{problem} does not hold still", hint="wait until the installation under way has ended", path=problem
        )

    def _look_again(self, op_type: str, glance: Glance) -> None:
        with contextlib.suppress(ToolchainError):  # then it is not known any more, and whoever asks is told why
            made = self._known.pop(op_type, None)
            if made is not None and made.look.holds(glance):
                self._known[op_type] = made
            else:
                self._op(op_type, glance)

    def _is_still(self, op_type: str, fingerprint: str) -> bool:
        made = self._known.get(op_type)
        return made is not None and made.fingerprint == fingerprint

    # ---- what counts for all -----------------------------------------------------------------------------------------

    def _stand(self, glance: Glance) -> _Ground:
        look = Look(glance)
        own = self._toolchain
        return _Ground(
            {
                "schema": FINGERPRINT_SCHEMA,
                "soc": own.soc,
                "cores": None if own.cores is None else [own.cores.vector, own.cores.cube],
                "op_compiler": look.content(str(own.op_compiler)),
                "packages": _packages(str(own.home), look),
            },
            self._roots(look),
            look,
        )

    def _roots(self, look: Look) -> tuple[OpRoot, ...]:
        """The roots in effect; also a root that is named and not there is looked at, as it may come."""
        environment = self._toolchain.environment
        for entry in environment.get("ASCEND_CUSTOM_OPP_PATH", "").split(":"):
            if entry:
                look.names(entry)
        look.names(f"{self._toolchain.opp}/vendors")
        look.content(f"{self._toolchain.opp}/vendors/config.ini")
        return environment_roots(environment)

    def _move_to(self, ground: _Ground) -> None:
        if ground.roots != self._ground.roots or ground.base != self._ground.base:
            self._known.clear()
            self._whole = None
        self._ground = ground

    def _all(self) -> tuple[float, str, ToolchainIdentity]:
        now = self._clock()
        if self._whole is None or now - self._whole[0] >= SUMMARY_LIFE_S:
            own = self._toolchain
            try:
                roots = digest_of_roots(environment_roots(own.environment), self._memo)
            except OSError:
                roots = ""  # it cannot be told, as for a rank
            told = ToolchainIdentity(soc=own.soc, cores=own.cores, versions=package_versions(own.home), roots=roots)
            self._whole = (now, _digest({"base": self._ground.base, "roots": roots}), told)
            self._memo.save()
        return self._whole


def _packages(home: str, look: Look) -> dict[str, str]:
    """Every package's ``version.info``, by digest (the layouts are those of ``npgxd.wire.identity.version_files``)."""
    found: dict[str, str] = {}
    for directory in (f"{home}/share/info", home):
        for name in look.names(directory):
            digest = look.content(f"{directory}/{name}/{VERSION_FILE}")
            if digest is not None:
                found.setdefault(name, digest)
    digest = look.content(f"{home}/{VERSION_FILE}")
    return found if digest is None else {"cann": digest, **found}


def _digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
