"""Choosing the module that knows the Dynamo of this torch."""

from __future__ import annotations

import contextlib
import importlib
import sys
from typing import TYPE_CHECKING, Any, Final

import torch

from npgxd.errors import ConfigError
from npugraph_ex.inference.cacheable import NotCacheable, Why

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from types import FunctionType

    from torch import nn

    from npugraph_ex.inference.capture import Capture
    from npugraph_ex.inference.facts_shapes import Ranges

_VERSIONS: Final = {(2, 13): "2_13"}
_MODULES: Final = "npugraph_ex.inference"


class TorchUnsupported(ConfigError):
    """No module here knows the Dynamo of this torch."""

    code = "TORCH_UNSUPPORTED"


def check_torch(version: str = torch.__version__) -> str:
    """The suffix of the modules that know ``version``. TorchUnsupported if there are none."""
    numbers = tuple(int(part) for part in version.split("+", maxsplit=1)[0].split(".")[:2] if part.isdigit())
    for known, name in _VERSIONS.items():
        if numbers == known:
            return name
    supported = ", ".join(".".join(map(str, known)) for known in _VERSIONS)
    raise TorchUnsupported(
        f"cache_compile cannot trace with torch {version}",
        hint=f"It knows the inside of torch {supported}; use torch.compile(backend='npugraph_ex') with this one",
    )


def trace(
    function: FunctionType,
    instance: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    dynamic: bool,
    decompositions: Mapping[Any, Callable[..., Any]],
) -> Capture:
    """Trace one call whole. NotCacheable if Dynamo cannot; TorchUnsupported if nobody here can."""
    tracer = importlib.import_module(f"{_MODULES}.dynamo_{check_torch()}")  # imports Dynamo: only whoever traces pays for it
    try:
        capture: Capture = tracer.trace(function, instance, args, kwargs, dynamic=dynamic, decompositions=decompositions)
    except (*tracer.NOT_TRACEABLE, tracer.NoGraph) as error:
        first = str(error).strip().splitlines()
        raise NotCacheable(
            f"{function.__qualname__} is no whole graph: {first[0] if first else type(error).__name__}", why=Why.GRAPH_BREAK
        ) from error
    return capture


@contextlib.contextmanager
def nobody_else_traces() -> Iterator[None]:
    """No other thread of this process traces with Dynamo meanwhile.

    While one does, ``torch.nn.Module.__call__`` and ``__getattr__`` are FX's own for every thread (torch 2.13), so a comparison with
    what a model's classes are like is meant only here.  A process that has not imported Dynamo has nothing to wait for.
    """
    frames = sys.modules.get("torch._dynamo.convert_frame")
    with getattr(frames, "compile_lock", contextlib.nullcontext()):
        yield


def ranges(capture: Capture) -> Ranges:
    """What the trace demands of a call's sizes and numbers."""
    found: Ranges = importlib.import_module(f"{_MODULES}.facts_dynamo_{check_torch()}").ranges(capture.shape_env)
    return found
