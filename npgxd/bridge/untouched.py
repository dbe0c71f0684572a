"""Running a graph so that afterwards everything is as it was before: what it wrote to, and the random number generators.

A dispatch mode sees every operator before it runs. What an operator is about to write to, and the run did not make itself, is
copied first; afterwards the copies are put back, the last first. Writes that an operator's schema does not tell of are not seen.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from npgxd.bridge.copies import Kept
from npgxd.client.notice import warn_once

if TYPE_CHECKING:
    from collections.abc import Iterator

_Place = tuple[int, int, torch.Size, tuple[int, ...]]


class _CopyBeforeWrite(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Keeps the earlier contents of whatever is written to, for ``put_back``."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._made_here: set[int] = set()
        self._seen: set[_Place] = set()
        self._kept: list[Kept] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for tensor in _written(func, args, kwargs):
            self._keep(tensor)
        given = {_storage(leaf) for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        result = func(*args, **kwargs)
        made = {_storage(leaf) for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)}
        self._made_here |= made - given
        return result

    def _keep(self, tensor: torch.Tensor) -> None:
        storage = _storage(tensor)
        place = (storage, int(tensor.storage_offset()), tensor.shape, tensor.stride())
        if storage in self._made_here or place in self._seen or not tensor.numel():
            return
        self._seen.add(place)
        try:
            self._kept.append(Kept.of(tensor))
        except RuntimeError as error:  # out of memory, above all; the run goes on as the bundled one does
            size = tensor.numel() * tensor.element_size()
            warn_once("bridge copies", f"{size} bytes that a graph writes to cannot be copied, and are written to twice: {error}")

    def put_back(self) -> None:
        with torch.no_grad():
            for kept in reversed(self._kept):
                kept.put_back()


@contextmanager
def untouched() -> Iterator[None]:
    """What runs inside changes nothing that was there before."""
    host = torch.get_rng_state()
    npu: Any = getattr(torch, "npu", None)
    device = npu.get_rng_state() if npu is not None else None
    mode = _CopyBeforeWrite()
    try:
        with mode:
            yield
    finally:
        mode.put_back()
        torch.set_rng_state(host)
        if device is not None:
            npu.set_rng_state(device)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 -- the only identity a storage has


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that ``func``'s schema says it writes to."""
    schema = func._schema  # noqa: SLF001 -- where torch has it
    if not schema.is_mutable:
        return []
    found: list[torch.Tensor] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return found
