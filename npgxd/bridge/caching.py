"""What is replaced in the bundled compile cache, and how each replaced method meets what the package does beside it.

Found in torch_npu 2.13: ``LazyCompiledModel`` decides at its first call; ``ModelCacheSaver`` compiles when it is called, saves after the
call has run, takes any code that Dynamo made of an equal function for its own, and removes the whole directory when it is compiled again or
a file cannot be loaded. Every process that loads the package loads that module, so the client is loaded at a first call, and not here.
"""

from __future__ import annotations

import functools
import logging
import sys
from contextlib import nullcontext
from pathlib import Path
from types import MethodType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npgxd.bridge.building import Building

log = logging.getLogger("npgxd")


def replace_cache(module: Any) -> None:
    """Let the bundled ``cache_compile`` of ``module`` go through the daemon, with its source checked, and remove no directory.

    Replacing twice changes nothing. AttributeError, before anything is changed, where the module is another one than is known here.
    """
    lazy, saver, backend = module.LazyCompiledModel, module.ModelCacheSaver, module.CacheBackend
    if getattr(lazy.__call__, "npgxd_bridge", None):
        return
    first = _first_or_later(module, lazy.__call__)
    first.npgxd_bridge = True  # type: ignore[attr-defined]
    changes = (
        (lazy, "__call__", first),
        (saver, "__call__", _watched(saver.__call__)),
        (saver, "save_compiled_fn", _saved_by_us(saver.save_compiled_fn)),
        (saver, "remove_cache", staticmethod(_set_aside_instead(saver.remove_cache))),
        (backend, "__call__", _told_of_traces(backend.__call__, module.torch._guards.TracingContext)),  # noqa: SLF001 -- no public name
    )
    for owner, name, changed in changes:
        setattr(owner, name, changed)


def _first_or_later(module: Any, call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def first_or_later(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self._compiled_model is None:
            callers = sys._getframe(1).f_globals  # noqa: SLF001 -- which the bundled code takes
            self._compiled_model = _opened(module, self, callers, args, kwargs)
        return call(self, *args, **kwargs)

    return first_or_later


def _watched(call: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(call)
    def watched(self: Any, *args: Any, **kwargs: Any) -> Any:
        building = _building_of(self)
        with building.watching() if building is not None else nullcontext():
            return call(self, *args, **kwargs)

    return watched


def _saved_by_us(save: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(save)
    def save_compiled_fn(self: Any, code_id: int) -> None:
        if _building_of(self) is None:  # else what is to be saved was saved before it ran
            save(self, code_id)

    return save_compiled_fn


def _told_of_traces(call: Callable[..., Any], context: Any) -> Callable[..., Any]:
    @functools.wraps(call)
    def traced(self: Any, *args: Any, **kwargs: Any) -> Any:
        building = _building_of(self.saver)
        if building is not None:
            building.traced(list(context.get_traced_code() or ()))
        return call(self, *args, **kwargs)

    return traced


def _building_of(saver: Any) -> Building | None:
    """Who watches this ``ModelCacheSaver``, if anybody does."""
    found: Building | None = getattr(saver, "npgxd_building", None)
    return found


def _set_aside_instead(remove: Callable[[str], None]) -> Callable[[str], None]:
    @functools.wraps(remove)
    def remove_cache(cache_bin: str) -> None:
        """A directory stays, with whatever lies in it; its entry alone is set aside."""
        if not Path(cache_bin).is_dir():
            remove(cache_bin)
            return
        from npgxd.bridge.entry_shelf import FILE, EntryShelf  # noqa: PLC0415 -- see above

        log.warning("npgxd: the entry in %s is given up, and set aside", cache_bin)
        EntryShelf(Path(cache_bin, FILE)).abandon()

    return remove_cache


def _opened(
    module: Any,
    lazy: Any,
    callers: dict[str, Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
) -> Callable[..., Any]:
    """How ``lazy`` runs its method from now on; the bundled way where ours cannot be gone."""
    bundled: Callable[..., Callable[..., Any]] = lazy.compile
    if isinstance(lazy.func, MethodType) and not getattr(lazy, "ge_cache", False):  # such an entry has files beside it
        try:
            from npgxd.bridge.first_call import FirstCall  # noqa: PLC0415 -- see above
            from npgxd.client import current  # noqa: PLC0415 -- same

            return FirstCall(module, sys.modules["torch_npu"], lazy, args, kwargs).opened(current)
        except Exception as error:  # noqa: BLE001 -- what is the user's to mend is raised again by the bundled code
            log.warning("npgxd: %s goes without npgxd: %r", getattr(lazy.func, "__qualname__", lazy.func), error)
    return bundled(callers)
