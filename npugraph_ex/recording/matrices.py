"""Matrix products, copies and convolution gradients: calls whose record is more than their arguments in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from npugraph_ex.recording import tensors

if TYPE_CHECKING:
    from collections.abc import Callable

    from npugraph_ex.recording.calls import Call

Told = tuple[str, list[Any], list[Any], list[Any]]
"""op type, inputs, outputs, attributes."""

_CAST_CODES: Final[dict[torch.dtype, int]] = {
    torch.float32: 0,
    torch.float16: 1,
    torch.int8: 2,
    torch.int32: 3,
    torch.uint8: 4,
    torch.int16: 6,
    torch.int64: 9,
    torch.float64: 11,
    torch.bool: 12,
    torch.complex64: 16,
    torch.complex128: 17,
    torch.bfloat16: 27,
}
"""CANN's numbers of data types, as the operator Cast takes them (ge::DataType)."""


def _matrix(value: torch.Tensor, name: str, index: int, *, transposed: bool) -> tuple[dict[str, Any], bool]:
    """A matrix as it lies in memory, and whether the product reads it transposed."""
    if value.dim() >= 2 and not value.is_contiguous() and value.mT.is_contiguous():  # noqa: PLR2004 -- a matrix
        return tensors.tensor(value.mT, name, index), not transposed
    return tensors.tensor(value, name, index), transposed


def _product(call: Call, first: str, second: str, bias: torch.Tensor | None = None, *, transposed: bool = False) -> Told:
    left, right = call.tensor(first), call.tensor(second)
    batched = left.dim() > 2 and right.dim() > 2  # noqa: PLR2004 -- more than matrices
    x1, t1 = _matrix(left, "x1", 0, transposed=False)
    x2, t2 = _matrix(right, "x2", 1, transposed=transposed)
    half = left.dtype in {torch.float16, torch.bfloat16}
    op_type = "BatchMatMulV2" if batched else "MatMulV3" if half else "MatMulV2"
    flags = ("adj_x1", "adj_x2") if batched else ("transpose_x1", "transpose_x2")
    told_bias = None if bias is None else tensors.tensor(bias, "bias", 2, tensors.OPTIONAL)
    attributes = [tensors.attribute(flags[0], t1, 0), tensors.attribute(flags[1], t2, 1), tensors.attribute("offset_x", 0, 2)]
    return op_type, [x1, x2, told_bias, None], _outputs(call), attributes


def _outputs(call: Call) -> list[Any]:
    results = call.results()
    names = ["y"] if len(results) == 1 else [f"y{position}" for position in range(len(results))]
    return [None if item is None else tensors.tensor(item, names[i], i) for i, item in enumerate(results)]


def _mm(call: Call) -> list[Told]:
    names = [name for name, value in call.arguments.items() if isinstance(value, torch.Tensor)]
    return [_product(call, names[0], names[1])]


def _addmm(call: Call) -> list[Told]:
    added = call.tensor("self")
    first, second = ("batch1", "batch2") if "batch1" in call.arguments else ("mat1", "mat2")
    plain = call.arguments.get("alpha", 1) == 1 and call.arguments.get("beta", 1) == 1
    if plain and added.dim() == 1:
        return [_product(call, first, second, added)]
    product = _product(call, first, second)
    total: Told = ("Add", [tensors.tensor(added, "x1", 0), {**product[2][0], "name": "x2", "index": 1}], _outputs(call), [])
    return [product, total]


def _linear(call: Call) -> list[Told]:
    return [_product(call, "input", "weight", call.arguments.get("bias"), transposed=True)]


def _clone(call: Call) -> list[Told]:
    source = call.tensor("self") if "self" in call.arguments else call.tensor("a")
    return _copy_of(call, source)


def _copy(call: Call) -> list[Told]:
    """``copy_``: from ``src`` into ``self``; a destination that is a view is written through ViewCopy."""
    target, source = call.tensor("self"), call.tensor("src")
    if target.device != source.device:
        return []
    if target.is_contiguous() and source.shape == target.shape:
        return _copy_of(call, source)
    inputs = [tensors.tensor(target, "dst", 0), tensors.tensor(source, "src", 1)]
    return [("ViewCopy", inputs, _outputs(call), [])]


def _copy_of(call: Call, source: torch.Tensor) -> list[Told]:
    result = call.result
    if not isinstance(result, torch.Tensor) or result.device != source.device:
        return []  # between host and device: no operator
    told = tensors.tensor(source, "x", 0)
    if result.dtype != source.dtype:
        code = _CAST_CODES.get(result.dtype)
        if code is None:
            raise tensors.Undescribable(f"dtype {result.dtype} has no number in CANN")
        return [("Cast", [told], _outputs(call), [tensors.attribute("dst_type", code, 0)])]
    if source.is_contiguous() or source.stride() == result.stride():
        return [("TensorMove", [told], _outputs(call), [])]
    order = sorted(range(source.dim()), key=source.stride, reverse=True)
    if source.permute(order).is_contiguous():
        stored = tensors.tensor(source.permute(order), "x", 0)
        back = [order.index(axis) for axis in range(source.dim())]
        return [("Transpose", [stored, tensors.constant(back, "perm", 1)], _outputs(call), [])]
    return [("AsStrided", [told], _outputs(call), [])]


def _convolution_backward(call: Call) -> list[Told]:
    gradient, image, weight = (call.tensor(name) for name in ("grad_output", "input", "weight"))
    to_image, to_weight, to_bias = call.results()
    attributes = [
        tensors.attribute(name, call.arguments[given], i)
        for i, (name, given) in enumerate(
            (("strides", "stride"), ("pads", "padding"), ("dilations", "dilation"), ("groups", "groups"))
        )
    ]
    told: list[Told] = []
    if to_image is not None:
        size = tensors.constant(list(image.shape), "input_size", 0)
        inputs = [size, tensors.tensor(weight, "filter", 1), tensors.tensor(gradient, "out_backprop", 2)]
        told.append(("Conv2DBackpropInput", inputs, [tensors.tensor(to_image, "y", 0)], attributes))
    if to_weight is not None:
        size = tensors.constant(list(weight.shape), "filter_size", 1)
        inputs = [tensors.tensor(image, "x", 0), size, tensors.tensor(gradient, "out_backprop", 2)]
        told.append(("Conv2DBackpropFilter", inputs, [tensors.tensor(to_weight, "y", 0)], attributes))
    if to_bias is not None:
        axes = tensors.constant([axis for axis in range(gradient.dim()) if axis != 1], "axes", 1)
        keep = tensors.attribute("keep_dims", value=False, index=0)
        told.append(("ReduceSum", [tensors.tensor(gradient, "x", 0), axes], [tensors.tensor(to_bias, "y", 0)], [keep]))
    return told


SPECIAL: Final[dict[str, Callable[[Call], list[Told]]]] = {
    "mm": _mm,
    "bmm": _mm,
    "mv": _mm,
    "dot": _mm,
    "matmul": _mm,
    "addmm": _addmm,
    "addmv": lambda call: [_product(call, "mat", "vec")],
    "baddbmm": _addmm,
    "linear": _linear,
    "clone": _clone,
    "lift_fresh_copy": _clone,
    "contiguous": _clone,
    "_to_copy": _clone,
    "to": _clone,
    "convert_element_type": _clone,
    "copy": _copy,
    "convolution_backward": _convolution_backward,
}
"""aten operator -> what it is told as; an empty list means that no kernel runs."""
