"""One operator shape record as the simulated CANN understands it: canonical form, meaning, key and kernel name."""

from __future__ import annotations

import hashlib
import json
from functools import cached_property
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .socs import Soc

DEBUG_ONLY = ("bin_type", "bin_info")
"""Keys that only the ``<pid>_debug`` folder has; they do not decide a kernel."""

_DIGEST_CHARS = 16


class BadRecord(ValueError):
    """A file that is not an operator shape record."""


def dumps(value: object) -> str:
    """``value`` as compact JSON with sorted keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


class Record:
    """A parsed record. Two records are the same operator call when their ``canonical`` forms are equal."""

    def __init__(self, fields: dict[str, Any]) -> None:
        self.fields = {key: value for key, value in fields.items() if key not in DEBUG_ONLY}
        self.op_type: str = self.fields["op_type"]

    @classmethod
    def parse(cls, raw: bytes) -> Record:
        """Read one record; BadRecord says what is wrong with it."""
        try:
            fields = json.loads(raw)
        except ValueError as error:
            raise BadRecord(f"not JSON: {error}") from None
        if not isinstance(fields, dict) or not isinstance(fields.get("op_type"), str) or not fields["op_type"].isidentifier():
            raise BadRecord("no op_type")
        for name in ("inputs", "outputs", "attrs"):
            if not isinstance(fields.get(name), list):
                raise BadRecord(f"{name} is not an array")
        record = cls(fields)
        try:
            record.simplified_key(deterministic=False)
            dumps(record.meaning(deterministic=False))
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise BadRecord(f"incomplete: {type(error).__name__} {error}") from None
        return record

    @cached_property
    def canonical(self) -> str:
        """The whole record without what only the debug folder has."""
        return dumps(self.fields)

    @cached_property
    def digest(self) -> str:
        """sha256 of the canonical form, in hex."""
        return hashlib.sha256(self.canonical.encode()).hexdigest()

    @property
    def deterministic(self) -> bool:
        """What the record asks for; the schema has it as a string."""
        return str(self.fields.get("deterministic", "false")).lower() == "true"

    @property
    def impl_mode(self) -> str:
        """``high_performance``, ``high_precision`` or empty."""
        return str(self.fields.get("impl_mode") or "")

    def platform(self, soc: Soc) -> dict[str, int]:
        """The core counts this call was made under: the record's own, else the whole chip's."""
        own = self.fields.get("platform_info") or {}
        return {
            "cube_core_cnt": int(own.get("cube_core_cnt", soc.cube_cores)),
            "vector_core_cnt": int(own.get("vector_core_cnt", soc.vector_cores)),
        }

    def tensors(self, side: str) -> list[dict[str, Any]]:
        """The tensor objects of ``inputs`` or ``outputs``, dynamic ones flattened, absent ones left out."""
        flat: list[dict[str, Any]] = []
        for element in self.fields[side]:
            flat.extend(tensor for tensor in (element if isinstance(element, list) else [element]) if tensor is not None)
        return flat

    def elements(self) -> int:
        """How many elements the largest tensor has."""
        largest = 1
        for tensor in (*self.tensors("inputs"), *self.tensors("outputs")):
            count = 1
            for size in tensor["shape"]:
                count *= max(int(size), 1)
            largest = max(largest, count)
        return largest

    def support_info(self, *, deterministic: bool) -> dict[str, Any]:
        """What a kernel's own json says that it was compiled for. Values of ``const_data`` are not in it."""
        return {
            "implMode": self.impl_mode,
            "opMode": "static",
            "deterministic": "true" if deterministic else "false",
            "inputs": _without_values(self.fields["inputs"]),
            "outputs": _without_values(self.fields["outputs"]),
            "attrs": self.fields["attrs"],
        }

    def simplified_key(self, *, deterministic: bool) -> str:
        """The index's textual key: neither ``const_data`` nor core counts are in it, so two records can share one."""
        parts = [self.op_type, f"d={int(deterministic)},p={self.impl_mode}"]
        parts.extend("|".join(_tensor_key(element) for element in self.fields[side]) for side in ("inputs", "outputs"))
        parts.append(",".join(sorted(f"{attr['name']}={_attr_key(attr.get('value'))}" for attr in self.fields["attrs"])))
        return "/".join(parts)

    def meaning(self, *, deterministic: bool) -> dict[str, Any]:
        """What the reader compares to say that a kernel was made for exactly this call, spelled the same however a record is."""
        return {
            "key": self.simplified_key(deterministic=deterministic),
            "const_data": [
                [position, _spelled(tensor["const_data"])]
                for position, tensor in enumerate((*self.tensors("inputs"), *self.tensors("outputs")))
                if "const_data" in tensor
            ],
            "views": [
                [tensor.get("stride"), tensor.get("offset")] if tensor.get("is_view") else None
                for tensor in (*self.tensors("inputs"), *self.tensors("outputs"))
            ],
            "extra_params": self.fields.get("extra_params") or {},
        }

    def kernel_name(self, *, deterministic: bool) -> str:
        """``static_kernel_<Op>_<first input>_<digest>_d<0|1>``: unique for a record, and the same wherever it is compiled."""
        inputs = self.tensors("inputs") or self.tensors("outputs")
        head = inputs[0] if inputs else {"dtype": "none", "format": "ND", "shape": []}
        shape = "_".join(str(size) for size in head["shape"][:8])
        described = "_".join(part for part in (str(head["dtype"]), str(head["format"]), shape) if part)
        safe = "".join(char if char.isalnum() or char == "_" else "_" for char in described)[:80]
        return f"static_kernel_{self.op_type}_{safe}_{self.digest[:_DIGEST_CHARS]}_d{int(deterministic)}"


def _without_values(elements: list[Any]) -> list[Any]:
    def strip(element: Any) -> Any:
        if isinstance(element, list):
            return [strip(item) for item in element]
        return element and {key: value for key, value in element.items() if key != "const_data"}

    return [strip(element) for element in elements]


def _tensor_key(element: Any) -> str:
    if element is None:
        return "-"
    if isinstance(element, list):
        return "[" + ";".join(_tensor_key(tensor) for tensor in element) + "]"
    shape = "_".join(format(int(size), "x") for size in element["shape"])
    return f"{element['dtype']},{element['format']},{shape}"


def _attr_key(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ";".join(_attr_key(item) for item in value) + "]"
    return str(_spelled(value))


def _spelled(value: Any) -> Any:
    """Numbers in one spelling: ``1``, ``1.0`` and ``true`` are one, as are ``0.1`` and what 32 bits make of it."""
    if isinstance(value, list):
        return [_spelled(item) for item in value]
    if isinstance(value, (bool, int)):
        return int(value)
    if isinstance(value, float):
        return int(value) if value.is_integer() else float(f"{value:.7g}")
    return value
