"""How kernels get out of a run package: one named strategy per kind of CANN version (docs/cann.md, the run package)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from npgxd.errors import CompileError

if TYPE_CHECKING:
    from pathlib import Path

    from npgxd.compile.directory import JobDirectory

_AI_CORE_PLACES = ("static_kernel/ai_core", "opp/static_kernel/ai_core")
"""Where below ``--install-path`` the tree may lie; only a node can settle it, so both are looked at."""


class Extraction(Protocol):
    """A way to get at what is in a run package, without touching anything outside the job's directory."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def command(self, package: Path, directory: JobDirectory) -> list[str]:
        """The command that extracts ``package``."""

    def ai_core(self, directory: JobDirectory) -> Path:
        """The ``ai_core`` directory that the command made; CompileError if there is none."""


@dataclass(frozen=True, slots=True)
class InstallPath:
    """CANN >= 9.1.0: the package installs itself into a root of the job's own, ``--install-path=<root> -q``."""

    name: str = "install-path"

    def command(self, package: Path, directory: JobDirectory) -> list[str]:
        """As documented for CANN 9.1.0."""
        return [str(package), f"--install-path={directory.install}", "-q"]

    def ai_core(self, directory: JobDirectory) -> Path:
        """``static_kernel/ai_core`` below the root."""
        for place in _AI_CORE_PLACES:
            found = directory.install / place
            if found.is_dir() and not found.is_symlink():
                return found
        raise CompileError(
            "the run package's installer ended well and installed nothing",
            hint="run it by hand with --install-path, and look for static_kernel/ai_core below that path",
            transient=True,
        )


def extraction_for(cann_version: str, *, install_path: bool) -> Extraction:
    """The strategy for a CANN version; CompileError where there is none yet."""
    if install_path:
        return InstallPath()
    raise CompileError(
        f"CANN {cann_version}: run packages install into the shared op root; that strategy (shared-root) is not supported yet",
        hint="use CANN 9.1.0 or later",
    )
