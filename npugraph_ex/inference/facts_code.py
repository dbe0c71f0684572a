"""Which code a trace went through, and where each piece of it will be found again.

Promise: every function that was traced into is covered by a fact: as the function itself, as a method of a class that some value
is of, as part of a function that is covered, or by its name in its module. One that is not makes the graph not cacheable. Code
that is part of torch or of Python is covered by their versions too, so what has no name there need not be found.
"""

from __future__ import annotations

import builtins
import dis
import itertools
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import TYPE_CHECKING, Any

from npgxd.client.codes import class_codes, codes_behind
from npgxd.client.versioned import is_versioned
from npugraph_ex.inference.cacheable import NotCacheable, Why
from npugraph_ex.inference.facts_guards import Draft

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from npugraph_ex.inference.facts_paths import Paths


def names_used(traced: Iterable[CodeType]) -> frozenset[str]:
    """Every name by which the traced code could have reached a method: its attributes, its texts, and the pieces' own names."""
    return frozenset(name for code in traced for name in _names(code))


def _names(code: CodeType) -> Iterator[str]:
    yield code.co_name
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
        elif isinstance(constant, str) and constant.isidentifier():
            yield constant


def texts_of(traced: Iterable[CodeType]) -> frozenset[str]:
    """Every string constant of the user's own traced code."""
    own = [inner for code in traced if not is_versioned(code.co_filename) for inner in _nested(code)]
    return frozenset(constant for code in own for constant in code.co_consts if isinstance(constant, str))


def shadow_drafts(traced: Iterable[CodeType], scopes: Mapping[int, Mapping[str, Any]]) -> list[Draft]:
    """That nothing in ``scopes`` (globals, by node) hides the builtins that the user's own code uses: Dynamo does not look."""
    own = [inner for code in traced if not is_versioned(code.co_filename) for inner in _nested(code)]
    loaded = {str(step.argval) for code in own for step in dis.get_instructions(code) if step.opname == "LOAD_GLOBAL"}
    names = sorted(name for name in loaded if hasattr(builtins, name))
    return [Draft("contains", node, (name, False)) for node, scope in scopes.items() for name in names if name not in scope]


def compares_identity(code: CodeType) -> bool:
    """Whether it asks, of anything but a constant, if two objects are one: with ``is``, or ``id``."""
    if is_versioned(code.co_filename):
        return False
    steps = list(dis.get_instructions(code))
    asked = any(step.opname == "IS_OP" and before.opname != "LOAD_CONST" for before, step in itertools.pairwise(steps))
    return asked or "id" in code.co_names or any(map(compares_identity, _inner(code)))


def _inner(code: CodeType) -> Iterator[CodeType]:
    return (constant for constant in code.co_consts if isinstance(constant, CodeType))


def uncovered(
    traced: Iterable[CodeType], functions: Iterable[Any], classes: Iterable[type], names: frozenset[str]
) -> list[CodeType]:
    """What neither ``functions`` nor the methods of ``classes`` account for."""
    covered = {id(code) for function in functions for code in codes_behind(function)}
    covered |= {id(code) for kind in classes for code in class_codes(kind, names)}
    left = [code for code in traced if id(code) not in covered]
    inner = {id(nested) for code in left for nested in _nested(code) if nested is not code}
    return [code for code in left if id(code) not in inner]


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for inner in _inner(code):
        yield from _nested(inner)


def find_by_name(left: Sequence[CodeType], paths: Paths) -> list[Draft]:
    """Facts about the functions, found by name in their modules, that these pieces belong to. NotCacheable if one has no place."""
    modules = _modules_by_file() if left else {}
    found = []
    for code in sorted(left, key=lambda code: (code.co_qualname, code.co_filename)):
        module = modules.get(code.co_filename)
        place = _place(module, code) if module is not None else None
        if module is not None and place is not None:
            node = paths.node(-1, "module", module.__name__)
            for name in place:
                node = paths.node(node, "attr", name)
            found.append(Draft("value", node))
        elif not is_versioned(code.co_filename):
            raise NotCacheable(
                f"function {code.co_qualname} of {Path(code.co_filename).name} was traced into, and another process could not find it",
                hint="Define it in a module, in a class, or make it an attribute of the model",
                why=Why.UNKNOWN_CODE,
                function=code.co_qualname,
            )
    return found


def _modules_by_file() -> dict[str, ModuleType]:
    found: dict[str, ModuleType] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None)
        if isinstance(file, str) and not is_versioned(file):
            found.setdefault(file, module)
    return found


def _place(module: ModuleType, code: CodeType) -> list[str] | None:
    """The attributes that lead from ``module`` to a function that holds ``code``."""
    names = code.co_qualname.split(".<locals>")[0].split(".")
    value: Any = module
    for name in names:
        value = getattr(value, name, None)
    return names if any(piece is code for piece in codes_behind(value)) else None
