"""How kernels get out of a run package: one named strategy per kind of CANN version (docs/cann.md, the run package)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from npgxd.errors import CompileError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npgxd.compile.directory import JobDirectory

_AI_CORE_PLACES = ("static_kernel/ai_core", "opp/static_kernel/ai_core")
"""Where below ``--install-path`` the tree may lie; only a node can settle it, so both are looked at."""
_HOME_VARIABLES = ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_LATEST_INSTALL_PATH")
"""By which an installer may find "the sourced CANN environment"."""
_LENT = ("share", "version.cfg", "ascend_toolkit_install.info")
"""What an installer may read of the CANN home, to see that its version fits."""


class Extraction(Protocol):
    """A way to get at what is in a run package, without touching anything outside the job's directory."""

    @property
    def name(self) -> str:
        """What it is called in messages."""

    def prepare(self, directory: JobDirectory, environment: Mapping[str, str]) -> dict[str, str]:
        """Make ready what the command needs; the environment that it is to run in."""

    def command(self, package: Path, directory: JobDirectory) -> list[str]:
        """The command that extracts ``package``."""

    def ai_core(self, directory: JobDirectory) -> Path:
        """The ``ai_core`` directory that the command made; CompileError if there is none."""


@dataclass(frozen=True, slots=True)
class InstallPath:
    """CANN >= 9.1.0: the package installs itself into a root of the job's own, ``--install-path=<root> -q``."""

    name: str = "install-path"

    def prepare(self, directory: JobDirectory, environment: Mapping[str, str]) -> dict[str, str]:
        """Nothing is needed."""
        del directory
        return dict(environment)

    def command(self, package: Path, directory: JobDirectory) -> list[str]:
        """As documented for CANN 9.1.0."""
        return [str(package), f"--install-path={directory.install}", "-q"]

    def ai_core(self, directory: JobDirectory) -> Path:
        """``static_kernel/ai_core`` below the root."""
        return _found(directory) or _nothing_installed(
            "the run package's installer ended well and installed nothing",
            "run it by hand with --install-path, and look for static_kernel/ai_core below that path",
        )


@dataclass(frozen=True, slots=True)
class RedirectedRoot:
    """CANN before 9.1.0: the package knows no target and installs into the default root of the environment that it runs in.

    So it runs in an environment whose default root lies in the job's directory.  The node's own root is not named to it at all.
    """

    name: str = "redirected-root"

    def prepare(self, directory: JobDirectory, environment: Mapping[str, str]) -> dict[str, str]:
        """A home with an empty ``opp`` that is also its ``opp_latest``; of the real home only what tells its version."""
        home = directory.install
        real = environment.get("ASCEND_HOME_PATH", "")
        try:
            (home / "opp").mkdir(mode=0o700)
            (home / "opp_latest").symlink_to("opp")
            for name in _LENT if real else ():
                if Path(real, name).exists():
                    (home / name).symlink_to(Path(real, name))
        except OSError as error:
            raise CompileError(f"cannot prepare {home} for the run package: {error.strerror}", transient=True) from error
        named = {name: str(home) for name in _HOME_VARIABLES if name in environment or name == "ASCEND_HOME_PATH"}
        return {**environment, **named, "ASCEND_OPP_PATH": str(home / "opp")}

    def command(self, package: Path, directory: JobDirectory) -> list[str]:
        """The package alone: these versions take no target, and no ``-q``."""
        del directory
        return [str(package)]

    def ai_core(self, directory: JobDirectory) -> Path:
        """``static_kernel/ai_core`` below the private root."""
        return _found(directory) or _nothing_installed(
            f"the run package's installer ended well and left nothing where the strategy {self.name} sent it",
            "run it by hand with ASCEND_HOME_PATH and ASCEND_OPP_PATH naming an empty tree, and look where it installs: if that is "
            "the node's own root, remove the package there with its uninstall.sh, and tell the npgxd project of this CANN version",
        )


def extraction_for(*, install_path: bool) -> Extraction:
    """The strategy for a CANN version: ``install_path`` says whether its packages take ``--install-path`` (9.1.0 and later)."""
    return InstallPath() if install_path else RedirectedRoot()


def _found(directory: JobDirectory) -> Path | None:
    for place in _AI_CORE_PLACES:
        found = directory.install / place
        if found.is_dir() and not found.is_symlink() and found.resolve().is_relative_to(directory.install.resolve()):
            return found
    return None


def _nothing_installed(message: str, hint: str) -> Path:
    raise CompileError(message, hint=hint, transient=True)
