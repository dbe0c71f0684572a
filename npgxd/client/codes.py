"""What Python code says, whatever file, line, comment or docstring it stands beside.

Promise: two code objects have one digest exactly if they do the same: equal instructions, constants, names and flags, nested
functions included; file names, line numbers, docstrings and the hash seed never count.  A digest holds for one minor version of
Python, whose version is a fact of its own.  Nothing here imports torch.
"""

from __future__ import annotations

import hashlib
import inspect
import struct
import sys
from functools import cached_property, partial
from pathlib import Path
from types import CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType, MethodType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_MADE_BY_COMPILER: Final = frozenset({"<lambda>", "<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})
_DIGEST_BYTES: Final = 16
_DEPTH: Final = 8


def code_digest(code: CodeType) -> str:
    """Hexadecimal text of 32 characters."""
    found = hashlib.sha256()
    _feed_code(found.update, code)
    return found.digest()[:_DIGEST_BYTES].hex()


def _feed_code(feed: Callable[[bytes], object], code: CodeType) -> None:
    feed(b"code")
    for number in (code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags):
        feed(struct.pack("<Q", number))
    for names in (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars):
        feed("\0".join(names).encode() + b"\1")
    for part in (code.co_code, code.co_exceptiontable):
        feed(struct.pack("<Q", len(part)))
        feed(part)
    for at, constant in enumerate(code.co_consts):
        if at == 0 and isinstance(constant, str) and code.co_name not in _MADE_BY_COMPILER:
            feed(b"doc")  # the compiler keeps a function's docstring first, and puts None there if it has none
        else:
            _feed_constant(feed, constant)


def _feed_constant(feed: Callable[[bytes], object], value: object) -> None:
    if isinstance(value, CodeType):
        _feed_code(feed, value)
    elif isinstance(value, tuple):
        feed(b"tuple%d" % len(value))
        for item in value:
            _feed_constant(feed, item)
    elif isinstance(value, frozenset):
        feed(b"frozenset%d" % len(value))
        for item in sorted(map(_constant_digest, value)):
            feed(item)
    elif isinstance(value, float):
        feed(b"float" + struct.pack("<d", value))
    elif isinstance(value, complex):
        feed(b"complex" + struct.pack("<dd", value.real, value.imag))
    else:
        feed(f"{type(value).__name__}:{value!r}\0".encode())


def _constant_digest(value: object) -> bytes:
    found = hashlib.sha256()
    _feed_constant(found.update, value)
    return found.digest()


# ---- functions, and what stands in a class body --------------------------------------------------------------------------


def described(value: object, depth: int = _DEPTH) -> list[Any] | None:
    """The code behind a function, a method, a property, a partial or a wrapper, with what its closure and wrappers lead to.

    Plain nested lists that are equal where the code is; None for what is no code at all. Values in closures and defaults do not
    count here: those that a trace reads are facts of their own.
    """
    if depth == 0:
        return ["deep"]
    if isinstance(value, FunctionType):
        cells = [found for cell in _contents(value) if (found := described(cell, depth - 1)) is not None]
        return ["def", code_digest(value.__code__), *cells]
    kind = type(value).__name__
    inner = [found for part in _parts(value) if (found := described(part, depth - 1)) is not None]
    if isinstance(value, (GetSetDescriptorType, MemberDescriptorType)):
        return ["slot"]
    return [kind, *inner] if inner else None


def codes_behind(value: object, depth: int = _DEPTH) -> Iterator[CodeType]:
    """Every code object that ``described(value)`` counts, nested ones included."""
    if depth == 0:
        return
    if isinstance(value, FunctionType):
        yield from _with_nested(value.__code__)
    for part in (*_contents(value), *_parts(value)) if isinstance(value, FunctionType) else _parts(value):
        yield from codes_behind(part, depth - 1)


def _with_nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _with_nested(constant)


def _contents(function: FunctionType) -> Iterator[object]:
    for cell in function.__closure__ or ():
        try:
            content = cell.cell_contents
        except ValueError:  # a name that the function closes over and that has no value yet
            continue
        if content is not function:
            yield content


def _parts(value: object) -> tuple[object, ...]:
    if isinstance(value, (staticmethod, classmethod, MethodType)):
        return (value.__func__,)
    if isinstance(value, property):
        return (value.fget, value.fset, value.fdel)
    if isinstance(value, partial):
        return (value.func,)
    if isinstance(value, cached_property):
        return (value.func,)
    if isinstance(value, (FunctionType, type)):
        return ()
    wrapped = inspect.getattr_static(value, "__wrapped__", None)  # lru_cache and what follows its custom
    return (wrapped,) if wrapped is not None and wrapped is not value else ()


# ---- classes --------------------------------------------------------------------------------------------------------------

_MAKING: Final = frozenset(
    [
        "__init__",
        "__new__",
        "__post_init__",
        "__init_subclass__",
        "__class_getitem__",
        "__repr__",
        "__str__",
        "__format__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__setstate__",
        "__del__",
        "__doc__",
        "__module__",
        "__dict__",
        "__weakref__",
        "__annotations__",
        "__copy__",
        "__deepcopy__",
        "__dir__",
        "__sizeof__",
        "__slotnames__",
        "__qualname__",
        "__getnewargs__",
        "__getnewargs_ex__",
        "__replace__",
        "__subclasshook__",
        "__annotate__",
        "__annotate_func__",
        "__annotations_cache__",
    ]
)
"""Special methods that a trace does not call on objects that exist already; where one calls them, their code was traced."""


def class_described(kind: type, names: frozenset[str]) -> list[Any]:
    """Each class that ``kind`` inherits from, in order, with what it defines under one of ``names`` or a special name.

    Equal for two classes that answer alike to code that uses only ``names``; a method that none of them names does not count. Of
    what is no code only that it is there counts: it hides what a base has under that name, and its value is a fact of its own.
    """
    return [[class_name(base), _class_body(base, names)] for base in kind.__mro__ if base is not object]


def _class_body(kind: type, names: frozenset[str]) -> list[Any]:
    body = []
    for name, value in sorted(vars(kind).items()):
        special = name.startswith("__") and name.endswith("__") and name not in _MAKING
        found = described(value) if special or name in names else None
        if found is not None or (name in names and not name.startswith("__")):
            body.append([name, found])
    return body


def class_codes(kind: type, names: frozenset[str]) -> Iterator[CodeType]:
    """Every code object that ``class_described`` counts."""
    for base in kind.__mro__:
        for name, value in vars(base).items():
            if name in names or (name.startswith("__") and name.endswith("__") and name not in _MAKING):
                yield from codes_behind(value)


def own_names(value: Any, names: frozenset[str]) -> list[str]:
    """Which of ``names`` an object has in its own dictionary, where they hide those of its class."""
    return sorted(names & value.__dict__.keys())


def class_name(kind: type) -> str:
    """``module:Qual.name``."""
    return f"{kind.__module__}:{kind.__qualname__}"


# ---- source files ---------------------------------------------------------------------------------------------------------


def source_digests(kinds: Iterable[type], *more: str) -> list[str]:
    """Digests of the files that define the user's own classes among ``kinds`` and their bases, and of those of the modules ``more``.

    For a name that is made before any trace. Where there is no file, the module's name alone.
    """
    names = {base.__module__ for kind in kinds for base in kind.__mro__} | set(more)
    own = sorted(name for name in names if name.partition(".")[0] not in {"torch", "builtins", "torch_npu"})
    return [_file_digest(name) for name in own]


def _file_digest(name: str) -> str:
    module = sys.modules.get(name)
    try:
        path = inspect.getsourcefile(module) if module is not None else None
        return hashlib.sha256(Path(path).read_bytes()).hexdigest() if path else name
    except (TypeError, OSError):
        return name
