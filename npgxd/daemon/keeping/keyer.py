"""From what a rank sends to kernel keys: the daemon's toolchain, watched for change, and everything that is computed from it."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from npgxd.compile.probe import Asking, probe, remembered
from npgxd.daemon.demand.flights import Need
from npgxd.daemon.refusals import Refused
from npgxd.errors import NpgxError, ToolchainError
from npgxd.toolchain.discovery import Toolchain, ToolchainSettings, discover
from npgxd.toolchain.fingerprint import Fingerprinter
from npgxd.toolchain.flags import CompilerFlags
from npgxd.toolchain.key import kernel_key
from npgxd.toolchain.record import Record, RecordParser
from npgxd.wire.identity import compare
from npgxd.wire.messages import CompileOptions, Difference, Rejected, ToolchainIdentity, ToolchainInfo
from npgxd.wire.soc import is_supported

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

log = logging.getLogger(__name__)

REFRESH_S = 0.1
"""A look at the toolchain's files counts this long."""
MISSING_S = 2.0
"""A toolchain that was not found is looked for again after this long, or ten times as long as the search took."""

MAX_NEEDS: Final = 4096
"""Needs that are remembered; those that were made first are forgotten first."""
SHARED_BYTES: Final = 4096
"""Needs of larger records, of which there are few, are not."""
_Under = tuple[str, tuple[tuple[str, str], ...], CompilerFlags, int]
"""What a need depends on beside its record: the operator's fingerprint, the options, the compiler's flags, the user."""


class Keyer:
    """The toolchain in use, or the reason why there is none; records in, needs (keys) out."""

    def __init__(self, settings: ToolchainSettings, environ: Mapping[str, str], memo: Path) -> None:
        self._settings = settings
        self._environ = dict(environ)
        self._memo = memo
        self._parser = RecordParser()
        self.toolchain: Toolchain | None = None
        self.problem = ""
        self.flags = CompilerFlags()
        self._fingerprints: Fingerprinter | None = None
        self._ground = ""
        self._looked_at = float("-inf")
        self._look_again_at = float("-inf")
        self._needs: OrderedDict[tuple[str, str, str, _Under], Need] = OrderedDict()
        self.moves = 0
        """How often the toolchain was seen to change."""
        self._asking: Asking | None = None
        """A compiler that is asked for its options while everything else goes on."""
        self.find()

    def find(self, *, wait: bool = True) -> None:
        """Look for the toolchain (again); without one the daemon runs on, and says why.

        With ``wait`` a compiler that was never asked is waited for.  Else a new one is taken to have the options of the one before,
        until it has answered; where there was none before, there is none until then.
        """
        try:
            toolchain = discover(self._settings, self._environ)
            flags = probe(toolchain) if wait else self._flags_of(toolchain)
            fingerprints = Fingerprinter(toolchain, self._memo)
            ground = fingerprints.ground()
        except NpgxError as error:
            if str(error) != self.problem:
                log.warning("no toolchain: %s", error)
            self.toolchain, self._fingerprints, self.problem = None, None, str(error)
            return
        self.toolchain, self.flags, self._fingerprints, self._ground = toolchain, flags, fingerprints, ground
        self.problem = ""

    def _flags_of(self, toolchain: Toolchain) -> CompilerFlags:
        known = remembered(toolchain)
        if known is not None:
            return known
        self.close()
        self._asking = Asking(toolchain)
        if self.toolchain is None:
            raise ToolchainError(f"{toolchain.op_compiler} is being asked for its options", hint="ask again in a moment")
        return self.flags

    def _hear(self, now: float) -> None:
        """Take the answer of the compiler that was asked, if there is one."""
        asking, before, found = self._asking, self.flags, self.toolchain is not None
        if asking is None:
            return
        try:
            flags = asking.answer()
        except NpgxError as error:
            self.close()
            self._look_again_at = now + max(MISSING_S, 10 * asking.seconds)
            self.moves += found
            log.warning("no toolchain: %s", error)
            self.toolchain, self._fingerprints, self.problem = None, None, str(error)
        else:
            if flags is None:
                return
            self.close()
            if not found:
                self.find(wait=False)
            elif flags != before:
                log.warning("the compiler takes other options than the one before it")
                self.flags = flags
            self.moves += flags != before if found else self.toolchain is not None

    def close(self) -> None:
        """A compiler that is still being asked is ended."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.close()

    def describe(self) -> str:
        """One line for logs and the service manager."""
        if self.toolchain is None:
            return self.problem
        simulated = "simulated " if self.toolchain.simulated else ""
        return f"{simulated}CANN {self.toolchain.cann_version} for {self.toolchain.soc}"

    @property
    def compiler(self) -> str:
        """Whose start-up and memory are meant where they are learned: op_compiler's of one CANN version, for one SoC; empty without one."""
        return "" if self.toolchain is None else f"{self.toolchain.cann_version}/{self.toolchain.soc}"

    @property
    def info(self) -> ToolchainInfo | None:
        """What a rank is told of the toolchain."""
        return self._info(look=True)

    @property
    def info_lately(self) -> ToolchainInfo | None:
        """The same for people, who may ask again every second: as of the last look at all files."""
        return self._info(look=False)

    def _info(self, *, look: bool) -> ToolchainInfo | None:
        if self.toolchain is None or self._fingerprints is None:
            return None
        return ToolchainInfo(
            soc=self.toolchain.soc,
            family=self.toolchain.family,
            cann_version=self.toolchain.cann_version,
            simulated=self.toolchain.simulated,
            cores=self.toolchain.cores,
            fingerprint=self._fingerprints.summary(look=look),
        )

    def differences(self, rank: ToolchainIdentity) -> tuple[Difference, ...]:
        """In what a rank's toolchain differs from this one; a rank that says nothing of it differs in nothing."""
        if self._fingerprints is None or rank == ToolchainIdentity():
            return ()
        return compare(rank, self._fingerprints.identity())

    def serves(self, rank: ToolchainIdentity, now: float) -> Toolchain:
        """The toolchain as it is now, if it can serve this rank; Refused says why not."""
        self.refresh(now)
        self.find_if_missing(now)
        if self.toolchain is None:
            raise Refused("NO_TOOLCHAIN", self.problem)
        soc = rank.soc or self.toolchain.soc
        if not is_supported(soc):
            raise Refused("UNSUPPORTED_SOC", f"static kernels do not exist for {soc}", hint="they need an Atlas A2 or A3 product")
        return self.toolchain

    def refresh(self, now: float) -> None:
        """Look whether the toolchain's files changed; ranks that come together share one look.

        What counts for every operator (the compiler, its version) is found anew when it changed: it may be another CANN now, or none.
        """
        self._hear(now)
        if self._fingerprints is None or now - self._looked_at < REFRESH_S:
            return
        self._looked_at = now
        changed = self._fingerprints.refresh()
        try:
            same = self._fingerprints.ground() == self._ground
        except ToolchainError:
            same = False
        if changed or not same:
            self.moves += 1
            log.warning(
                "the toolchain changed: kernels of %s are compiled anew", ", ".join(sorted(changed)[:20]) or "all operators"
            )
        if not same:
            self.find(wait=False)

    def fingerprint(self, op_type: str) -> str:
        """What decides the bytes of this operator's kernels, besides the record."""
        if self._fingerprints is None:
            raise ToolchainError(self.problem or "no toolchain")
        return self._fingerprints.op(op_type)

    def is_current(self, need: Need) -> bool:
        """Whether the toolchain still is what this need's key says, as of the last look."""
        try:
            same = self.fingerprint(need.record.op_type) == need.fingerprint
        except ToolchainError:
            return False
        # The record and the options are the need's own: of what its key was made from, nothing else can have changed.
        return same and (self.flags is need.flags or self.flags.canonical() == need.flags.canonical())

    def find_if_missing(self, now: float) -> None:
        """Look for the toolchain where there was none; not all the time, since a compiler can take long to say that it does not run."""
        self._hear(now)
        if self.toolchain is None and self._asking is None and now >= self._look_again_at:
            begun = time.monotonic()
            self.find(wait=False)
            self.moves += self.toolchain is not None
            self._look_again_at = now + max(MISSING_S, 10 * (time.monotonic() - begun))

    def notice(self, now: float) -> None:
        """For people and probes, who may ask every second: a toolchain that is gone, or is back, is noticed; what changed in it is not."""
        if self.toolchain is not None and not self.toolchain.op_compiler.exists():
            self.refresh(now)
        self.find_if_missing(now)

    def parse(self, raw: Sequence[tuple[str, bytes]]) -> tuple[list[Record], list[Rejected]]:
        """Records as they came; a bad one is named with its reason, and the rest goes on."""
        return self._parser.parse(raw)

    def needs(self, records: Iterable[Record], options: CompileOptions, uid: int) -> list[Need]:
        """One need for each record, in order; equal records give equal keys, and those of one user and name the same need.

        So that ranks that ask for the same share what is kept of their rounds, and the key is made once.
        """
        settings = tuple(sorted(options.super_kernel.items()))
        return [self._need(record, options, (self.fingerprint(record.op_type), settings, self.flags, uid)) for record in records]

    def _need(self, record: Record, options: CompileOptions, under: _Under) -> Need:
        name = (record.digest, record.name, record.trace, under)
        known = self._needs.get(name)
        if known is None:
            key = kernel_key(record, under[0], options, self.flags)
            known = Need(key=key, record=record, fingerprint=under[0], options=options, uid=under[-1], flags=under[2])
            if len(record.canonical) <= SHARED_BYTES:
                self._needs[name] = known
            if len(self._needs) > MAX_NEEDS:
                self._needs.popitem(last=False)
        return known
