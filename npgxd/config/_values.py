"""One value of the configuration: whether it is what its key allows, and how a text from the environment becomes one. Pure."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npgxd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def checked(where: str, default: object, metadata: Mapping[str, Any], value: object) -> object:
    """``value`` in the form in which its key keeps it; ConfigError says what is allowed there. ``where`` names the key and its source."""
    hint = f"it is: {metadata['meaning']}"
    if isinstance(default, (int, float)) and not isinstance(default, bool):
        kinds = (int,) if isinstance(default, int) else (int, float)
        if isinstance(value, bool) or not isinstance(value, kinds) or not metadata["low"] <= value <= metadata["high"]:
            kind = "an integer" if isinstance(default, int) else "a number"
            raise ConfigError(f"{where} must be {kind} from {metadata['low']} to {metadata['high']}, not {value!r}", hint=hint)
        return type(default)(value)
    if isinstance(default, tuple):
        items, kind = _items(value, metadata), "numbers" if metadata.get("items") is int else "texts"
        if items is None:
            raise ConfigError(f"{where} must be a list of {kind}, not {value!r}", hint=hint)
        return items
    if not isinstance(value, str) or "\0" in value:
        raise ConfigError(f"{where} must be text, not {value!r}", hint=hint)
    if default is None:
        path = Path(value).expanduser()
        if not path.is_absolute():
            raise ConfigError(f"{where} must be an absolute path, not {value!r}", hint=hint)
        return path
    if metadata.get("loopback") and value and address_of(value) is None:
        raise ConfigError(f"{where} must be 127.0.0.1:PORT or [::1]:PORT, not {value!r}", hint=hint)
    if "among" in metadata and value not in metadata["among"]:
        raise ConfigError(f"{where} must be one of {', '.join(metadata['among'])}, not {value!r}", hint=hint)
    return value


def _items(value: object, metadata: Mapping[str, Any]) -> tuple[object, ...] | None:
    """The items of a list of texts, or of numbers where its key says so; None if it is none."""
    if not isinstance(value, list):
        return None
    if metadata.get("items") is int:
        numbers = tuple(_number(item) for item in value)
        return None if None in numbers else numbers
    return tuple(value) if all(isinstance(item, str) and item for item in value) else None


def _number(item: object) -> int | None:
    """A number from 0 as TOML has it, or as it is written in a variable of the environment; None if it is none."""
    if isinstance(item, str) and item.isascii() and item.isdecimal() and len(item) <= 10:  # noqa: PLR2004 -- as long as a uid may be
        return int(item)
    return item if isinstance(item, int) and not isinstance(item, bool) and item >= 0 else None


def address_of(text: str) -> tuple[str, int] | None:
    """The loopback address and port (1 to 65535) that ``text`` names; None if it names none."""
    host, _, port = text.rpartition(":")
    host = {"127.0.0.1": "127.0.0.1", "localhost": "127.0.0.1", "[::1]": "::1"}.get(host, "")
    if not host or not port.isascii() or not port.isdecimal() or len(port) > 5 or not 0 < int(port) < 65536:  # noqa: PLR2004 -- ports
        return None
    return host, int(port)


def from_text(default: object, text: str) -> object:
    """What an environment variable says, as TOML would have it; a text that is no number stays one, and ``checked`` refuses it.

    A list is written as in ASCEND_CUSTOM_OPP_PATH, with colons.
    """
    if isinstance(default, tuple):
        return [item for item in text.split(":") if item]
    if isinstance(default, (int, float)):
        for kind in (int, float):
            try:
                return kind(text)
            except ValueError:
                continue
    return text


def suggest(name: str, known: Iterable[str]) -> str:
    """A hint for a name that is not known."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    return f"did you mean '{close[0]}'? Known: {', '.join(names)}" if close else f"known: {', '.join(names)}"
