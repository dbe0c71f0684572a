"""Frozen dataclasses that are cheap to define, for what every rank imports.

``dataclass(frozen=True, slots=True)`` generates and compiles six methods a class; for the forty classes of the protocol and the
client that alone would use up a rank's import budget (15 ms).  Here the methods are written once, in the base class.  ``fields``,
``replace`` and ``asdict`` of the standard library work as ever, and type checkers see ordinary frozen dataclasses.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, FrozenInstanceError, dataclass, fields
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, TypeVar, cast, dataclass_transform

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


@dataclass_transform(frozen_default=True)
def plain(kind: type[T]) -> type[T]:
    """Make a subclass of ``Plain`` a frozen dataclass."""
    made = dataclass(init=False, repr=False, eq=False, match_args=False)(kind)
    told = cast("tuple[Field[object], ...]", fields(cast("Any", made)))
    cast("Any", made).FIELD_NAMES = tuple(item.name for item in told)
    cast("Any", made).FIELD_SET = frozenset(cast("Any", made).FIELD_NAMES)
    cast("Any", made).FIELD_DEFAULTS = {item.name: item.default for item in told if item.default is not MISSING}
    cast("Any", made).FIELD_FACTORIES = {item.name: item.default_factory for item in told if item.default_factory is not MISSING}
    return made


class Plain:
    """A frozen value: made, compared, hashed and shown by its fields."""

    FIELD_NAMES: ClassVar[tuple[str, ...]] = ()
    FIELD_SET: ClassVar[frozenset[str]] = frozenset()
    FIELD_DEFAULTS: ClassVar[dict[str, object]] = {}
    FIELD_FACTORIES: ClassVar[dict[str, Callable[[], object]]] = {}

    def __init__(self, *args: object, **kwargs: object) -> None:
        # Made for every message of every look-up: what does not change is found out once, in ``plain``.
        names = self.FIELD_NAMES
        values = (
            {**self.FIELD_DEFAULTS, **dict(zip(names, args, strict=False)), **kwargs}
            if args
            else {**self.FIELD_DEFAULTS, **kwargs}
        )
        for name, make in self.FIELD_FACTORIES.items():
            if name not in values:
                values[name] = make()
        given = len(args) + len(kwargs)
        if given > len(names) or values.keys() != self.FIELD_SET or not kwargs.keys().isdisjoint(names[: len(args)]):
            self._refuse(len(args), kwargs, values)
        self.__dict__.update(values)

    def _refuse(self, given: int, kwargs: dict[str, object], values: dict[str, object]) -> NoReturn:
        names = self.FIELD_NAMES
        if given > len(names) or not kwargs.keys() <= set(names[given:]):
            raise TypeError(f"{type(self).__name__} takes each of these once: {', '.join(names)}")
        raise TypeError(f"{type(self).__name__} needs {next(name for name in names if name not in values)!r}")

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
