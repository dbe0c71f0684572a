"""The daemon's configuration: one TOML file, every key with its type, bound, default and meaning.

An unknown section or key is an error with a suggestion, never ignored.  docs/configuration.md lists the same keys.
"""

from __future__ import annotations

import difflib
import os
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from npgxd.errors import ConfigError
from npgxd.toolchain.discovery import ToolchainSettings
from npgxd.wire.endpoint import ADMIN_SOCKET_NAME, SYSTEM_RUNTIME_DIRECTORY, user_runtime_directory
from npgxd.wire.messages import CoreCounts

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_CONFIG = Path("/etc/npgxd/npgxd.toml")
SYSTEM_STATE = Path("/var/lib/npgxd")
LOG_LEVELS = ("debug", "info", "warning", "error")
UNREADABLE = ("wait", "ignore")


def _key(default: object, meaning: str, **bounds: object) -> Any:
    metadata = {"meaning": meaning, **bounds}
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class DaemonSection:
    """``[daemon]``."""

    state_dir: Path | None = _key(None, "where kernels, views and the journal are kept")
    runtime_dir: Path | None = _key(None, "where the sockets are; keep it short")
    log_level: str = _key("info", "debug, info, warning or error", among=LOG_LEVELS)
    drain_s: float = _key(60.0, "seconds that running compiles may take to finish at a stop", low=0, high=86_400)


@dataclass(frozen=True, slots=True)
class ToolchainSection:
    """``[toolchain]``: which CANN to compile with. Empty values come from the daemon's environment."""

    home: Path | None = _key(None, "ASCEND_HOME_PATH")
    opp: Path | None = _key(None, "ASCEND_OPP_PATH")
    custom_opp: tuple[str, ...] = _key((), "the paths of ASCEND_CUSTOM_OPP_PATH, in search order")
    soc: str = _key("", "full SoC name as aclrtGetSocName gives it, for example Ascend910B3")
    vector_cores: int = _key(0, "vector cores that ranks may use; 0: not stated", low=0, high=10_000)
    cube_cores: int = _key(0, "cube cores that ranks may use; 0: not stated", low=0, high=10_000)

    def settings(self) -> ToolchainSettings:
        """In the form that the toolchain package takes."""
        cores = CoreCounts(self.vector_cores, self.cube_cores) if self.vector_cores or self.cube_cores else None
        return ToolchainSettings(
            home=self.home, opp=self.opp, custom_opp=tuple(Path(p) for p in self.custom_opp), soc=self.soc, cores=cores
        )


@dataclass(frozen=True, slots=True)
class CompileSection:
    """``[compile]``: the worker pool."""

    workers: int = _key(2, "op_compiler runs at the same time", low=1, high=256)
    jobs: int = _key(0, "op_compiler's -j; 0: the processors that this daemon may use", low=0, high=1024)
    deadline_s: float = _key(3600.0, "seconds that one op_compiler run may take", low=1, high=604_800)
    attempts: int = _key(3, "tries of a key that fails for a passing reason", low=1, high=20)
    nice: int = _key(5, "niceness of op_compiler", low=0, high=19)
    keep_jobs: int = _key(20, "failed runs whose logs are kept", low=0, high=10_000)


@dataclass(frozen=True, slots=True)
class StoreSection:
    """``[store]``: how much is kept. What is leased, pinned, or needed by a round is kept whatever these say."""

    max_gb: float = _key(50.0, "kernels and run packages together, in 10^9 bytes; 0: no limit", low=0, high=1e6)
    min_free_gb: float = _key(1.0, "bytes (10^9) that stay free on the disk; with less, nothing is compiled", low=0, high=1e6)
    gc_interval_s: float = _key(300.0, "seconds between two passes of removal", low=1, high=604_800)
    recent_s: float = _key(600.0, "seconds for which a kernel that was just published is not removed", low=0, high=604_800)
    logs_mb: int = _key(256, "logs of failed runs, in 10^6 bytes", low=0, high=1_000_000)
    quarantine_mb: int = _key(256, "what was found damaged and is kept to be looked at, in 10^6 bytes", low=0, high=1_000_000)


@dataclass(frozen=True, slots=True)
class LibrarySection:
    """``[op_library]``: the shared op library of CANN before 9.1.0."""

    leave_after_s: float = _key(60.0, "seconds for which kernels that no process needs stay in it", low=0, high=604_800)
    unreadable: str = _key("wait", "wait for, or ignore, processes of which it cannot be told what they loaded", among=UNREADABLE)


@dataclass(frozen=True, slots=True)
class GroupSection:
    """``[group]``: how long ranks of one job wait for each other's records."""

    local_world_size: int = _key(0, "ranks of a job on this node where its ranks do not say; 0: do not wait", low=0, high=4096)
    window_s: float = _key(2.0, "seconds to wait for ranks that have not been heard of", low=0, high=600)
    quiet_s: float = _key(0.2, "seconds to wait for ranks that are connected and not recording", low=0, high=600)
    recording_s: float = _key(30.0, "seconds to wait for ranks that said they are recording", low=0, high=3600)


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration, complete and checked."""

    state_dir: Path
    runtime_dir: Path
    source: str
    daemon: DaemonSection = DaemonSection()
    toolchain: ToolchainSection = ToolchainSection()
    compile: CompileSection = CompileSection()
    store: StoreSection = StoreSection()
    group: GroupSection = GroupSection()
    op_library: LibrarySection = LibrarySection()

    @property
    def socket(self) -> Path:
        """The socket that ranks and npgxctl connect to."""
        return self.runtime_dir / "npgxd.sock"

    @property
    def admin_socket(self) -> Path:
        """The socket for administrators."""
        return self.runtime_dir / ADMIN_SOCKET_NAME

    @property
    def jobs(self) -> int:
        """op_compiler's -j."""
        return self.compile.jobs or len(os.sched_getaffinity(0))


SECTIONS: dict[str, type] = {
    "daemon": DaemonSection,
    "toolchain": ToolchainSection,
    "compile": CompileSection,
    "store": StoreSection,
    "group": GroupSection,
    "op_library": LibrarySection,
}


def load(path: Path | None, *, user: bool, environ: Mapping[str, str]) -> Config:
    """Read the configuration of a system daemon, or of a ``--user`` one.

    Without ``path`` the usual place is read if it is there.  ConfigError names the file, the key and what is allowed.
    """
    source, table = _read(path, user=user, environ=environ)
    unknown = sorted(set(table) - set(SECTIONS))
    if unknown:
        raise ConfigError(f"{source}: unknown section [{unknown[0]}]", hint=_suggest(unknown[0], SECTIONS))
    parts = {name: _section(source, name, kind, table.get(name, {})) for name, kind in SECTIONS.items()}
    daemon = cast("DaemonSection", parts["daemon"])
    return Config(
        state_dir=daemon.state_dir or (_user_state(environ) if user else SYSTEM_STATE),
        runtime_dir=daemon.runtime_dir or (user_runtime_directory(environ) if user else SYSTEM_RUNTIME_DIRECTORY),
        source=source,
        **cast("dict[str, Any]", parts),
    )


def _read(path: Path | None, *, user: bool, environ: Mapping[str, str]) -> tuple[str, dict[str, object]]:
    wanted = path or (Path(environ["NPGXD_CONFIG"]) if environ.get("NPGXD_CONFIG") else None)
    usual = _user_config(environ) if user else SYSTEM_CONFIG
    try:
        text = (wanted or usual).read_text(encoding="utf-8")
    except FileNotFoundError:
        if wanted is None:
            return "(defaults)", {}
        raise ConfigError(
            f"no configuration file {wanted}", hint="name an existing file with --config, or leave it out"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {wanted or usual}: {error}", hint="check its owner, mode and encoding") from None
    try:
        return str(wanted or usual), tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{wanted or usual} is not TOML: {error}", hint="see docs/configuration.md for an example") from None


def _section(source: str, name: str, kind: type, values: object) -> object:
    if not isinstance(values, dict):
        raise ConfigError(f"{source}: {name} must be a section", hint=f"write it as [{name}]")
    known = {item.name: item for item in fields(kind)}
    checked: dict[str, object] = {}
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{source}: unknown key '{key}' in [{name}]", hint=_suggest(key, known))
        checked[key] = _value(f"{source}: [{name}] {key}", known[key].default, known[key].metadata, value)
    return kind(**checked)


def _value(where: str, default: object, metadata: Mapping[str, Any], value: object) -> object:
    hint = f"it is: {metadata['meaning']}"
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        kinds = (int,) if isinstance(default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not metadata["low"] <= value <= metadata["high"]:
            kind = "an integer" if isinstance(default, int) else "a number"
            raise ConfigError(f"{where} must be {kind} from {metadata['low']} to {metadata['high']}, not {value!r}", hint=hint)
        return type(default)(value)
    if isinstance(default, tuple):
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise ConfigError(f"{where} must be a list of texts, not {value!r}", hint=hint)
        return tuple(value)
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{where} must be text, not {value!r}", hint=hint)
    if default is None:
        path = Path(value).expanduser()
        if not path.is_absolute():
            raise ConfigError(f"{where} must be an absolute path, not {value!r}", hint=hint)
        return path
    if "among" in metadata and value not in metadata["among"]:
        raise ConfigError(f"{where} must be one of {', '.join(metadata['among'])}, not {value!r}", hint=hint)
    return value


def _suggest(name: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f"did you mean '{close[0]}'? Known: {', '.join(known)}" if close else f"known: {', '.join(known)}"


def _user_state(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else _home(environ) / ".local/state") / "npgxd"


def _user_config(environ: Mapping[str, str]) -> Path:
    base = environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base and Path(base).is_absolute() else _home(environ) / ".config") / "npgxd/npgxd.toml"


def _home(environ: Mapping[str, str]) -> Path:
    home = environ.get("HOME", "")
    if home and Path(home).is_absolute():
        return Path(home)
    try:
        return Path("~").expanduser()
    except RuntimeError:
        raise ConfigError(
            "this user has no home directory", hint="set state_dir under [daemon], or HOME, or XDG_STATE_HOME"
        ) from None
