"""Building operator shape records in the schema of the CANN dump, for tests, benches and demonstrations."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Record = dict[str, Any]
Tensor = dict[str, Any]


def tensor(
    shape: Sequence[int],
    dtype: str = "float16",
    *,
    name: str = "x",
    index: int = 0,
    tensor_format: str = "ND",
    param_type: str = "required",
    const_data: Sequence[int | float] | str | None = None,
) -> Tensor:
    """A tensor object; ``const_data`` makes it one that the kernel depends on by value."""
    described: Tensor = {
        "name": name,
        "index": index,
        "param_type": param_type,
        "dtype": dtype,
        "shape": list(shape),
        "format": tensor_format,
        "origin_shape": list(shape),
        "origin_format": tensor_format,
        "value_depend": const_data is not None,
        "is_view": False,
    }
    if const_data is not None:
        described["const_data"] = const_data if isinstance(const_data, str) else list(const_data)
    return described


def attribute(name: str, dtype: str, value: object, index: int = 0) -> dict[str, Any]:
    """An attribute object, such as ``attribute("transpose_x1", "bool", False)``."""
    return {"name": name, "dtype": dtype, "index": index, "value": value}


def record(
    op_type: str,
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    attrs: Sequence[dict[str, Any]] = (),
    *,
    impl_mode: str = "",
    deterministic: bool = False,
    cores: tuple[int, int] | None = None,
) -> Record:
    """A whole record; ``cores`` is (vector, cube), absent before CANN 9.0."""
    described: Record = {
        "op_type": op_type,
        "inputs": list(inputs),
        "outputs": list(outputs),
        "attrs": list(attrs),
        "impl_mode": impl_mode,
        "deterministic": "true" if deterministic else "false",
        "tune_mode": "static_kernel",
    }
    if cores is not None:
        described["platform_info"] = {"vector_core_cnt": cores[0], "cube_core_cnt": cores[1]}
    return described


def matmul(
    m: int,
    k: int,
    n: int,
    dtype: str = "float16",
    *,
    op_type: str = "MatMulV2",
    bias: bool = False,
    impl_mode: str = "high_performance",
    deterministic: bool = False,
    cores: tuple[int, int] | None = None,
) -> Record:
    """``(m, k) x (k, n)``, with a bias or without."""
    inputs = [
        tensor((m, k), dtype, name="x1"),
        tensor((k, n), dtype, name="x2", index=1),
        tensor((n,), dtype, name="bias", index=2, param_type="optional") if bias else None,
    ]
    attrs = [attribute("transpose_x1", "bool", False), attribute("transpose_x2", "bool", False, 1)]
    outputs = [tensor((m, n), dtype, name="y")]
    return record(op_type, inputs, outputs, attrs, impl_mode=impl_mode, deterministic=deterministic, cores=cores)


def elementwise(
    op_type: str,
    shape: Sequence[int],
    dtype: str = "float16",
    *,
    inputs: int | None = None,
    impl_mode: str = "",
    deterministic: bool = False,
    cores: tuple[int, int] | None = None,
) -> Record:
    """An op of equal shapes, such as ``elementwise("Add", (4, 64))``; one input for the usual unary ops, else two."""
    count = inputs if inputs is not None else 1 if op_type in _UNARY else 2
    tensors = [tensor(shape, dtype, name=f"x{at + 1}", index=at) for at in range(count)]
    outputs = [tensor(shape, dtype, name="y")]
    return record(op_type, tensors, outputs, impl_mode=impl_mode, deterministic=deterministic, cores=cores)


def reduce(
    op_type: str,
    shape: Sequence[int],
    axes: Sequence[int],
    dtype: str = "float",
    *,
    keep_dims: bool = True,
    cores: tuple[int, int] | None = None,
) -> Record:
    """A reduction whose axes are a constant input: another value of ``axes`` is another record under the same simplifiedKey."""
    inputs = [tensor(shape, dtype), tensor((len(axes),), "int64", name="axes", index=1, const_data=list(axes))]
    kept = {axis % len(shape) for axis in axes}
    result = [1 if at in kept else size for at, size in enumerate(shape) if keep_dims or at not in kept]
    return record(op_type, inputs, [tensor(result, dtype, name="y")], [attribute("keep_dims", "bool", keep_dims)], cores=cores)


def concat(shapes: Sequence[Sequence[int]], axis: int, dtype: str = "float16", *, cores: tuple[int, int] | None = None) -> Record:
    """``ConcatD``: a dynamic input (an array of tensors)."""
    parts = [tensor(shape, dtype, name=f"x{at}", index=at, param_type="dynamic") for at, shape in enumerate(shapes)]
    result = list(shapes[0])
    result[axis] = sum(shape[axis] for shape in shapes)
    return record("ConcatD", [parts], [tensor(result, dtype, name="y")], [attribute("concat_dim", "int", axis)], cores=cores)


def many(count: int, *, cores: tuple[int, int] | None = None) -> list[Record]:
    """``count`` different records over several op types, always the same ones."""
    made: list[Record] = []
    unary, binary = ("Sigmoid", "Rsqrt", "Neg", "Exp"), ("Add", "Mul", "Sub")
    for at in range(count):
        size = 16 * (at // 8 + 1)
        turn = at % 8
        if turn == 0:
            made.append(matmul(size, 64, 128, cores=cores))
        elif turn < 1 + len(unary):
            made.append(elementwise(unary[turn - 1], (size, 64), cores=cores))
        else:
            made.append(elementwise(binary[turn - 1 - len(unary)], (size, 64), cores=cores))
    return made


def encode(described: Record) -> bytes:
    """The record as CANN writes it: sorted keys, indent 2."""
    return json.dumps(described, indent=2, sort_keys=True).encode()


def dump_name(described: Record, counter: int) -> str:
    """The file name that CANN gives: ``<op_type>_<dtype>_<format>_<dim>_..._<counter>.json`` of the first input."""
    first = next((t[0] if isinstance(t, list) else t for t in described["inputs"] if t), None)
    parts = [described["op_type"]]
    if first:
        parts += [first["dtype"], first["format"], *(str(size) for size in first["shape"])]
    return "_".join([*parts, str(counter)]) + ".json"


def write_records(directory: Path, described: Iterable[Record], *, first: int = 0) -> list[Path]:
    """Write records into ``directory`` as a dump does (0700, files 0600, a counter in the names); the paths."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    written: list[Path] = []
    for counter, item in enumerate(described, start=first):
        path = directory / dump_name(item, counter)
        path.write_bytes(encode(item))
        path.chmod(0o600)
        written.append(path)
    return written


_UNARY = frozenset(
    (
        *("Abs", "Cast", "Cos", "Erf", "Exp", "Gelu", "GeluV2", "Identity", "IsNan", "Log", "LogicalNot", "Neg", "OnesLike"),
        *("Reciprocal", "Relu", "Rsqrt", "Sigmoid", "Sign", "Sin", "Softplus", "Sqrt", "Square", "Swish", "Tanh", "TensorMove"),
        "ZerosLike",
    )
)
