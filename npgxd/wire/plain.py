"""Frozen dataclasses that are cheap to define, for what every rank imports.

``dataclass(frozen=True, slots=True)`` generates and compiles six methods a class; for the forty classes of the protocol and the
client that alone would use up a rank's import budget (15 ms).  Here the methods are written once, in the base class.  ``fields``,
``replace`` and ``asdict`` of the standard library work as ever, and type checkers see ordinary frozen dataclasses.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields
from typing import Any, ClassVar, TypeVar, cast, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def plain(kind: type[T]) -> type[T]:
    """Make a subclass of ``Plain`` a frozen dataclass."""
    made = dataclass(init=False, repr=False, eq=False, match_args=False)(kind)
    cast("Any", made).FIELD_NAMES = tuple(item.name for item in fields(cast("Any", made)))
    return made


class Plain:
    """A frozen value: made, compared, hashed and shown by its fields."""

    FIELD_NAMES: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *args: object, **kwargs: object) -> None:
        values = dict(zip(self.FIELD_NAMES, args, strict=False))
        if len(args) > len(self.FIELD_NAMES) or not kwargs.keys() <= set(self.FIELD_NAMES) - values.keys():
            raise TypeError(f"{type(self).__name__} takes each of these once: {', '.join(self.FIELD_NAMES)}")
        values |= kwargs
        for item in cast("tuple[Field[object], ...]", fields(cast("Any", self))):
            if item.name in values:
                self.__dict__[item.name] = values[item.name]
            elif item.default_factory is not MISSING:
                self.__dict__[item.name] = item.default_factory()
            elif item.default is not MISSING:
                self.__dict__[item.name] = item.default
            else:
                raise TypeError(f"{type(self).__name__} needs {item.name!r}")

    def __setattr__(self, name: str, value: object) -> None:
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str) -> None:
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.FIELD_NAMES)
        return f"{type(self).__name__}({shown})"

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.__dict__ == other.__dict__

    def __hash__(self) -> int:
        return hash((type(self), *(getattr(self, name) for name in self.FIELD_NAMES)))
