"""One compile-cache entry: made from a capture, written as bytes, read back and bound to a model.

Promise: ``made`` gives equal bytes for equal graphs; ``read`` understands a whole entry before any of it is run, and runs nothing;
``Entry.bind`` makes of it what the traced method was: a function of the model's method's arguments.
"""

from __future__ import annotations

import json
import marshal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

from npgxd.errors import NpgxError
from npugraph_ex.compiling import ready, rewrite
from npugraph_ex.engines import devices_of, engine_on
from npugraph_ex.graph import SymbolicSizes
from npugraph_ex.inference import bytecode, calls_source, tensors
from npugraph_ex.inference.container import EntryDamaged, pack, unpack
from npugraph_ex.inference.devices import make_relative
from npugraph_ex.inference.facts_given import UNDECIDING
from npugraph_ex.inference.source import GraphText, StoredGraph, compiled, written

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from types import CodeType, FunctionType

    from npugraph_ex.inference.capture import Capture, GraphInput
    from npugraph_ex.inference.facts import Facts
    from npugraph_ex.options import Options
    from npugraph_ex.recording.recorded import RecordMemory

_SECTIONS: Final = {"header", "facts", "check", "graph", "program", "bytecode", "tensors"}


class EntryForeign(NpgxError):
    """A whole entry that another Python or torch made: its bytecode means nothing here."""

    code = "ENTRY_FOREIGN"
    exit_code = 65


@dataclass(frozen=True, slots=True)
class Header:
    """What an entry says of itself, for people and for binding it; ``facts`` say when it may be used.

    ``inputs`` are (name, where the bytecode takes it from, what it is); ``sizes`` the graph's symbolic sizes; ``needs`` the globals
    that its bytecode reads and ``objects`` its constants that have a name; ``functions`` what its graph calls beside its ``operators``, and
    ``tensors`` describes the graph's constants.
    """

    function: str
    model: str
    dynamic: bool
    python: str
    torch: str
    options: Mapping[str, str]
    inputs: tuple[tuple[str, str, str], ...]
    devices: tuple[str, ...]
    sizes: SymbolicSizes
    needs: Mapping[str, str]
    objects: Mapping[str, str]
    functions: Mapping[str, str]
    operators: tuple[str, ...]
    tensors: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Entry:
    """An entry that was read: ``check``, ``program`` (the graph's source, compiled) and ``code`` are marshalled, and not loaded yet."""

    header: Header
    facts: Mapping[str, Any]
    check: bytes
    source: str
    program: bytes
    code: bytes
    constants: bytes

    def check_code(self) -> CodeType:
        """The quick check of a call (``calls_source``). EntryDamaged if it is none."""
        return bytecode.code_of(self.check)

    def bytecode(self) -> CodeType:
        """The method as Dynamo rewrote it. EntryDamaged if it is none."""
        return bytecode.code_of(self.code)

    def bind(
        self,
        function: FunctionType,
        options: Options,
        *,
        name: str,
        build_dir: Path | None,
        memory: RecordMemory | None = None,
    ) -> Callable[..., object]:
        """The entry as a function of the method's arguments, ``self`` first. EntryDamaged if it cannot be run.

        It runs without gradients and without autocast, which is part of the graph where it was on.
        """
        header = self.header
        constants = tensors.loaded(header.tensors, self.constants)
        stored = StoredGraph(
            GraphText(self.source, header.functions, header.operators, constants), bytecode.code_of(self.program)
        )
        graph = ready(
            stored, engine_on(header.devices), header.sizes, options=options, name=name, build_dir=build_dir, memory=memory
        )

        def run(*inputs: Any) -> object:
            with torch.no_grad(), torch._C._DisableAutocast():  # noqa: SLF001 -- as AOT autograd does
                return graph(list(inputs))

        return bytecode.bind(bytecode.Bytecode(self.code, header.needs, header.objects), function, run)


def made(capture: Capture, facts: Facts, options: Options) -> bytes:
    """The bytes of the entry for ``capture``; its graph is rewritten in place as ``options`` ask. NotCacheable if it holds more than data."""
    graph = capture.graph
    rewrite(graph, [node.meta.get("val") for node in graph.graph.find_nodes(op="placeholder")], options)
    devices = tuple(sorted(set(devices_of(graph))))
    sizes = SymbolicSizes.of_graph(graph)
    make_relative(graph)
    text = written(graph)
    code = bytecode.normalised(capture)
    described, data = tensors.stored(text.tensors)
    header = {
        "function": capture.function.__qualname__,
        "model": f"{type(capture.instance).__module__}.{type(capture.instance).__qualname__}",
        "dynamic": capture.dynamic,
        "python": bytecode.MAGIC,
        "torch": capture.torch_version,
        "options": {name: _told(getattr(options, name)) for name in sorted(set(options.given) - UNDECIDING)},
        "inputs": [[item.name, item.source, _described(item)] for item in capture.inputs],
        "devices": devices,
        "sizes": {"numbers": sizes.numbers, "tensors": sizes.tensors},
        "needs": code.needs,
        "objects": code.objects,
        "functions": text.functions,
        "operators": text.operators,
        "tensors": described,
    }
    return pack(
        {
            "header": _json(header),
            "facts": _json(facts.plain()),
            "check": marshal.dumps(calls_source.compiled(facts, capture.function.__code__), bytecode.MARSHAL),
            "graph": text.source.encode(),
            "program": marshal.dumps(compiled(text.source, text.operators), bytecode.MARSHAL),
            "bytecode": code.code,
            "tensors": data,
        }
    )


def read(data: bytes) -> Entry:
    """Understand ``data``. EntryDamaged, EntryOutdated or EntryForeign if it is nothing that this process can use."""
    sections = unpack(data)
    if missing := _SECTIONS - set(sections):
        raise EntryDamaged(f"the entry has no section {min(missing)}")
    try:
        header = _header(json.loads(bytes(sections["header"])))
        facts = json.loads(bytes(sections["facts"]))
        source = bytes(sections["graph"]).decode()
    except (ValueError, KeyError, TypeError) as error:
        raise EntryDamaged(f"the entry's header cannot be read: {error}") from error
    here = {"python": bytecode.MAGIC, "torch": str(torch.__version__)}
    for name, value in here.items():
        if getattr(header, name) != value:
            raise EntryForeign(
                f"the entry was made by another {name} ({getattr(header, name)}, here it is {value})",
                hint="It is made again",
            )
    return Entry(
        header,
        facts,
        bytes(sections["check"]),
        source,
        bytes(sections["program"]),
        bytes(sections["bytecode"]),
        bytes(sections["tensors"]),
    )


def _header(told: Mapping[str, Any]) -> Header:
    sizes = told["sizes"]
    return Header(
        function=str(told["function"]),
        model=str(told["model"]),
        dynamic=bool(told["dynamic"]),
        python=str(told["python"]),
        torch=str(told["torch"]),
        options={str(name): str(value) for name, value in told["options"].items()},
        inputs=tuple((str(name), str(source), str(kind)) for name, source, kind in told["inputs"]),
        devices=tuple(str(device) for device in told["devices"]),
        sizes=SymbolicSizes(
            tuple(int(at) for at in sizes["numbers"]), tuple((int(at), int(axis)) for at, axis in sizes["tensors"])
        ),
        needs={str(name): str(need) for name, need in told["needs"].items()},
        objects={str(text): str(name) for text, name in told["objects"].items()},
        functions={str(name): str(path) for name, path in told["functions"].items()},
        operators=tuple(str(name) for name in told["operators"]),
        tensors=tuple(dict(item) for item in told["tensors"]),
    )


def _described(item: GraphInput) -> str:
    value = item.value
    if isinstance(value, torch.Tensor):
        kind = str(value.dtype).removeprefix("torch.")
        return f"{kind}[{', '.join(map(str, value.shape))}] stride ({', '.join(map(str, value.stride()))}) on {value.device.type}"
    return f"{type(value).__name__} {value}"


def _told(value: object) -> str:
    """An option for people: functions by name, since an address would make equal entries differ."""
    return getattr(value, "__qualname__", "") or repr(value)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
