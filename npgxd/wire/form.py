"""The form that all messages have: frozen dataclasses (of the cheap kind) whose fields carry their bounds, and nothing else.

``header()`` gives the msgpack header, ``parse()`` reads one and refuses what docs/protocol.md does not allow.  Unknown fields are
ignored, so that an older peer can talk to a newer one; unknown values are not.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, field, fields
from functools import cache
from typing import Any, ClassVar, Self, TypeVar, cast

from npgxd.errors import ProtocolError
from npgxd.wire import limits
from npgxd.wire._fields import Check, identifier, integer, number, optional, take, text
from npgxd.wire.plain import Plain, plain

T = TypeVar("T")

DIGEST = identifier(64)
ROUND_ID = identifier(32)
COUNT = integer(0, 2**53)
RANK = optional(integer(0, 1_000_000))
SECONDS = number(0, 1e12)
PATH = text(limits.MAX_TEXT)
_CARRIED = frozenset({str, int, float, bool, bytes, type(None)})


def bounded(check: Check[T], default: Any = MISSING) -> Any:
    """A dataclass field with its check; mutable defaults are given as factories."""
    if callable(default) and default is not MISSING:
        return field(metadata={"check": check}, default_factory=default)
    return field(metadata={"check": check}, default=default)


def _plain(value: object) -> object:
    """``value`` in what msgpack can carry."""
    if type(value) in _CARRIED:
        return value
    if isinstance(value, Plain):
        defaults = value.FIELD_DEFAULTS
        return {name: _plain(told) for name, told in vars(value).items() if name not in defaults or defaults[name] != told}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    return str(value) if isinstance(value, str) else value


@cache
def _checks(kind: type[Part]) -> tuple[tuple[str, Check[object], bool], ...]:
    """The fields of a kind of message: name, check, and whether it must be there."""
    told = cast("tuple[Field[object], ...]", fields(kind))
    return tuple(
        (item.name, item.metadata["check"], item.default is MISSING and item.default_factory is MISSING) for item in told
    )


@plain
class Part(Plain):
    """A map inside a message."""

    @classmethod
    def parse(cls, header: dict[str, object]) -> Self:
        """Check every field of ``header``; ProtocolError names the first that is wrong."""
        if not isinstance(header, dict):
            raise ProtocolError(f"{cls.__name__} must be a map")
        values: dict[str, object] = {}
        for name, check, needed in _checks(cast("Any", cls)):
            if needed or name in header:
                values[name] = take(header, name, check)
        return cls(**values)

    @classmethod
    def check(cls, name: str, value: object) -> Self:
        """``parse`` in the form that the field checks have."""
        if not isinstance(value, dict):
            raise ProtocolError(f"field {name!r} must be a map")
        return cls.parse(value)


@plain
class Message(Part):
    """A message: a Part with an ``op``."""

    op: ClassVar[str]

    def header(self) -> dict[str, object]:
        """The fields as msgpack carries them, with ``op``; the codec adds ``v`` and ``id``.

        What has its default value is left out, here and in what is within: it costs nothing then, at either end.
        """
        return {"op": self.op, **cast("dict[str, object]", _plain(self))}


@plain
class Event(Message):
    """A message that the daemon also sends unasked, to those who follow something."""

    @property
    def topic(self) -> str:
        """What it is about; of one topic only the latest event counts."""
        raise NotImplementedError
