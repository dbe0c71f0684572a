"""The source that a trace went through: found and written down once, and found again in another process without a trace.

Promise: every function of the user's that Dynamo looked into is accounted for, by its code as its file has it, so that comments, line
numbers and paths do not count; one whose source cannot be found again refuses the entry (UnknownSource). Code of torch, torch_npu
and Python is accounted for by their versions.
"""

from __future__ import annotations

import dis
import hashlib
import importlib.util
import inspect
import json
import sys
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from npgxd.client.codes import code_digest, codes_behind, described
from npgxd.client.versioned import is_versioned
from npgxd.errors import NpgxError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence


class UnknownSource(NpgxError):
    """A function was traced into, and no later process could find its source: its change would not be noticed."""

    code = "UNKNOWN_CODE"
    exit_code = 65


def users(codes: Iterable[CodeType]) -> list[CodeType]:
    """Those of the user's own files."""
    return [code for code in dict.fromkeys(codes) if not is_versioned(code.co_filename)]


def names_in(codes: Iterable[CodeType]) -> frozenset[str]:
    """Every name by which they, or what is nested in them, could have read an attribute or a global."""
    found: set[str] = set()
    for code in _with_nested(codes):
        found.update(code.co_names, (code.co_name,))
        found.update(text for text in code.co_consts if isinstance(text, str) and text.isidentifier())
    return frozenset(found)


def globals_in(codes: Iterable[CodeType]) -> list[str]:
    """Each global that they read, as ``module:name``."""
    modules = modules_by_file()
    found = {
        f"{modules[code.co_filename].__name__}:{step.argval}"
        for code in _with_nested(codes)
        if code.co_filename in modules
        for step in dis.get_instructions(code)
        if step.opname in {"LOAD_GLOBAL", "LOAD_NAME"}
    }
    return sorted(found)


def modules_by_file() -> dict[str, ModuleType]:
    """The user's modules that are loaded, by their files."""
    found: dict[str, ModuleType] = {}
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) if isinstance(module, ModuleType) else None
        if isinstance(file, str) and not is_versioned(file):
            found.setdefault(file, module)
    return found


# ---- writing down -------------------------------------------------------------------------------------------------------------


def sources_of(codes: Iterable[CodeType]) -> dict[str, Any]:
    """What ``changed`` compares. UnknownSource if one of ``codes`` cannot be found again."""
    files: dict[str, list[CodeType]] = {}
    for code in users(codes):
        files.setdefault(code.co_filename, []).append(code)
    modules = modules_by_file()
    told: list[dict[str, Any]] = []
    made: dict[str, str] = {}
    for file, traced in sorted(files.items()):
        module = modules.get(file)
        data = _read(file)
        known = _digests(data, file) if data is not None else {}
        found = {code.co_qualname: known.get(code.co_qualname, []) for code in traced}
        lost = [code for code in traced if code_digest(code) not in found[code.co_qualname]]
        made |= dict(_made_while_running(code) for code in lost)
        if found := {name: digests for name, digests in found.items() if digests}:
            where = {"module": module.__name__} if module is not None else {"file": file}
            told.append({**where, "sha256": hashlib.sha256(data or b"").hexdigest(), "codes": found})
    return {"files": told, "made": made}


def _made_while_running(code: CodeType) -> tuple[str, str]:
    """Where code that no file has is held, ``module:Class.method``, as a dataclass's own methods are; and its digest."""
    for module in modules_by_file().values():
        for path, value in _functions(module):
            if any(piece is code for piece in codes_behind(value)):
                return f"{module.__name__}:{path}", _described(value)
    raise UnknownSource(
        f"function {code.co_qualname} of {Path(code.co_filename).name} was traced into, and another process could not find its source",
        hint="Define it in a file",
    )


def _functions(module: ModuleType) -> Iterator[tuple[str, Any]]:
    for name, value in list(vars(module).items()):
        if isinstance(value, FunctionType):
            yield name, value
        elif isinstance(value, type) and value.__module__ == module.__name__:
            yield from ((f"{name}.{inner}", found) for inner, found in list(vars(value).items()))


# ---- comparing ----------------------------------------------------------------------------------------------------------------


def changed(told: Mapping[str, Any]) -> str:
    """Which function has other code now than ``sources_of`` told; "" if none has."""
    for file in told["files"]:
        path = _path(file)
        data = _read(path) if path else None
        if data is None or path is None:
            return f"the source of {file.get('module') or file.get('file')} is not found"
        if hashlib.sha256(data).hexdigest() == file["sha256"]:
            continue
        try:
            known = _digests(data, path)
        except (SyntaxError, ValueError):
            return f"the source of {file.get('module') or path} is no Python"
        for name, digests in file["codes"].items():
            if known.get(name) != digests:
                return f"the code of {file.get('module') or path}:{name} changed"
    for place, digest in told["made"].items():
        if _described(_at(place)) != digest:
            return f"the code of {place} changed"
    return ""


def _path(file: Mapping[str, Any]) -> str | None:
    """Where a module's source lies in this process, loaded or not."""
    if "module" not in file:
        return str(file["file"])
    module = sys.modules.get(file["module"])
    path = getattr(module, "__file__", None)
    if path is None:
        try:
            spec = importlib.util.find_spec(file["module"])
        except (ImportError, ValueError, AttributeError):
            return None
        path = spec.origin if spec is not None else None
    return str(path) if path is not None else None


def _at(place: str) -> Any:
    name, _, path = place.partition(":")
    value: Any = sys.modules.get(name)
    for part in path.split("."):
        value = inspect.getattr_static(value, part, None)  # as it lies there, a static method as one
    return value


def _read(file: str) -> bytes | None:
    try:
        return Path(file).read_bytes()
    except (OSError, ValueError):
        return None


def _digests(source: bytes, file: str) -> dict[str, list[str]]:
    """The digests of all code in a source file, by its qualified name, of which there can be several of one name."""
    found: dict[str, set[str]] = {}
    for code in _with_nested([compile(source, file, "exec", dont_inherit=True)]):
        found.setdefault(code.co_qualname, set()).add(code_digest(code))
    return {name: sorted(digests) for name, digests in found.items()}


def _with_nested(codes: Iterable[CodeType]) -> Iterator[CodeType]:
    for code in codes:
        yield code
        yield from _with_nested(constant for constant in code.co_consts if isinstance(constant, CodeType))


def _described(value: object) -> str:
    return digest_of_plain(described(value))


def digest_of_plain(value: Sequence[Any] | Mapping[str, Any] | None) -> str:
    """A short digest of plain nested data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:32]
