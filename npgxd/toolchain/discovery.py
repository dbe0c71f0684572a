"""Finding the CANN of this node: its home, op roots, versions, SoC and compiler, and the environment that the compiler needs."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.errors import ToolchainError
from npgxd.toolchain.versions import is_at_least
from npgxd.wire.identity import OpRoot, environment_roots, package_versions
from npgxd.wire.soc import soc_family

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npgxd.wire.messages import CoreCounts

COMPILER: Final = "op_compiler"
SIMULATED_MARKER: Final = "SIMULATED"
RUNTIME: Final = "runtime"
"""The package whose version is called CANN's version, here and in torch_npu."""
INSTALL_PATH_SINCE: Final = "9.1.0"
"""Since this version, not in its betas, packages take ``--install-path`` and the runtime reselects with a path (docs/cann.md)."""

_COMPILER_PLACES: Final = ("bin", "compiler/bin", "tools/op_compiler/bin")
_HOME_PATHS: Final = (
    ("PATH", ("bin", "compiler/ccec_compiler/bin", "tools/ccec_compiler/bin")),
    ("PYTHONPATH", ("python/site-packages", "opp/built-in/op_impl/ai_core/tbe")),
    ("LD_LIBRARY_PATH", ("lib64", "compiler/lib64")),
)
_PASSED_ON: Final = frozenset(
    (
        *("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL"),
        *("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME", "ASCEND_OPP_PATH", "ASCEND_CUSTOM_OPP_PATH", "ASCEND_AICPU_PATH"),
        *("ASCEND_LATEST_INSTALL_PATH", "TOOLCHAIN_HOME"),
    )
)
"""All of the environment that op_compiler may see. Log levels, ranks, ports and the like stay out: they decide no kernel."""
_OF_ONE_HOME: Final = frozenset({"ASCEND_AICPU_PATH", "ASCEND_LATEST_INSTALL_PATH", "TOOLCHAIN_HOME"})
_SOC_HINT: Final = (
    "name it in full under [toolchain] soc in npgxd.toml, or in NPGXD_SOC; `npu-smi info` shows the chip, "
    "and torch_npu.npu.get_device_name() the full name, such as Ascend910B3"
)
_HOME_HINT: Final = "source the CANN set_env.sh before starting npgxd, or set [toolchain] home in npgxd.toml"


@dataclass(frozen=True, slots=True)
class ToolchainSettings:
    """What an administrator fixed of the toolchain; what is empty comes from the environment."""

    home: Path | None = None
    opp: Path | None = None
    custom_opp: tuple[Path, ...] = ()
    soc: str = ""
    cores: CoreCounts | None = None


@dataclass(frozen=True, slots=True)
class Toolchain:
    """One CANN installation. ``environment`` is all that its compiler gets of ours; ``cores`` is None where none were stated."""

    home: Path
    opp: Path
    roots: tuple[OpRoot, ...]
    soc: str
    family: str
    cores: CoreCounts | None
    cann_version: str
    versions: dict[str, str]
    op_compiler: Path
    simulated: bool
    environment: dict[str, str]

    @property
    def supports_install_path(self) -> bool:
        """Whether run packages install under a root of our choice, and processes can reselect from it."""
        return is_at_least(self.cann_version, INSTALL_PATH_SINCE)


def discover(settings: ToolchainSettings, environ: Mapping[str, str]) -> Toolchain:
    """The toolchain that ``settings`` and ``environ`` name; ToolchainError says what is missing and where to put it."""
    home = _home(settings, environ)
    opp = _opp(settings, environ, home)
    soc = settings.soc or environ.get("NPGXD_SOC", "")
    if not soc:
        raise ToolchainError("the SoC of this node is not known", hint=_SOC_HINT)
    family = soc_family(soc)
    environment = _environment(settings, environ, home, opp)
    roots = environment_roots(environment)
    if not roots:
        raise ToolchainError(
            f"{opp} has no operator packages", hint="ASCEND_OPP_PATH must name the opp directory of a CANN installation"
        )
    versions = package_versions(home)
    return Toolchain(
        home=home,
        opp=opp,
        roots=roots,
        soc=soc,
        family=family,
        cores=settings.cores,
        cann_version=_cann_version(home, versions),
        versions=versions,
        op_compiler=find_op_compiler(home, environment["PATH"]),
        simulated=(home / SIMULATED_MARKER).is_file(),
        environment=environment,
    )


def find_op_compiler(home: Path, search: str) -> Path:
    """The compiler of the CANN in ``home``, else the first on the path ``search``; ToolchainError if none can be run."""
    places = [home / place for place in _COMPILER_PLACES]
    places += [Path(entry) for entry in search.split(":") if entry.startswith("/")]
    unusable: Path | None = None
    for place in places:
        candidate = place / COMPILER
        if candidate.is_file():
            if os.access(candidate, os.X_OK):
                return candidate
            unusable = unusable or candidate
    if unusable is not None:
        raise ToolchainError(
            f"{unusable} may not be executed by this user", hint="check its mode, and that its file system is not mounted noexec"
        )
    raise ToolchainError(
        f"no {COMPILER} in {home} or on PATH",
        hint="install the CANN toolkit with its op compiler; the runtime packages alone do not have it",
    )


def _home(settings: ToolchainSettings, environ: Mapping[str, str]) -> Path:
    told = settings.home or environ.get("ASCEND_HOME_PATH")
    if not told:
        raise ToolchainError("no CANN installation is known: ASCEND_HOME_PATH is not set", hint=_HOME_HINT)
    return _directory(Path(told), "the CANN home", f"put it back, or {_HOME_HINT}")


def _opp(settings: ToolchainSettings, environ: Mapping[str, str], home: Path) -> Path:
    hint = "set ASCEND_OPP_PATH, or [toolchain] opp in npgxd.toml, to the opp directory of the CANN installation"
    told = settings.opp
    if told is None and environ.get("ASCEND_OPP_PATH") and _same(home, environ.get("ASCEND_HOME_PATH") or str(home)):
        told = Path(environ["ASCEND_OPP_PATH"])  # of another home it would be another CANN's
    if told is None:
        told = next((home / name for name in ("opp", "opp_latest") if (home / name).is_dir()), home / "opp")
    return _directory(told, "the operator package directory", hint)


def _directory(path: Path, what: str, hint: str) -> Path:
    try:
        if path.is_dir():
            return path.absolute()
        problem = "is not a directory" if path.exists() else "does not exist"
    except OSError as error:  # not allowed to look
        problem = f"cannot be looked at ({error})"
    raise ToolchainError(f"{what} {path} {problem}", hint=hint, path=str(path))


def _same(home: Path, other: str) -> bool:
    return os.path.realpath(home) == os.path.realpath(other)


def _cann_version(home: Path, versions: Mapping[str, str]) -> str:
    version = versions.get(RUNTIME) or versions.get("cann", "")
    if not re.match(r"\d", version):
        raise ToolchainError(
            f"the version of the CANN in {home} is not known: no Version= in share/info/{RUNTIME}/version.info",
            hint="CANN 8.1 or later is needed; check that the installation is complete",
        )
    return version


def _environment(settings: ToolchainSettings, environ: Mapping[str, str], home: Path, opp: Path) -> dict[str, str]:
    """What set_env.sh would give, for exactly this home, whatever CANN the environment itself was sourced for."""
    kept = {name: value for name, value in environ.items() if name in _PASSED_ON}
    if not _same(home, environ.get("ASCEND_HOME_PATH") or str(home)):
        kept = {name: value for name, value in kept.items() if name not in _OF_ONE_HOME}
    kept["ASCEND_HOME_PATH"] = kept["ASCEND_TOOLKIT_HOME"] = str(home)
    kept["ASCEND_OPP_PATH"] = str(opp)
    if settings.custom_opp:
        kept["ASCEND_CUSTOM_OPP_PATH"] = ":".join(str(path) for path in settings.custom_opp)
    kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    for name, places in _HOME_PATHS:
        given = [entry for entry in kept.get(name, "").split(":") if entry]
        own = [str(home / place) for place in places if (home / place).is_dir()]
        if entries := [*own, *(entry for entry in given if entry not in own)]:
            kept[name] = ":".join(entries)
    return kept
