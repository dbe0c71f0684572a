"""``cache_compile``: a model's method, compiled once and kept."""

from __future__ import annotations

import inspect
from types import FunctionType, MethodType
from typing import TYPE_CHECKING, Any, Final

import torch

from npgxd.errors import ConfigError
from npugraph_ex.inference.opening import Plan
from npugraph_ex.inference.places import Ranks, base_of, check_ranks
from npugraph_ex.inference.settings import agreed, check_ge_cache, guarded
from npugraph_ex.inference.tracing import check_torch
from npugraph_ex.inference.wrapped import CachedMethod
from npugraph_ex.options import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from os import PathLike

_KNOWN: Final = frozenset({"options", "custom_decompositions", "check_calls"})
_METHODS: Final = "Give a method of a torch.nn.Module instance: self.prompt = cache_compile(self._prompt)"


class NotAMethod(ConfigError):
    """``cache_compile`` was given something else than an undecorated method of a module."""

    code = "NOT_A_METHOD"


def cache_compile(
    func: Callable[..., Any],
    *,
    config: Mapping[str, object] | object | None = None,
    backend: Any | None = None,
    dynamic: bool = True,
    cache_dir: str | PathLike[str] | None = None,
    global_rank: int | None = None,
    tp_rank: int | None = None,
    pp_rank: int | None = None,
    ge_cache: bool = False,
    **kwargs: Any,
) -> CachedMethod:
    """``func``, a method of a module, as a callable whose compiled graph is kept for later starts.

    Nothing is traced before the first call. ``kwargs``: ``options`` as for ``torch.compile``; ``custom_decompositions`` as
    ``torch._decomp.get_decompositions`` returns them; ``check_calls=False`` to check only the first call, as the vendor's does.

    Raises at once, with what to do: NotAMethod, OptionError (options that are unknown or disagree), ConfigError (``cache_dir``, ranks),
    TorchUnsupported.
    """
    method = _undecorated(func)
    if unknown := sorted(set(kwargs) - _KNOWN):
        raise OptionError(
            f"cache_compile() has no parameter {unknown[0]!r}",
            hint="Beside the named ones there are " + ", ".join(sorted(_KNOWN)),
        )
    for name, value in (("dynamic", dynamic), ("check_calls", kwargs.get("check_calls", True))):
        if not isinstance(value, bool):
            raise OptionError(f"{name}={value!r} is not valid: it must be True or False", option=name)
    check_ge_cache(ge_cache)
    options = agreed(config, backend, kwargs.get("options"))
    decompositions = kwargs.get("custom_decompositions") or {}
    guarded(decompositions)
    ranks = Ranks(global_rank, tp_rank, pp_rank)
    check_ranks(ranks)
    check_torch()
    plan = Plan(
        options=options,
        dynamic=dynamic,
        base=base_of(cache_dir),
        ranks=ranks,
        decompositions=dict(decompositions),
        check_calls=kwargs.get("check_calls", True),
    )
    return CachedMethod(method, plan)


def _undecorated(func: object) -> MethodType:
    if not isinstance(func, MethodType) or not isinstance(func.__self__, torch.nn.Module):
        raise NotAMethod(f"{_shown(func)} is not a method of a torch.nn.Module instance", hint=_METHODS)
    function = func.__func__
    if not isinstance(function, FunctionType) or hasattr(function, "__wrapped__") or _is_inner(function, func.__self__):
        raise NotAMethod(
            f"{_shown(func)} is decorated",
            hint="Wrap a method that calls it: the entry is made from the method's own code, which a decorator hides",
        )
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise NotAMethod(f"{_shown(func)} does not return its result at once", hint=_METHODS)
    return func


def _is_inner(function: FunctionType, instance: torch.nn.Module) -> bool:
    """Whether ``function`` was made inside another one and is not the class's own: what decorators without functools.wraps leave."""
    _, _, owner = function.__qualname__.rpartition(".<locals>.")
    return (
        "." not in owner
        and "<locals>" in function.__qualname__
        and all(
            vars(kind).get(function.__name__) is not function or kind.__qualname__ != function.__qualname__.rpartition(".")[0]
            for kind in type(instance).__mro__
        )
    )


def _shown(func: object) -> str:
    return str(getattr(func, "__qualname__", "") or repr(func))
