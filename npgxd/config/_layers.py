"""Where the configuration is written down: the main file, its drop-ins, and the environment, each a layer over the one before.

``FILE.d/*.toml`` are the drop-ins of ``FILE``, in the order of their names; ``NPGXD_<SECTION>_<KEY>`` is the variable of a key.
"""

from __future__ import annotations

import os
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SYSTEM_CONFIG = Path("/etc/npgxd/npgxd.toml")
VARIABLES = "NPGXD_"


@dataclass(frozen=True, slots=True)
class Layer:
    """What one file or variable says: section -> key -> value. ``text``: the values are texts still, from the environment."""

    origin: str
    table: Mapping[str, object]
    text: bool = False


def layers(path: Path | None, *, user: bool, environ: Mapping[str, str], sections: Iterable[str]) -> tuple[str, list[Layer]]:
    """The name of the main file, or ``(defaults)``, and all layers, the weakest first.

    ConfigError if the file that was asked for is not there, or something cannot be read.
    """
    asked = path or (Path(environ["NPGXD_CONFIG"]) if environ.get("NPGXD_CONFIG") else None)
    main = asked or (_user_config(environ) if user else SYSTEM_CONFIG)
    if main is None:
        return "(defaults)", _variables(environ, sections)
    found = [] if (table := _table(main, needed=asked is not None)) is None else [Layer(str(main), table)]
    source = found[0].origin if found else "(defaults)"
    found += [Layer(str(drop_in), table) for drop_in in _drop_ins(main) if (table := _table(drop_in)) is not None]
    return source, found + _variables(environ, sections)


def _table(path: Path, *, needed: bool = False) -> dict[str, object] | None:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not needed:
            return None
        raise ConfigError(f"no configuration file {path}", hint="name an existing file with --config, or leave it out") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path} is not TOML: {error}", hint="see docs/configuration.md for an example") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}", hint="check its owner, mode and encoding") from None


def _drop_ins(main: Path) -> list[Path]:
    directory = main.with_name(f"{main.name}.d")
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.name.endswith(".toml"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise ConfigError(f"cannot read {directory}: {error}", hint="check its owner and mode") from None
    return [directory / name for name in names if not name.startswith(".")]


def _variables(environ: Mapping[str, str], sections: Iterable[str]) -> list[Layer]:
    """One layer a variable. ``NPGXD_STORE`` and such, which belong to the client, have no key after a section's name."""
    prefixes = {section: f"{VARIABLES}{section.upper()}_" for section in sections}
    return [
        Layer(name, {section: {name.removeprefix(prefix).lower(): environ[name]}}, text=True)
        for section, prefix in prefixes.items()
        for name in sorted(environ)
        if name.startswith(prefix) and environ[name]
    ]


def user_state(environ: Mapping[str, str]) -> Path:
    """Where a user's own daemon keeps its state."""
    base = environ.get("XDG_STATE_HOME")
    return (Path(base) if base and Path(base).is_absolute() else _home(environ) / ".local/state") / "npgxd"


def _user_config(environ: Mapping[str, str]) -> Path | None:
    """A user's own file; None for a user without a home, as containers have them, who can say all by variables."""
    base = environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base and Path(base).is_absolute() else _home(environ) / ".config") / "npgxd/npgxd.toml"
    except ConfigError:
        return None


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
