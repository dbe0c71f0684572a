"""The configuration in force: what a daemon started with, and what reloads have changed of it since.

Parts of the daemon are given sections once and read keys when they use them; so ``live`` has the form of a Config, and always the
values of now.  Promise: a reload takes effect whole or not at all; a key that needs a restart keeps its value and is named.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, cast

from npgxd.config._sections import SECTIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npgxd.config._config import Config


@dataclass(frozen=True, slots=True)
class Change:
    """What a reload changed: ``section.key`` of what is in force now, and of what waits for a restart."""

    applied: tuple[str, ...] = ()
    restart: tuple[str, ...] = ()


class Settings:
    """A configuration that can be replaced. Used by one thread."""

    def __init__(self, config: Config) -> None:
        self.current = config
        self.live: Config = cast("Config", _Live(self))
        """Has the attributes of a Config, with the values of the moment at which they are read."""

    def take(self, config: Config) -> Change:
        """Put ``config`` in force, but for the keys that need a restart."""
        changed = list(_differences(self.current, config))
        held = [name for name in changed if needs_restart(name)]
        parts: dict[str, Any] = {}
        for section in SECTIONS:
            keep = [name.partition(".")[2] for name in held if name.startswith(f"{section}.")]
            before, after = getattr(self.current, section), getattr(config, section)
            parts[section] = replace(after, **{key: getattr(before, key) for key in keep})
        self.current = replace(config, state_dir=self.current.state_dir, runtime_dir=self.current.runtime_dir, **parts)
        return Change(tuple(name for name in changed if name not in held), tuple(held))


def needs_restart(name: str) -> bool:
    """Whether ``section.key`` is read at the start alone."""
    section, _, key = name.partition(".")
    return next(bool(item.metadata.get("restart")) for item in fields(SECTIONS[section]) if item.name == key)


def _differences(before: Config, after: Config) -> Iterator[str]:
    for section, kind in SECTIONS.items():
        for item in fields(kind):
            if getattr(getattr(before, section), item.name) != getattr(getattr(after, section), item.name):
                yield f"{section}.{item.name}"


class _Live:
    """A Config by its attributes."""

    __slots__ = ("_sections", "_settings")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._sections = {name: _LiveSection(settings, name) for name in SECTIONS}

    def __getattr__(self, name: str) -> object:
        section = self._sections.get(name)
        return section if section is not None else getattr(self._settings.current, name)


class _LiveSection:
    """One section by its keys."""

    __slots__ = ("_name", "_settings")

    def __init__(self, settings: Settings, name: str) -> None:
        self._settings = settings
        self._name = name

    def __getattr__(self, key: str) -> object:
        return getattr(getattr(self._settings.current, self._name), key)
