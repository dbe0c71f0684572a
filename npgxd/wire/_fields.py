"""Strict, declarative checks for message fields: a type and a bound for each, and one error form for all of them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from npgxd.errors import ProtocolError
from npgxd.wire import limits

T = TypeVar("T")
Check = Callable[[str, object], T]


def text(maximum: int = limits.MAX_NAME, *, empty: bool = True) -> Check[str]:
    """A str of at most ``maximum`` characters, without NUL."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or len(value) > maximum or "\0" in value or (not empty and not value):
            raise ProtocolError(f"field {name!r} must be text of {0 if empty else 1} to {maximum} characters")
        return value

    return check


def pattern(allowed: str, meaning: str) -> Check[str]:
    """A str that matches the regular expression ``allowed`` as a whole; ``meaning`` says so to people."""
    compiled = re.compile(allowed)

    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or not compiled.fullmatch(value):
            raise ProtocolError(f"field {name!r} must be {meaning}")
        return value

    return check


def identifier(length: int) -> Check[str]:
    """Lower-case hexadecimal of exactly ``length`` digits."""

    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or len(value) != length or value.strip("0123456789abcdef"):
            raise ProtocolError(f"field {name!r} must be {length} lower-case hexadecimal digits")
        return value

    return check


def integer(low: int, high: int) -> Check[int]:
    """An int (never a bool) in ``low .. high``."""

    def check(name: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ProtocolError(f"field {name!r} must be an integer from {low} to {high}")
        return value

    return check


def number(low: float, high: float) -> Check[float]:
    """A finite number in ``low .. high``."""

    def check(name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
            raise ProtocolError(f"field {name!r} must be a number from {low} to {high}")
        return float(value)

    return check


def flag(name: str, value: object) -> bool:
    """A bool."""
    if not isinstance(value, bool):
        raise ProtocolError(f"field {name!r} must be true or false")
    return value


def word(kind: type[T]) -> Check[T]:
    """A member of a ``StrEnum``."""

    def check(name: str, value: object) -> T:
        try:
            return kind(value)  # type: ignore[call-arg]  # an enum is called with its value
        except ValueError:
            allowed = ", ".join(str(member) for member in kind)  # type: ignore[attr-defined]  # enums iterate
            raise ProtocolError(f"field {name!r} must be one of: {allowed}") from None

    return check


def optional(inner: Check[T]) -> Check[T | None]:
    """``inner`` or None."""

    def check(name: str, value: object) -> T | None:
        return None if value is None else inner(name, value)

    return check


def sequence(inner: Check[T], maximum: int) -> Check[tuple[T, ...]]:
    """A list of at most ``maximum`` items, each checked by ``inner``."""

    def check(name: str, value: object) -> tuple[T, ...]:
        if not isinstance(value, (list, tuple)) or len(value) > maximum:
            raise ProtocolError(f"field {name!r} must be a list of at most {maximum} items")
        return tuple(inner(f"{name}[{i}]", item) for i, item in enumerate(value))

    return check


def mapping(inner: Check[T], maximum: int, *, key: Check[str] | None = None) -> Check[dict[str, T]]:
    """A map of at most ``maximum`` names, checked by ``key``, to values checked by ``inner``."""
    name_check = key or text(limits.MAX_NAME)

    def check(name: str, value: object) -> dict[str, T]:
        if not isinstance(value, dict) or len(value) > maximum:
            raise ProtocolError(f"field {name!r} must be a map of at most {maximum} entries")
        return {name_check(f"{name} key", k): inner(f"{name}.{k}", v) for k, v in value.items()}

    return check


def anything(_name: str, value: object) -> Any:
    """Whatever msgpack can carry; the reader of it checks."""
    return value


def take(header: Mapping[str, object], name: str, check: Check[T], default: object = ...) -> T:
    """Field ``name`` of ``header``, checked; a missing field without default is an error."""
    if name not in header:
        if default is ...:
            raise ProtocolError(f"field {name!r} is missing")
        return check(name, default)
    return check(name, header[name])
