"""Pins: kernels that an administrator wants kept, whatever the budgets say. One file each, with a digest; they survive the catalog.

A pin names kernel keys, not files: the kernel that answers a pinned key is kept, also after it was compiled anew.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.store.disk import TEMPORARY_PREFIX
from npgxd.store.plain import read_plain

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npgxd.store.state import StateDirectory

SCHEMA: Final = 1
_MAX_BYTES: Final = 16 * 1024 * 1024
_NAME_DIGITS: Final = 32


@dataclass(frozen=True, slots=True)
class Pin:
    """What is kept: ``name`` as the administrator gave it, and the keys that it meant then. ``at``: seconds since the epoch."""

    name: str
    keys: tuple[str, ...]
    at: float


class Pins:
    """All pins of a state directory. StoreError if one cannot be read now, for want of descriptors or memory."""

    def __init__(self, state: StateDirectory) -> None:
        self._state = state
        self._place = state.path / "pins"
        if state.disk.make_directory(self._place, 0o700, exist_ok=True):
            state.disk.fsync_directory(state.path)
        self._pins: dict[str, Pin] = {}
        self.problems: list[str] = []
        """Pins that could not be read at the start, and are now in the quarantine."""
        for path in sorted(self._place.iterdir()):
            if path.name.startswith(TEMPORARY_PREFIX):
                state.disk.remove_tree(path)
                continue
            try:
                pin = _parse(read_plain(path, _MAX_BYTES))
                if _file_of(pin.name) != path.name:
                    raise StoreError("it is another pin's")
                self._pins[pin.name] = pin
            except StoreError as error:
                if error.no_means:
                    raise
                self.problems.append(f"pins/{path.name}: {error.message}")
                state.set_aside(path, f"not a pin: {error.message}")

    def all(self) -> list[Pin]:
        """The pins, by name."""
        return [self._pins[name] for name in sorted(self._pins)]

    def keys(self) -> frozenset[str]:
        """Every pinned key."""
        return frozenset(key for pin in self._pins.values() for key in pin.keys)

    def put(self, name: str, keys: Sequence[str], at: float) -> Pin:
        """Pin these keys under a name, on the disk on return; a pin of that name is replaced."""
        pin = Pin(name, tuple(sorted(set(keys))), at)
        self._state.disk.write_file(self._path(name), _text(pin), 0o600, staging=self._state.staging)
        self._pins[name] = pin
        return pin

    def remove(self, name: str) -> bool:
        """End a pin; False if there is none of that name."""
        if name not in self._pins:
            return False
        self._state.disk.unlink(self._path(name), durable=True)
        del self._pins[name]
        return True

    def damaged(self) -> list[str]:
        """Pins whose files do not say any more what they should."""
        found: list[str] = []
        for name, pin in self._pins.items():
            try:
                if _parse(read_plain(self._path(name), _MAX_BYTES)) != pin:
                    found.append(name)
            except StoreError as error:
                if error.no_means:
                    raise
                found.append(name)
        return found

    def rewrite(self, name: str) -> None:
        """Write a pin anew, from what is known of it."""
        pin = self._pins[name]
        self.put(name, pin.keys, pin.at)

    def _path(self, name: str) -> Path:
        return self._place / _file_of(name)


def _file_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:_NAME_DIGITS]


def _text(pin: Pin) -> bytes:
    said = {"schema": SCHEMA, "name": pin.name, "keys": list(pin.keys), "at": pin.at}
    return json.dumps({**said, "sha256": _digest(said)}, indent=1).encode() + b"\n"


def _digest(said: dict[str, object]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def _parse(raw: bytes) -> Pin:
    try:
        said = json.loads(raw)
        digest = said.pop("sha256")
        if said["schema"] != SCHEMA or digest != _digest(said):
            raise StoreError("its bytes are not those that were written")
        return Pin(str(said["name"]), tuple(str(key) for key in said["keys"]), float(said["at"]))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StoreError(f"{type(error).__name__}: {error}") from None
