"""Where a captured graph finds its inputs: at the caller's own addresses, or in memory of its own, into which each call's are copied.

In place are weights, and what the graph writes to, so that neither is copied; and with ``clone_input=False`` everything.  What is in place is
part of what a capture is found by, unless the weights are frozen.  An input that is not where it was is captured there once more; one that
moves again gets memory of its own, from which what was written is copied back.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugraph_ex.capture.device import CaptureDevice
    from npugraph_ex.capture.watching import Watched
    from npugraph_ex.options import Options

MOVES: Final = 1
"""How often an input that is no weight may be somewhere else before it is copied."""


@dataclass(frozen=True, slots=True)
class Placing:
    """Positions of inputs. ``back``: of the copied ones, those that are copied back; ``frozen``: in place, wherever the caller says they are.

    ``movable`` are those in place that can be copied instead, ``weights`` those that never are.
    """

    in_place: tuple[int, ...] = ()
    frozen: tuple[int, ...] = ()
    copied: tuple[int, ...] = ()
    back: tuple[int, ...] = ()
    movable: frozenset[int] = frozenset()
    weights: frozenset[int] = frozenset()

    @classmethod
    def of(cls, watched: Watched, options: Options, moved: frozenset[int]) -> Placing:
        """For the inputs of a run that was watched, of which those in ``moved`` do not stay where they are."""
        in_place: list[int] = []
        frozen: list[int] = []
        copied: list[int] = []
        back: list[int] = []
        movable: set[int] = set()
        weights: set[int] = set()
        for at in watched.tensors:
            written = at in watched.written
            if written and at in watched.shared:  # what one of them writes, another one reads: no copy shows that
                in_place.append(at)
            elif at in watched.weights and not written:
                (frozen if options.frozen_parameter and at in watched.parameters else in_place).append(at)
                weights.add(at)
            elif (written or not options.clone_input) and at not in moved:
                in_place.append(at)
                movable.add(at)
            else:
                copied.append(at)
                if written:
                    back.append(at)
        return cls(tuple(in_place), tuple(frozen), tuple(copied), tuple(back), frozenset(movable), frozenset(weights))

    def addresses(self, inputs: Sequence[Any]) -> tuple[int, ...]:
        """Where this call's inputs that stay in place are."""
        return tuple([inputs[at].data_ptr() for at in self.in_place])

    def overlaps(self, inputs: Sequence[Any], watched: Watched) -> bool:
        """Whether a copied input lies in memory that the graph writes to through another one: its copy would not show what is written."""
        if not watched.written or not self.copied:
            return False
        apart = [_storage(inputs[at]) for at in watched.written if at not in watched.shared]
        written = {_storage(inputs[at]) for at in watched.written}
        return len(set(apart)) < len(apart) or any(
            _storage(inputs[at]) in written for at in self.copied if at not in watched.written
        )


class Buffer:
    """Memory of a capture's own for one input."""

    def __init__(self, device: CaptureDevice, like: torch.Tensor) -> None:
        span = 1 + sum((size - 1) * stride for size, stride in zip(like.shape, like.stride(), strict=True)) if like.numel() else 0
        self._span = span if like.numel() > span and device.private_format(like) is None else 0
        """Elements that lie behind more than one index, as an expanded tensor's do; 0 where there are none."""
        if self._span:
            self._flat = torch.empty(self._span, dtype=like.dtype, device=like.device)
            self.tensor = self._flat.as_strided(like.shape, like.stride())
        else:
            self.tensor = device.empty(like)

    def fill(self, value: torch.Tensor) -> None:
        """Copy ``value`` into it, whose format, private or not, stays what it is."""
        if self._span:
            self._flat.copy_(value.as_strided((self._span,), (1,)))
        else:
            self.tensor.copy_(value, non_blocking=True)

    def give_back(self, value: torch.Tensor) -> None:
        """Copy it into ``value``."""
        value.copy_(self.tensor, non_blocking=True)


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)  # noqa: SLF001 -- the only identity a storage has
