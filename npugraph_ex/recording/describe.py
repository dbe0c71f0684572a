"""Aten calls told as CANN records: the portable recorder's eyes.

Promise: every call that launches a kernel is either in the records or counted by name among the undescribed, with the reason.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch._ops import OpOverload

from npugraph_ex.recording import tensors
from npugraph_ex.recording.calls import Call, launches_kernel, read_call
from npugraph_ex.recording.matrices import SPECIAL, Told
from npugraph_ex.recording.optypes import OPS, TARGET_TYPES, Op, not_compilable
from npugraph_ex.recording.recorded import Recorded, RecordFile

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch.fx import Node

    from npgxd.wire.messages import CoreCounts

_DECIDES_NOTHING: Final = frozenset({
    "dtype", "layout", "device", "pin_memory", "memory_format", "generator", "non_blocking", "half_to_float", "out_dtype",
    "implicit", "input_dtype", "requires_grad", "rng_state", "sparse_grad", "unused", "return_debug_mask", "philox_seed",
    "philox_offset", "accuracy", "unsafe", "copy",
})  # fmt: skip
"""Arguments that show in the tensors themselves, or in nothing."""
_OPERANDS: Final = frozenset(
    {"self", "other", "exponent", "value", "min", "max", "min_val", "max_val", "weight", "fill_value", "src"}
)
"""Arguments that are operands, also where they are given as numbers."""

COMMUNICATION: Final = frozenset({"_c10d_functional", "_c10d_functional_autograd", "c10d", "c10d_functional"})
"""Operators of torch.distributed: HCCL runs them, op_compiler has nothing to do with them."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a record says beside the call: the process's settings and the toolchain, as far as it is known ("" and None: not)."""

    deterministic: bool = False
    cann_version: str = ""
    cores: CoreCounts | None = None

    @property
    def views(self) -> bool:
        """The record schema of CANN 9.1 and later says how tensors lie in their storage."""
        return not self.cann_version.startswith(("8.", "9.0"))

    @property
    def platform(self) -> dict[str, int] | None:
        """``platform_info``, which records have from CANN 9.0 on."""
        if self.cores is None or self.cann_version.startswith("8."):
            return None
        return {"cube_core_cnt": self.cores.cube, "vector_core_cnt": self.cores.vector}


def describe(call: Call) -> list[Told]:
    """The operators that ``call`` becomes on an NPU. Undescribable says why there are none."""
    special = SPECIAL.get(call.name)
    if special is not None:
        return special(call)
    entry = OPS.get(call.name)
    if entry is None:
        raise tensors.Undescribable("not in the table of operators")
    return [_by_arguments(call, entry if isinstance(entry, Op) else Op(entry))]


def _by_arguments(call: Call, op: Op) -> Told:
    """Tensors become inputs, the rest attributes, in the order of the schema."""
    telling = _Telling(call, op)
    for name, value in call.arguments.items():
        if name not in _DECIDES_NOTHING and name not in op.drop:
            telling.tell(name, value)
    results = call.results()
    names = ["y"] if len(results) == 1 else [f"y{position}" for position in range(len(results))]
    outputs = [None if item is None else tensors.tensor(item, names[i], i) for i, item in enumerate(results)]
    return telling.op_type, telling.inputs, outputs, telling.attributes


class _Telling:
    """The inputs and attributes of one operator, as they are found among a call's arguments."""

    def __init__(self, call: Call, op: Op) -> None:
        self._call = call
        self._op = op
        self.op_type = op.boolean if op.boolean and _operand_dtype(call) == torch.bool else op.op_type
        self.inputs: list[Any] = []
        self.attributes: list[Any] = []

    def tell(self, name: str, value: Any) -> None:
        op, inputs = self._op, self.inputs
        label = op.rename.get(name, "x" if name == "self" else name)
        if isinstance(value, torch.Tensor):
            inputs.append(tensors.tensor(value, label, len(inputs)))
        elif value is None:
            if "Tensor" in _type_of(self._call, name):
                inputs.append(None)
        elif _is_tensor_list(value):
            self.attributes += _tensor_list(value, label, inputs, len(self.attributes))
        elif name in op.const:
            inputs.append(tensors.constant(_whole(name, value), label, len(inputs)))
        else:
            self._tell_number(name, label, value)

    def _tell_number(self, name: str, label: str, value: object) -> None:
        """A number is an operand (its value decides nothing), or part of an operator that takes it as an attribute."""
        if name == "other" and self._op.scalar:
            self.op_type = self._op.scalar
            name, label, value = "value", "value", _scalar_value(self._call, value)
        elif name in _OPERANDS and isinstance(value, (bool, int, float, complex)):
            self.inputs.append(tensors.number(_operand_dtype(self._call), label, len(self.inputs)))
            return
        if name == "alpha" and self.op_type in {"Adds", "Muls"}:
            return  # it is in the number already
        self.attributes.append(tensors.attribute(label, value, len(self.attributes)))


def _operand_dtype(call: Call) -> torch.dtype:
    found = [*_tensors(call.arguments.values()), *_tensors(call.results())]
    return found[0].dtype if found else torch.float32


def _tensors(values: Iterable[object]) -> list[torch.Tensor]:
    return [value for value in values if isinstance(value, torch.Tensor)]


def _is_tensor_list(value: object) -> bool:
    return isinstance(value, (list, tuple)) and any(isinstance(item, torch.Tensor) for item in value)


def _tensor_list(value: Any, label: str, inputs: list[Any], attributes: int) -> list[Any]:
    """A dynamic input; where it has holes (``x[:, index]``), an attribute says where."""
    present = [item for item in value if item is not None]
    index = len(inputs)
    inputs.append([tensors.tensor(item, f"{label}{i}", index, tensors.DYNAMIC) for i, item in enumerate(present)])
    if len(present) == len(value):
        return []
    return [tensors.attribute("indexed_sizes", [int(item is not None) for item in value], attributes)]


def _type_of(call: Call, name: str) -> str:
    return next((str(item.type) for item in call.target._schema.arguments if item.name == name), "")  # noqa: SLF001 -- see calls.py


def _whole(name: str, value: object) -> list[int]:
    items = list(value) if isinstance(value, (list, tuple)) else [value]
    if not all(isinstance(item, (int, float)) for item in items):
        raise tensors.Undescribable(f"argument {name!r} is not made of numbers")
    return [int(item) for item in items if isinstance(item, (int, float))]


def _scalar_value(call: Call, value: object) -> float:
    if not isinstance(value, (bool, int, float)):
        raise tensors.Undescribable("a complex number has no attribute type")
    factor = float(call.arguments.get("alpha", 1))
    if call.name == "sub":
        return -factor * value
    if call.name == "div":
        return 1.0 / value if value else float("inf")
    return factor * value


class Describer:
    """An observer that keeps a record of every operator that it sees; safe to drop at any time."""

    def __init__(self, surroundings: Surroundings) -> None:
        self._surroundings = surroundings
        self._records: list[tuple[str, RecordFile]] = []
        self._names: Counter[str] = Counter()
        self._undescribed: Counter[tuple[str, str]] = Counter()

    def saw(self, node: Node, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        """Describe one call. Whatever goes wrong with that is counted under the operator's name, and never raised."""
        target = node.target
        if node.op != "call_function" or getattr(target, "__module__", "") in {"_operator", "math", "torch", "builtins"}:
            return  # sizes and tuples: the host's work
        if not isinstance(target, OpOverload):
            self._undescribed[_name_of(target), "not an operator of torch's dispatcher"] += 1
            return
        try:
            self._describe(target, args, kwargs, result)
        except tensors.Undescribable as fact:
            self._undescribed[str(target), str(fact)] += 1
        except Exception as error:  # noqa: BLE001 -- the user's run goes on whatever is wrong with our description of it
            self._undescribed[str(target), f"{type(error).__name__}: {error}"] += 1

    def _describe(self, target: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any], result: object) -> None:
        if target.namespace in COMMUNICATION:
            return
        if target.namespace not in {"aten", "prims"}:
            raise tensors.Undescribable(f"an operator of {target.namespace!r}, not of torch")
        call = read_call(target, args, kwargs, result)
        if not launches_kernel(call):
            return
        for told in describe(call):
            self._keep(told)

    def _keep(self, told: Told) -> None:
        op_type, inputs, outputs, attributes = told
        record: dict[str, Any] = {
            "op_type": op_type,
            "inputs": inputs,
            "outputs": outputs,
            "attrs": attributes,
            "impl_mode": "high_performance",
            "deterministic": "true" if self._surroundings.deterministic else "false",
            "tune_mode": "static_kernel",
        }
        if self._surroundings.platform is not None:
            record["platform_info"] = self._surroundings.platform
        if not self._surroundings.views:
            _without_views(record)
        prefix = file_prefix(op_type, [*inputs, *outputs])
        name = f"{prefix}_{self._names[prefix]}.json"
        self._names[prefix] += 1
        raw = json.dumps(record, sort_keys=True, indent=2, allow_nan=False).encode()
        self._records.append((op_type, (name, raw)))

    def recorded(self) -> Recorded:
        """All that was seen, in a dump's three folders."""
        refused = not_compilable(self._surroundings.cann_version)
        return Recorded(
            target=tuple(file for op_type, file in self._records if op_type in TARGET_TYPES),
            debug=tuple(file for _, file in self._records),
            compilable=tuple(file for op_type, file in self._records if op_type not in refused),
            undescribed=tuple((name, count, why) for (name, why), count in sorted(self._undescribed.items())),
        )


def file_prefix(op_type: str, told: list[Any]) -> str:
    """A record's file name without its counter: ``<op type>_<dtype>_<format>_<dims>`` of the first tensor."""
    first = next((item for entry in told for item in (entry if isinstance(entry, list) else [entry]) if item), None)
    if first is None:
        return op_type
    return "_".join([op_type, first["dtype"], first["format"], *(str(size) for size in first["shape"])])


def _without_views(record: dict[str, Any]) -> None:
    for entry in [*record["inputs"], *record["outputs"]]:
        for item in entry if isinstance(entry, list) else [entry]:
            for key in ("is_view", "stride", "offset"):
                if item:
                    item.pop(key, None)


def _name_of(target: object) -> str:
    return str(getattr(target, "__qualname__", None) or getattr(target, "__name__", None) or target)
