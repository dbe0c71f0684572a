"""What a replay gives its caller, from the outputs that the capture had: tensors in the graph's memory, parts of inputs, and numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from npugraph_ex.capture.watching import Watched


class ResultsRefused(Exception):
    """An output of the capture cannot be given again at a replay; the text says why."""


@dataclass(frozen=True, slots=True)
class _Part:
    """An output that lies in the memory of an input: that input itself if ``shape`` is None. ``offset`` counts from the input's own."""

    position: int
    shape: tuple[int, ...] | None
    stride: tuple[int, ...]
    offset: int

    def of(self, inputs: Sequence[Any]) -> torch.Tensor:
        given: torch.Tensor = inputs[self.position]
        if self.shape is None:
            return given
        return given.detach().as_strided(self.shape, self.stride, given.storage_offset() + self.offset)


class Results:
    """The outputs of one capture. Those in the graph's memory are kept, so that nothing else is put there."""

    def __init__(self, outputs: object, arguments: Sequence[Any], watched: Watched, private: Collection[int]) -> None:
        """``arguments`` are what the capture was given; ``private`` the positions of those in a private format."""
        self._is_tuple = isinstance(outputs, tuple)
        listed = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
        self._single = not isinstance(outputs, (list, tuple))
        where = {_storage(value): at for at, value in reversed(list(enumerate(arguments))) if isinstance(value, torch.Tensor)}
        self._told: list[Any] = []
        self._mine: list[tuple[int, torch.Tensor]] = []
        for at, value in enumerate(listed):
            if not isinstance(value, torch.Tensor):
                self._told.append(value)
            elif (position := where.get(_storage(value))) is not None:
                self._told.append(_part(position, value, arguments, private))
            elif at in watched.made:
                self._told.append(None)
                self._mine.append((at, value))
            else:  # a constant of the graph
                self._told.append(value)
        self._parts = [at for at, told in enumerate(self._told) if isinstance(told, _Part)]
        self._held = {_storage(value): 0 for _, value in self._mine}
        self._held = {storage: _uses(storage) for storage in self._held}
        self._given = False

    def give(self, inputs: Sequence[Any], *, cloned: bool) -> object:
        """The caller's outputs after a replay with ``inputs``: its own memory if ``cloned``, else the graph's."""
        outputs = list(self._told)
        for at in self._parts:
            outputs[at] = self._told[at].of(inputs)
        copies: dict[int, Any] = {}
        for at, value in self._mine:
            mine = cloned or value.device.type == "cpu"  # computed from constants when it was captured, and not by a replay
            outputs[at] = self._clone(value, copies) if mine else value.detach()
        self._given = self._given or not cloned
        if self._single:
            return outputs[0]
        return tuple(outputs) if self._is_tuple else outputs

    def in_use(self) -> bool:
        """Whether somebody still holds an output that is in the graph's memory."""
        return self._given and any(_uses(storage) > count for storage, count in self._held.items())

    def _clone(self, value: torch.Tensor, copies: dict[int, Any]) -> torch.Tensor:
        """A copy; outputs of one storage have one copy of it, as they share what is written to them."""
        if len(self._held) == len(self._mine):
            return value.clone()
        storage = _storage(value)
        if storage not in copies:
            copies[storage] = _cloned(value)
        whole = torch.empty(0, dtype=value.dtype, device=value.device)
        return whole.set_(copies[storage], value.storage_offset(), value.shape, value.stride())


def _cloned(value: torch.Tensor) -> torch.UntypedStorage:
    copy = torch.empty(0, dtype=torch.uint8, device=value.device)
    copy.set_(value.untyped_storage())
    return copy.clone().untyped_storage()


def _part(position: int, value: torch.Tensor, arguments: Sequence[Any], private: Collection[int]) -> _Part:
    source: torch.Tensor = arguments[position]
    for at, other in enumerate(arguments):  # the input itself, if it is one of several in this storage
        if isinstance(other, torch.Tensor) and _storage(other) == _storage(value) and _same(other, value):
            return _Part(at, None, (), 0)
    if position in private:
        raise ResultsRefused("an output is a part of an input in a private format")
    if source.dtype is not value.dtype or value.is_conj() or value.is_neg():
        raise ResultsRefused("an output is a part of an input, read in another way")
    return _Part(position, tuple(value.shape), value.stride(), int(value.storage_offset() - source.storage_offset()))


def _same(one: torch.Tensor, other: torch.Tensor) -> bool:
    return (
        one.dtype is other.dtype
        and one.shape == other.shape
        and one.stride() == other.stride()
        and one.storage_offset() == other.storage_offset()
    )


def _uses(storage: int) -> int:
    return int(torch._C._storage_Use_Count(storage))  # noqa: SLF001 -- torch's own graph trees ask it too


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 -- the only identity a storage has
