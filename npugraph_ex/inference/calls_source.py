"""Writing the quick check of calls as a Python function, from facts alone.

Promise: the text depends on nothing but the facts and the function's parameters. It is built from the phrases in this module;
names out of the facts enter it as string literals, as attributes that are identifiers, or as parameters, never otherwise.  It
returns -1 for a call that fits, else the number of the fact to look at, or -2.
"""

from __future__ import annotations

import ast
import keyword
from collections import Counter
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from npugraph_ex.inference.facts_shapes import used
from npugraph_ex.inference.facts_tensors import TensorFact

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npugraph_ex.inference.facts import Fact, Facts

CHECK: Final = "check_call"
_MUTABLE: Final = frozenset({"list", "dict", "set", "deque", "OrderedDict"})


_STEPS: Final = {
    "attr": "getattr({base}, {key})",
    "item": "{base}[{key}]",
    "raw": "object.__getattribute__({base}, {key})",
    "entry": "dict.__getitem__({base}, {key})",
    "at": "{base}[{key}]",
    "key": "list({base})[{key}]",
    "nth": "list({base}.values())[{key}]",
    "literal": "{base}[{key}]",
    "type": "type({base})",
    "body": "vars({base})",
    "fields": "tuple({base}.__dataclass_fields__)",
}
_PARTS: Final = {part: part for part in ("size", "stride", "storage_offset")}
_PHRASES: Final = {
    "type": "type({value}) is not {type}",
    "len": "len({value}) != {data}",
    "keys": "[*{value}] != {known}",
    "has": "hasattr({value}, {name}) is not {was}",
    "absent": "{data} in {value}.__dict__",
    "own": "{value}.__dict__.keys() != {known}",
    "contains": "{lacks}({number}, {value})",
    "empty": "{value}",
    "some": "{value} is None",
}
"""When a fact of that kind does not hold."""


def compiled(facts: Facts, code: CodeType) -> CodeType:
    """The check as a code object, ready to be marshalled; ``code`` is the function's own, for its parameters."""
    module = compile(source(facts, code), "<npugraph_ex call check>", "exec", dont_inherit=True)
    return next(item for item in module.co_consts if isinstance(item, CodeType))


def source(facts: Facts, code: CodeType) -> str:
    """The check's text, as ``readable_cache`` shows it."""
    return _Writer(facts, code).text()


def prefix_beside(names: Sequence[str]) -> str:
    """Underscores that begin no parameter's name: what the check's own names begin with."""
    prefix = "_"
    while any(name.startswith(prefix) for name in names):
        prefix += "_"
    return prefix


def parameters(code: CodeType) -> list[str]:
    """The names of a function's parameters, in order."""
    count = code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & 0x04) + bool(code.co_flags & 0x08)
    return list(code.co_varnames[:count])


def _header(code: CodeType) -> str:
    """The function's parameters; every one may be left out here, the function's own defaults are put in at load."""
    names = iter(parameters(code))
    parts = [f"{next(names)}=None" for _ in range(code.co_posonlyargcount)]
    parts += ["/"] if parts else []
    parts += [f"{next(names)}=None" for _ in range(code.co_argcount - code.co_posonlyargcount)]
    keywords = [f"{next(names)}=None" for _ in range(code.co_kwonlyargcount)]
    if code.co_flags & 0x04:
        parts.append(f"*{next(names)}")
    elif keywords:
        parts.append("*")
    parts += keywords
    if code.co_flags & 0x08:
        parts.append(f"**{next(names)}")
    return f"def {CHECK}({', '.join(parts)}):"


class _Writer:
    def __init__(self, facts: Facts, code: CodeType) -> None:
        self._facts = facts
        self._code = code
        self._own = prefix_beside(parameters(code))
        self._uses = _uses(facts)
        self._shared = shared_constants(facts)
        self._known: dict[int, str] = {}
        self._lines: list[str] = []

    def text(self) -> str:
        own = self._own
        self._refuse_if(f"{own}function.__code__ is not {own}code or {own}function.__defaults__ is not {own}defaults", -2)
        self._refuse_if(f"{own}function.__kwdefaults__ is not {own}kwdefaults or {own}methods_differ()", -2)
        for number, fact in enumerate(self._facts.facts):
            for condition in self._conditions(number, fact):
                self._refuse_if(condition, number)
        self._refuse_if(f"{own}settings()", -2)
        body = [f"        {line}" for line in [*self._lines, "return -1"]]
        return "\n".join([_header(self._code), "    try:", *body, "    except Exception:", "        return -2", ""])

    def _refuse_if(self, condition: str, number: int) -> None:
        self._lines.append(f"if {condition}: return {number}")

    # ---- places -------------------------------------------------------------------------------------------------------

    def _value(self, number: int) -> str:
        """An expression for the value at a node: itself where it is used once, else a local variable."""
        if number not in self._known:
            base, step, key = self._facts.nodes[number]
            text = self._root(number, step, key) if base < 0 else self._step(self._value(base), step, key)
            if self._uses[number] > 1 and not text.isidentifier():
                name = f"{self._own}v{number}"
                self._lines.append(f"{name} = {text}")
                text = name
            self._known[number] = text
        return self._known[number]

    def _root(self, number: int, step: str, key: Any) -> str:
        own = self._own
        match step:
            case "argument":
                return str(key)
            case "cell":
                return f"{own}cells[{key!r}].cell_contents"
            case "global":
                return f"{own}globals[{key!r}]"
            case "globals":
                return f"{own}globals"
        return f"{own}k{number}"  # a module, the builtins or the function: bound at load

    def _step(self, base: str, step: str, key: Any) -> str:
        if step == "attr" and key.isidentifier() and not keyword.iskeyword(key):
            return f"{base}.{key}"
        if step == "scalar":
            return f"{self._own}scalar({base})"
        return _STEPS[step].format(base=base, key=_literal(key) if step == "literal" else repr(key))

    # ---- facts: conditions under which one does not hold -----------------------------------------------------------------

    def _conditions(self, number: int, fact: Fact) -> Iterator[str]:
        own, data = self._own, fact.data
        match fact.kind:
            case "range":
                yield f"not ({self._range(*data)})"
            case "distinct":
                yield f"len({{{', '.join(f'id({self._value(node)})' for node in data)}}}) != {len(data)}"
            case "storage":
                yield from self._storage(*data)
            case "value":
                yield self._equal(number, fact)
            case "tensor":
                yield self._tensor(self._value(fact.node), TensorFact.parse(data))
            case "contains" if isinstance(data[0], str):
                yield f"({data[0]!r} in {self._value(fact.node)}) is not {bool(data[1])}"
            case "keys" if not _texts(data):
                yield f"{own}keys_differ({number}, {self._value(fact.node)})"
            case "same":
                yield f"{self._value(fact.node)} is not {self._value(data)}"
            case _:
                yield self._simple(number, fact)

    def _simple(self, number: int, fact: Fact) -> str:
        """The kinds whose phrase is one comparison of one value."""
        name, was = fact.data if isinstance(fact.data, list) and fact.kind in {"has", "contains"} else (fact.data, None)
        own, value = self._own, self._value(fact.node)
        return _PHRASES[fact.kind].format(
            value=value,
            data=repr(fact.data),
            name=repr(name),
            lacks=f"{own}holds_otherwise",
            number=number,
            was=bool(was),
            type=f"{own}t{int(fact.data)}" if fact.kind == "type" else "",
            known=f"{own}k{own}{number}",
        )

    def _equal(self, number: int, fact: Fact) -> str:
        value, data, own = self._value(fact.node), fact.data, self._own
        if data is None or isinstance(data, bool):
            return f"{value} is not {data}"
        if isinstance(data, list) and data[0] == "function":
            return f"({own}f := {value}) is not {own}k{own}{number} or {own}f.__code__ is not {own}c{number}"
        if _has_mutable(data):
            return f"{own}differs({number}, {value})"
        return f"({own}f := {value}) is not {own}k{own}{number} and {own}differs({number}, {own}f)"

    def _tensor(self, value: str, fact: TensorFact) -> str:
        own = self._own
        if not value.isidentifier():
            self._lines.append(f"{own}f = {value}")
            value = f"{own}f"
        parts = [
            f"type({value}) is not {own}kind{self._shared['kind', fact.kind]}",
            f"{value}.dtype is not {own}dtype{self._shared['dtype', fact.dtype]}",
            f"not {value}.is_cpu"
            if fact.device == "cpu"
            else f"{value}.device != {own}device{self._shared['device', fact.device]}",
            f"{value}.requires_grad{' is False' if fact.requires_grad else ''}",
            *self._sizes(f"{value}.shape", fact.sizes),
        ]
        if fact.layout == "torch.strided":
            parts += self._sizes(f"{value}.stride()", fact.strides)
        else:
            parts.append(f"{value}.layout is not {own}layout{self._shared['layout', fact.layout]}")
        if fact.offset is not None:
            parts.append(f"{value}.storage_offset() != {int(fact.offset)}")
        if "complex" in fact.dtype:
            parts.append(f"{value}.is_conj() is not {fact.conjugated}")
        if fact.format is not None:
            parts.append(f"{own}format({value}) != {int(fact.format)}")
        return " or ".join(parts)

    def _sizes(self, ask: str, sizes: Sequence[int | None]) -> list[str]:
        if all(size is not None for size in sizes):
            return [f"{ask} != {tuple(sizes)!r}"]
        name = f"{self._own}s"
        fixed = [f"{name}[{axis}] != {size}" for axis, size in enumerate(sizes) if size is not None]
        return [" or ".join([f"len({name} := {ask}) != {len(sizes)}", *fixed])]

    def _storage(self, nodes: Sequence[int], groups: Sequence[int]) -> Iterator[str]:
        own = self._own
        if -1 in groups:
            yield "True"  # a layout without storage: the closer look compares it
            return
        tensors = ", ".join(self._value(node) for node in nodes)
        yield f"len({{*({own}s := {own}storages(({tensors},)))}}) != {len(set(groups))}"
        for place, group in enumerate(groups):
            if group != place:
                yield f"{own}s[{place}] != {own}s[{int(group)}]"

    def _range(self, text: str, places: Sequence[tuple[int, str, int | None]]) -> str:
        used(text)  # refuses what is no arithmetic
        for number, (node, part, axis) in enumerate(places):
            value = self._value(node)
            ask = value if part == "value" else f"{value}.{_PARTS[part]}({'' if axis is None else int(axis)})"
            text = text.replace(f"S[{number}]", ask)
        return text


TENSOR_PARTS: Final = ("kind", "dtype", "device", "layout")


def shared_constants(facts: Facts) -> dict[tuple[str, str], int]:
    """A number for each class, dtype, device and layout of some tensor: many have the same."""
    found: dict[tuple[str, str], int] = {}
    for fact in facts.facts:
        if fact.kind == "tensor":
            tensor = TensorFact.parse(fact.data)
            for part in TENSOR_PARTS:
                found.setdefault((part, getattr(tensor, part)), len(found))
    return found


def _uses(facts: Facts) -> Counter[int]:
    """How often the text names each place."""
    uses = Counter(node for fact in facts.facts for node in fact.nodes)
    for number in range(len(facts.nodes) - 1, -1, -1):
        base = facts.nodes[number][0]
        if base >= 0 and uses[number]:
            uses[base] += 1
    return uses


def _literal(text: str) -> str:
    """A key that was written with ``repr``: read and written again, so that nothing else can stand there."""
    return repr(ast.literal_eval(text))


def _texts(keys: Sequence[Any]) -> bool:
    return all(isinstance(key, str) for key in keys)


def _has_mutable(data: Any) -> bool:
    if isinstance(data, list):
        return bool(data) and (data[0] in _MUTABLE or any(_has_mutable(item) for item in data[1:]))
    return False
