"""A graph as source text: how it is written down, run, and made a graph of nodes again.

Promise: ``written`` refuses what another process could not run just as it is; the text is the same in every process for the same
graph; ``StoredGraph`` runs exactly that text, and builds nodes from it only if somebody needs to see them one by one.
"""

from __future__ import annotations

import math
import operator
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.utils._pytree
from torch import fx

from npugraph_ex.inference.cacheable import NotCacheable, Why
from npugraph_ex.inference.container import EntryDamaged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import CodeType

_HEAD: Final = re.compile(r"\s*def forward\(self(?P<inputs>[^()]*)\):\n")
_CALL: Final = re.compile(r"^(?P<begin>    \w+ = )(?P<long>torch\.ops\.(?P<operator>\w+\.\w+\.\w+))\(", re.MULTILINE)
_MODULES: Final = {"math": math, "operator": operator, "_operator": operator, "torch": torch}
"""Where functions that are no operators may come from: arithmetic on sizes."""


@dataclass(frozen=True, slots=True)
class GraphText:
    """The source of ``forward(self, inputs...)``, the functions and operators that it calls, and the tensors that it has as ``self``'s."""

    source: str
    functions: Mapping[str, str]
    operators: tuple[str, ...]
    tensors: Mapping[str, torch.Tensor]


def written(module: fx.GraphModule) -> GraphText:
    """Write ``module`` down. Raises NotCacheable where it holds more than operators, sizes and plain tensors."""
    tensors: dict[str, torch.Tensor] = {}
    for node in module.graph.nodes:
        if node.op == "get_attr":
            tensors[str(node.target)] = _tensor(module, str(node.target))
        elif node.op == "call_function":
            _check_target(node)
        elif node.op not in {"placeholder", "output"}:
            raise NotCacheable(f"the graph calls {node.op} {node.target}", why=Why.PROCESS_LOCAL)
    module.graph.set_codegen(fx.graph.CodeGen())
    code = module.graph.python_code("self")
    functions = {name: _path(value) for name, value in code.globals.items() if name not in _NAMES}
    operators = {str(node.target) for node in module.graph.nodes if isinstance(node.target, torch._ops.OpOverload)}  # noqa: SLF001
    return GraphText(code.src.strip() + "\n", functions, tuple(sorted(operators)), tensors)


class _Tracer(fx.Tracer):
    """Constants stay constants: an operator on one is a node, not a value that every run shares."""

    proxy_buffer_attributes = True


def compiled(source: str, operators: Sequence[str]) -> CodeType:
    """The code of ``source`` as ``StoredGraph`` runs it. EntryDamaged if it is no such source.

    Its forward takes one list of inputs and empties it, so that each input is freed as soon as the graph needs it no more. It
    calls ``operators`` by short names: five look-ups fewer for each, in every call of the graph.
    """
    head = _HEAD.match(source)
    if head is None:
        raise EntryDamaged("the entry's graph is not a forward function")
    names = [name.strip() for name in head["inputs"].split(",") if name.strip()]
    taken = f"    [{', '.join(names)}] = inputs\n" if names else ""
    names_of = {operator: _operator_name(at) for at, operator in enumerate(operators)}
    body = _CALL.sub(lambda call: f"{call['begin']}{names_of.get(call['operator'], call['long'])}(", source[head.end() :])
    return _compiled(f"def forward(self, inputs):\n{taken}    inputs.clear()\n{body}")


class StoredGraph:
    """A graph that was read back; ``code`` is what ``compiled`` makes of its source."""

    def __init__(self, text: GraphText, code: CodeType) -> None:
        if _HEAD.match(text.source) is None:
            raise EntryDamaged("the entry's graph is not a forward function")
        self._operators = {_operator_name(at): _operator(name) for at, name in enumerate(text.operators)}
        self._text = text
        self._root = torch.nn.Module()
        for name, tensor in text.tensors.items():
            self._root.register_buffer(name, tensor, persistent=False)
        self._forward = self._function(code)

    def run(self, inputs: list[Any]) -> object:
        """The graph's outputs; ``inputs`` is emptied."""
        return self._forward(self._root, inputs)

    def module(self) -> fx.GraphModule:
        """The same graph as nodes."""
        root = type("StoredGraph", (torch.nn.Module,), {"forward": self._function(_compiled(self._text.source))})()
        for name, tensor in self._text.tensors.items():
            root.register_buffer(name, tensor, persistent=False)
        return fx.GraphModule(root, _Tracer(autowrap_functions=tuple(self._functions().values())).trace(root))

    def _function(self, code: CodeType) -> Callable[..., object]:
        space = {**_NAMES, **self._functions(), **self._operators}
        exec(code, space)  # noqa: S102 -- an entry is code: see npgxd/client/entry_files.py
        if "forward" not in space:
            raise EntryDamaged("the entry's program is not a forward function")
        made: Callable[..., object] = space["forward"]
        return made

    def _functions(self) -> dict[str, Any]:
        return {name: _found(path) for name, path in self._text.functions.items()}


def _compiled(source: str) -> CodeType:
    try:
        code: CodeType = compile(source, "<npugraph_ex entry>", "exec")
    except SyntaxError as error:
        raise EntryDamaged(f"the entry's graph is not Python: {error}") from error
    return code


_NAMES: Final[Mapping[str, Any]] = {
    "torch": torch,
    "device": torch.device,
    "inf": math.inf,
    "nan": math.nan,
    "NoneType": type(None),
    "fx_pytree": fx._pytree,  # noqa: SLF001 -- a name that torch.fx gives every graph
    "pytree": torch.utils._pytree,  # noqa: SLF001 -- the same
}


def _tensor(module: fx.GraphModule, name: str) -> torch.Tensor:
    value: object = getattr(module, name, None)
    if isinstance(value, torch.nn.Module):
        raise NotCacheable(
            f"the graph branches by {name}, as torch.cond does, which cannot be written down", why=Why.UNSERIALISABLE
        )
    known = isinstance(value, torch.Tensor) and type(value) in {torch.Tensor, torch.nn.Parameter}
    if not isinstance(value, torch.Tensor) or not known or value.layout is not torch.strided or value.is_meta:
        raise NotCacheable(
            f"the graph holds {name}, a {type(value).__name__} that cannot be written down", why=Why.UNSERIALISABLE
        )
    return value


def _check_target(node: fx.Node) -> None:
    target = node.target
    if isinstance(target, torch._ops.OpOverload):  # noqa: SLF001 -- it has no public name
        return
    if isinstance(target, torch._ops.HigherOrderOperator):  # noqa: SLF001
        raise NotCacheable(f"the graph calls {target}, which holds what only this process has", why=Why.PROCESS_LOCAL)
    _path(target)


def _operator_name(at: int) -> str:
    return f"_operator{at}"


def _operator(name: str) -> Callable[..., Any]:
    """What is called: a custom operator is registered by its library, and must be there before anybody counts on the graph."""
    found: Any = torch.ops
    try:
        for part in name.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise EntryDamaged(f"the entry's graph calls the operator {name}, which is not registered in this process") from error
    plain = type(found) is torch._ops.OpOverload  # noqa: SLF001 -- its __call__ does nothing but call _op
    operator_: Callable[..., Any] = found._op if plain else found  # noqa: SLF001
    return operator_


def _path(value: Any) -> str:
    module, name = getattr(value, "__module__", None) or "torch", getattr(value, "__name__", "")
    for base in (module, "torch"):
        if base in _MODULES and name and getattr(_MODULES[base], name, None) is value:
            return f"{base}:{name}"
    raise NotCacheable(f"the graph calls {value!r}, which another process may not have", why=Why.PROCESS_LOCAL)


def _found(path: str) -> Any:
    base, _, name = path.partition(":")
    if base not in _MODULES or not hasattr(_MODULES[base], name):
        raise EntryDamaged(f"the entry's graph calls {path}, which is not among the functions that a graph may call")
    return getattr(_MODULES[base], name)
