"""The bytecode that Dynamo wrote for a method: made the same in every process, kept with ``marshal``, and bound again.

Promise: ``normalised`` gives equal code for equal functions, whatever they are called, wherever they lie and whenever they were
traced; every global that the code reads is either the user's own, or in ``needs``, which says what it was; and ``bind`` gives a
function that reads and writes the user's globals as the traced one does, while what it needs beyond them is put there
under names that nobody else has.
"""

from __future__ import annotations

import builtins
import dis
import importlib
import importlib.util
import itertools
import marshal
import sys
from dataclasses import dataclass
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from npugraph_ex.inference import dynamo_calls, named
from npugraph_ex.inference.cacheable import NotCacheable, Why
from npugraph_ex.inference.container import EntryDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npugraph_ex.inference.capture import Capture

GRAPH: Final = "__npugraph_ex_graph"
MAGIC: Final = importlib.util.MAGIC_NUMBER.hex()
"""What this Python's bytecode is marked with: another Python's is not run."""
_DYNAMO_CALLS: Final = "torch._dynamo.utils"
MARSHAL: Final = 2
"""Later versions of the format write references by reference counts, which differ from run to run."""
_numbers = itertools.count()


@dataclass(frozen=True, slots=True)
class Bytecode:
    """``code``, and what it needs beside it.

    ``needs``: each global that it reads -> ``own`` (the user's, under its own name), ``graph``, ``builtins`` or ``module:<name>``.
    ``objects``: each text that stands for a constant in the code -> the constant's name (see ``named``).
    """

    code: bytes
    needs: Mapping[str, str]
    objects: Mapping[str, str]


def normalised(capture: Capture) -> Bytecode:
    """Raises NotCacheable where the code holds, or reads, something that only this process has."""
    read = sorted((_need(name, capture), name) for name in _globals(capture.bytecode))
    placeholders = {"graph": GRAPH}
    for need, _ in read:
        placeholders.setdefault(need, f"__npugraph_ex_{len(placeholders)}")
    names = {name: name if need == "own" else placeholders[need] for need, name in read}
    objects: dict[str, str] = {}
    try:
        code = marshal.dumps(_plain(capture.bytecode, names, objects), MARSHAL)
    except ValueError as error:
        raise NotCacheable(
            f"its bytecode holds a constant that cannot be written down ({error})", why=Why.UNSERIALISABLE
        ) from None
    return Bytecode(code, {names[name]: need for need, name in read}, objects)


def bind(stored: Bytecode, function: FunctionType, graph: Callable[..., object]) -> FunctionType:
    """A function with ``function``'s globals, closure and defaults that runs ``stored``. EntryDamaged if that cannot be."""
    code = code_of(stored.code)
    if code.co_freevars != function.__code__.co_freevars:
        raise EntryDamaged(f"the entry's bytecode was made from a function with other cells than {function.__qualname__}")
    number = next(_numbers)
    names: dict[str, str] = {}
    for name, need in stored.needs.items():
        if need == "own":
            if name not in function.__globals__ and not hasattr(builtins, name):
                raise EntryDamaged(f"the entry needs {name}, which is not in {function.__module__}")
        else:
            names[name] = f"{name}_{number}"
            function.__globals__[names[name]] = _given(need, graph)
    objects = {text: named.found(name) for text, name in stored.objects.items()}
    bound = FunctionType(
        _filled(code, names, objects), function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound


def code_of(code: bytes | memoryview) -> CodeType:
    """What ``marshal`` wrote of a code object. Only for entries that passed ``files`` or came from the daemon: this is code to be run."""
    try:
        read = marshal.loads(code)  # noqa: S302 -- see npgxd/client/entry_files.py
    except (ValueError, EOFError, TypeError) as error:
        raise EntryDamaged(f"the entry's bytecode cannot be read: {error}") from error
    if not isinstance(read, CodeType):
        raise EntryDamaged("the entry's bytecode is not code")
    return read


# ---- writing ---------------------------------------------------------------------------------------------------------


def _need(name: str, capture: Capture) -> str:
    """What stands behind a global that the bytecode reads."""
    if name == capture.graph_name:
        return "graph"
    if name in capture.aliases:
        return f"module:{capture.aliases[name]}"
    if name not in capture.installed:
        return "own"
    value = capture.function.__globals__.get(name)
    if isinstance(value, ModuleType) and sys.modules.get(value.__name__) is value:
        return f"module:{value.__name__}"
    if value is builtins.__dict__:
        return "builtins"
    raise NotCacheable(
        f"the call needs an object that only this process has: {name} ({type(value).__name__})", why=Why.PROCESS_LOCAL
    )


def _globals(code: CodeType) -> set[str]:
    """Every global that ``code``, or a function made in it, reads, writes or deletes."""
    found = {str(step.argval) for step in dis.get_instructions(code) if step.opname in _GLOBAL_STEPS}
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            found |= _globals(constant)
    return found


_GLOBAL_STEPS: Final = {"LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME"}


def _plain(code: CodeType, names: Mapping[str, str], objects: dict[str, str]) -> CodeType:
    """``code`` without where it came from; ``objects`` gets the constants that are kept by name."""
    return code.replace(
        co_filename="<npugraph_ex>",
        co_firstlineno=1,
        co_linetable=b"",
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(_kept(item, names, objects) for item in code.co_consts),
    )


def _kept(constant: Any, names: Mapping[str, str], objects: dict[str, str]) -> Any:
    if isinstance(constant, CodeType):
        return _plain(constant, names, objects)
    if type(constant) is tuple:
        return tuple(_kept(item, names, objects) for item in constant)
    if constant is None or constant is Ellipsis or type(constant) in _PLAIN:
        return constant
    name = named.name_of(constant)
    if not name:
        raise NotCacheable(
            f"the call needs a constant that cannot be written down: a {type(constant).__name__}", why=Why.UNSERIALISABLE
        )
    text = f"{_OBJECT}{len(objects)}"
    objects[text] = name
    return text


_PLAIN: Final = {bool, int, float, complex, str, bytes, frozenset}
_OBJECT: Final = "\0npugraph_ex object "


# ---- binding ---------------------------------------------------------------------------------------------------------


def _given(need: str, graph: Callable[..., object]) -> Any:
    if need == "graph":
        return graph
    if need == "builtins":
        return builtins.__dict__
    name = need.removeprefix("module:")
    return dynamo_calls if name == _DYNAMO_CALLS else importlib.import_module(name)


def _filled(code: CodeType, names: Mapping[str, str], objects: Mapping[str, Any]) -> CodeType:
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(_object(item, names, objects) for item in code.co_consts),
    )


def _object(constant: Any, names: Mapping[str, str], objects: Mapping[str, Any]) -> Any:
    if isinstance(constant, CodeType):
        return _filled(constant, names, objects)
    if isinstance(constant, tuple):
        return tuple(_object(item, names, objects) for item in constant)
    return objects.get(constant, constant) if isinstance(constant, str) else constant
