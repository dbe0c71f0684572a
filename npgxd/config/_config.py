"""The whole configuration, from its layers. An unknown section or key is an error with a suggestion, never ignored."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npgxd.config._layers import Layer, layers, user_state
from npgxd.config._sections import (
    SECTIONS,
    CacheSection,
    CompileSection,
    DaemonSection,
    GroupSection,
    LibrarySection,
    LimitsSection,
    MetricsSection,
    StoreSection,
    ToolchainSection,
)
from npgxd.config._values import checked, from_text, suggest
from npgxd.errors import ConfigError
from npgxd.wire.endpoint import ADMIN_SOCKET_NAME, SYSTEM_RUNTIME_DIRECTORY, user_runtime_directory

if TYPE_CHECKING:
    from collections.abc import Mapping

SYSTEM_STATE = Path("/var/lib/npgxd")


@dataclass(frozen=True, slots=True)
class Config:
    """The whole configuration, complete and checked."""

    state_dir: Path
    runtime_dir: Path
    source: str
    """The main file, or ``(defaults)``."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """``section.key`` -> the file or the variable that sets it, for every key that is set."""
    daemon: DaemonSection = DaemonSection()
    toolchain: ToolchainSection = ToolchainSection()
    compile: CompileSection = CompileSection()
    store: StoreSection = StoreSection()
    group: GroupSection = GroupSection()
    op_library: LibrarySection = LibrarySection()
    limits: LimitsSection = LimitsSection()
    cache: CacheSection = CacheSection()
    metrics: MetricsSection = MetricsSection()

    @property
    def socket(self) -> Path:
        """The socket that ranks and npgxctl connect to."""
        return self.runtime_dir / "npgxd.sock"

    @property
    def admin_socket(self) -> Path:
        """The socket for administrators."""
        return self.runtime_dir / ADMIN_SOCKET_NAME


def load(path: Path | None, *, user: bool, environ: Mapping[str, str]) -> Config:
    """Read the configuration of a system daemon, or of a ``--user`` one: the file, its drop-ins, then the environment.

    Without ``path`` the usual place is read if it is there.  ConfigError names where a key is written, the key and what is allowed.
    """
    source, found = layers(path, user=user, environ=environ, sections=SECTIONS)
    values: dict[str, dict[str, object]] = {name: {} for name in SECTIONS}
    origins: dict[str, str] = {}
    for layer in found:
        for name, section in _sections(layer).items():
            values[name] |= section
            origins |= dict.fromkeys((f"{name}.{key}" for key in section), layer.origin)
    parts: dict[str, Any] = {name: kind(**values[name]) for name, kind in SECTIONS.items()}
    daemon: DaemonSection = parts["daemon"]
    return Config(
        state_dir=daemon.state_dir or (user_state(environ) if user else SYSTEM_STATE),
        runtime_dir=daemon.runtime_dir or (user_runtime_directory(environ) if user else SYSTEM_RUNTIME_DIRECTORY),
        source=source,
        origins=origins,
        **parts,
    )


def _sections(layer: Layer) -> dict[str, dict[str, object]]:
    """What one layer says, checked."""
    told: dict[str, dict[str, object]] = {}
    for name, values in layer.table.items():
        if name not in SECTIONS:
            raise ConfigError(f"{layer.origin}: unknown section [{name}]", hint=_placed(name) or suggest(name, SECTIONS))
        if not isinstance(values, dict):
            raise ConfigError(f"{layer.origin}: {name} must be a section", hint=f"write it as [{name}]")
        known = {item.name: item for item in fields(SECTIONS[name])}
        told[name] = {}
        for key, value in values.items():
            if key not in known:
                raise ConfigError(f"{layer.origin}: unknown key '{key}' in [{name}]", hint=_placed(key) or suggest(key, known))
            item = known[key]
            given = from_text(item.default, value) if layer.text else value
            told[name][key] = checked(f"{layer.origin}: [{name}] {key}", item.default, item.metadata, given)
    return told


def _placed(name: str) -> str:
    """A hint for what is a key of another section; empty if it is none."""
    places = [f"[{section}]" for section, kind in SECTIONS.items() if name in {item.name for item in fields(kind)}]
    return f"'{name}' is a key of {' and of '.join(places)}: write it below that line" if places else ""
