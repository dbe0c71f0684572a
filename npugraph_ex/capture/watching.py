"""A run that is watched: what it writes to, what its outputs are, and what in it a captured graph could not do again.

A dispatch mode sees every operator with its real tensors, so writes through views and aliases are seen as writes to the storage that they
reach.  Writes that an operator's schema does not tell of are not seen; nothing else would see them either.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_COPIES: Final = frozenset({"_to_copy", "copy_", "copy", "_copy_from", "_copy_from_and_resize"})
_INDEXING: Final = frozenset({"index", "index_put", "index_put_", "_unsafe_index", "_unsafe_index_put", "_index_put_impl_"})
_MASKS: Final = frozenset({torch.bool, torch.uint8})


@dataclass(frozen=True, slots=True)
class Watched:
    """``obstacle``: why no capture can stand for this run, "" for none. ``written``: positions of the inputs whose memory it writes to.

    ``shared``: those that lie in one storage with another input. ``made``: positions of the outputs that are in memory of the run's own.
    ``tensors``, ``weights`` and ``parameters``: which inputs are tensors, which of them stay where they are, and which are parameters of a
    module.
    """

    obstacle: str
    tensors: tuple[int, ...]
    weights: frozenset[int]
    parameters: frozenset[int]
    written: frozenset[int]
    shared: frozenset[int]
    made: frozenset[int]


def watched(run: Callable[[list[Any]], object], inputs: list[Any]) -> tuple[object, Watched]:
    """Run once for its caller; ``inputs`` is emptied. Raises what the run raises."""
    storages = [value.untyped_storage() if isinstance(value, torch.Tensor) else None for value in inputs]  # kept until the end
    given = [None if storage is None else _cdata(storage) for storage in storages]
    tensors = tuple(at for at, cdata in enumerate(given) if cdata is not None)
    weights = frozenset(at for at in tensors if is_weight(inputs[at]))
    parameters = frozenset(at for at in tensors if isinstance(inputs[at], torch.nn.Parameter))
    mode = _Watch()
    with mode:
        outputs = run(inputs)
    written = frozenset(at for at, cdata in enumerate(given) if cdata in mode.written)
    shared = frozenset(at for at, cdata in enumerate(given) if cdata is not None and given.count(cdata) > 1)
    made = frozenset(
        at for at, value in enumerate(_listed(outputs)) if isinstance(value, torch.Tensor) and _storage(value) in mode.made
    )
    return outputs, Watched(mode.obstacle, tensors, weights, parameters, written, shared, made)


def is_weight(value: object) -> bool:
    """Whether torch.nn or Dynamo says that this tensor stays where it is: parameters, buffers of modules, what is marked static."""
    return isinstance(value, torch.nn.Parameter) or bool(getattr(value, "_dynamo_static_input_type", None))


def _listed(outputs: object) -> Sequence[object]:
    return outputs if isinstance(outputs, (list, tuple)) else (outputs,)


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own __init_subclass__
    """Collects while a graph runs.

    Storages are known by their addresses, and not kept, since a run's intermediate results are large: an address that is free again can be
    taken only by another storage that the run makes, for inputs and constants live longer than it.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.obstacle = ""
        self.written: set[int] = set()
        self.made: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        self.written.update(_storage(tensor) for tensor in _written(func, args, kwargs))
        result = func(*args, **kwargs)
        results = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        known = {_storage(tensor) for tensor in given}
        self.made.update({_storage(tensor) for tensor in results} - known)
        self.obstacle = self.obstacle or _needs_host(func, given) or _between_devices(func, given, results, self.made)
        return result


def _needs_host(func: Any, given: list[torch.Tensor]) -> str:
    """Why the host waits for this operator's result, "" if it does not."""
    name = func.overloadpacket.__name__
    if torch.Tag.data_dependent_output in func.tags:
        return f"operator {func} hands a value to the host"
    if name in _INDEXING:
        masked = any(tensor.dtype in _MASKS for tensor in given[1:])
        return f"operator {func} has a mask as its index, whose size the host must know" if masked else ""
    if torch.Tag.dynamic_output_shape in func.tags:
        return f"operator {func} has a result whose size depends on data"
    return ""


def _between_devices(func: Any, given: list[torch.Tensor], results: list[torch.Tensor], made: set[int]) -> str:
    """What this operator does beside one device's memory, "" if nothing that a capture would miss."""
    on_host = [tensor for tensor in given if tensor.device.type == "cpu"]
    here = {tensor.device for tensor in (*given, *results) if tensor.device.type != "cpu"}
    if len(here) > 1:
        return f"operator {func} works on several devices"
    if not here:  # computed from constants alone: a captured graph has its result for ever
        changed = any(_storage(tensor) not in made for tensor in given) and func._schema.is_mutable  # noqa: SLF001 -- where torch has it
        return f"operator {func} changes memory of the host" if changed else ""
    copies = on_host and func.overloadpacket.__name__ in _COPIES
    if copies or any(tensor.device.type == "cpu" for tensor in results) or any(tensor.dim() for tensor in on_host):
        return f"operator {func} moves data between host and device"
    return ""


def _written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors that ``func``'s schema says it writes to."""
    schema = func._schema  # noqa: SLF001 -- where torch has it
    if not schema.is_mutable:
        return []
    found: list[torch.Tensor] = []
    for position, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[position] if position < len(args) else kwargs.get(argument.name)
            found += [leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor)]
    return found


def _storage(tensor: torch.Tensor) -> int:
    return _cdata(tensor.untyped_storage())


def _cdata(storage: Any) -> int:
    return int(storage._cdata)  # noqa: SLF001 -- the only identity a storage has
