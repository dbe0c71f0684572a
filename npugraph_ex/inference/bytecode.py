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

from npugraph_ex.inference import dynamo_calls
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
    """``code`` and what it needs: placeholder name -> ``graph``, ``builtins`` or ``module:<name>``."""

    code: bytes
    needs: Mapping[str, str]


def normalised(capture: Capture) -> Bytecode:
    """Raises NotCacheable where the code holds, or reads, something that only this process has."""
    names: dict[str, str] = {}
    needs: dict[str, str] = {}
    for name in sorted(_globals(capture.bytecode)):
        need = _need(name, capture)
        if not need:
            continue
        same = next((given for given, known in needs.items() if known == need), None)
        names[name] = same or (GRAPH if need == "graph" else f"__npugraph_ex_{len(needs)}")
        needs[names[name]] = need
    try:
        return Bytecode(marshal.dumps(_plain(capture.bytecode, names), MARSHAL), needs)
    except ValueError as error:
        raise NotCacheable(
            f"its bytecode holds a constant that cannot be written down ({error})", why=Why.UNSERIALISABLE
        ) from None


def bind(
    code: bytes | memoryview, needs: Mapping[str, str], function: FunctionType, graph: Callable[..., object]
) -> FunctionType:
    """A function with ``function``'s globals, closure and defaults that runs ``code``. EntryDamaged if it is not code."""
    read = code_of(code)
    if read.co_freevars != function.__code__.co_freevars:
        raise EntryDamaged(f"the entry's bytecode was made from a function with other cells than {function.__qualname__}")
    number = next(_numbers)
    names = {name: f"{name}_{number}" for name in needs}
    for name, need in needs.items():
        function.__globals__[names[name]] = _given(need, graph)
    bound = FunctionType(
        _renamed(read, names), function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    bound.__kwdefaults__ = function.__kwdefaults__
    return bound


def code_of(code: bytes | memoryview) -> CodeType:
    """What ``marshal`` wrote of a code object. Only for entries that passed ``files`` or came from the daemon: this is code to be run."""
    try:
        read = marshal.loads(code)  # noqa: S302 -- see inference/files.py
    except (ValueError, EOFError, TypeError) as error:
        raise EntryDamaged(f"the entry's bytecode cannot be read: {error}") from error
    if not isinstance(read, CodeType):
        raise EntryDamaged("the entry's bytecode is not code")
    return read


# ---- writing ---------------------------------------------------------------------------------------------------------


def _need(name: str, capture: Capture) -> str:
    """What stands behind a global that the bytecode reads; "" for the user's own."""
    if name == capture.graph_name:
        return "graph"
    if name in capture.aliases:
        return f"module:{capture.aliases[name]}"
    if name not in capture.installed:
        return ""
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


def _plain(code: CodeType, names: Mapping[str, str]) -> CodeType:
    """``code`` without where it came from."""
    return code.replace(
        co_filename="<npugraph_ex>",
        co_firstlineno=1,
        co_linetable=b"",
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(_plain(item, names) if isinstance(item, CodeType) else item for item in code.co_consts),
    )


# ---- binding ---------------------------------------------------------------------------------------------------------


def _given(need: str, graph: Callable[..., object]) -> Any:
    if need == "graph":
        return graph
    if need == "builtins":
        return builtins.__dict__
    name = need.removeprefix("module:")
    return dynamo_calls if name == _DYNAMO_CALLS else importlib.import_module(name)


def _renamed(code: CodeType, names: Mapping[str, str]) -> CodeType:
    return code.replace(
        co_names=tuple(names.get(name, name) for name in code.co_names),
        co_consts=tuple(_renamed(item, names) if isinstance(item, CodeType) else item for item in code.co_consts),
    )
