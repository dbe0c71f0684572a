"""A graph's constant tensors as bytes: no pickle, no code, only sizes and numbers.

Promise: ``loaded`` gives tensors equal to those that ``stored`` got, with their strides, on the device of the same kind.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch

from npugraph_ex.inference.cacheable import NotCacheable, Why
from npugraph_ex.inference.container import EntryDamaged

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_DTYPES: Final = {
    str(value).removeprefix("torch."): value
    for value in vars(torch).values()
    if isinstance(value, torch.dtype) and not str(value).removeprefix("torch.").startswith(("q", "bits"))
}


def stored(tensors: Mapping[str, torch.Tensor]) -> tuple[list[dict[str, Any]], bytes]:
    """What describes each tensor, in the order of names, and all their data. NotCacheable for one that is more than numbers."""
    described: list[dict[str, Any]] = []
    data = bytearray()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        kind = str(tensor.dtype).removeprefix("torch.")
        if kind not in _DTYPES or tensor.is_conj() or tensor.is_neg():
            raise NotCacheable(f"the graph holds {name}, whose {kind} values cannot be written down", why=Why.UNSERIALISABLE)
        described.append(
            {
                "name": name,
                "dtype": kind,
                "shape": list(tensor.shape),
                "stride": list(tensor.stride()),
                "device": tensor.device.type,
                "at": len(data),
            }
        )
        flat = tensor.cpu().contiguous().reshape(-1)
        data += flat.view(torch.uint8).numpy().tobytes() if flat.numel() else b""
    return described, bytes(data)


def loaded(described: Sequence[Mapping[str, Any]], data: bytes | memoryview) -> dict[str, torch.Tensor]:
    """The tensors that ``stored`` was given. EntryDamaged if the description does not suit the data."""
    try:
        return {str(item["name"]): _tensor(item, data) for item in described}
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise EntryDamaged(f"the entry's tensors cannot be read: {error}") from error


def _tensor(item: Mapping[str, Any], data: bytes | memoryview) -> torch.Tensor:
    dtype, shape, begin = _DTYPES[item["dtype"]], list(item["shape"]), int(item["at"])
    whole = torch.empty_strided(shape, list(item["stride"]), dtype=dtype)
    length = whole.numel() * whole.element_size()
    if begin < 0 or begin + length > len(data):
        raise ValueError(f"{item['name']} lies outside the data")
    if length:
        whole.copy_(torch.frombuffer(bytearray(data[begin : begin + length]), dtype=dtype).reshape(shape))
    return whole.to(item["device"])
