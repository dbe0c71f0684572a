"""A method that ``cache_compile`` wrapped: what its first call decides, and what every later call costs.

Promise: a call is answered by an entry only if that entry fits this process and this call; every other call is compiled as usual and
answered by that.  Whatever goes wrong with files, the daemon or an entry, the caller gets its method's result, and why nothing
was cached is logged once.  The first call looks in order: a fitting file; the daemon; else it builds, saves, publishes, and only then
runs.
"""

from __future__ import annotations

import copy
import inspect
import logging
import threading
from typing import TYPE_CHECKING, Any, Final

import torch

from npugraph_ex.inference.cacheable import wants_backward
from npugraph_ex.inference.opening import Opened, Opening
from npugraph_ex.inference.tracing import nobody_else_traces

if TYPE_CHECKING:
    from pathlib import Path
    from types import FunctionType, MethodType

    from npugraph_ex.inference.opening import Plan

logger = logging.getLogger("npugraph_ex")

_MOST_TOLD: Final = 20
"""Reasons why calls do not fit that are logged: some name a number that is another one each time."""


class CachedMethod:
    """Called as the method that it wraps."""

    def __init__(self, method: MethodType, plan: Plan) -> None:
        self._function: FunctionType = method.__func__  # type: ignore[assignment]
        self._instance: torch.nn.Module = method.__self__  # type: ignore[assignment]
        self._plan = plan
        self._opened: Opened | None = None
        self._usual: Any = None
        self._told: set[str] = set()
        self._lock = threading.RLock()
        self.__name__ = method.__name__
        self.__qualname__ = method.__qualname__
        self.__doc__ = method.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The method's result."""
        opened = self._opened or self._open(args, kwargs)
        if opened.run is None:
            return self._as_usual(args, kwargs)
        if opened.check is not None and opened.check(self._instance, *args, **kwargs):
            with nobody_else_traces():
                reason = opened.check(self._instance, *args, **kwargs)
            if reason:
                self._tell(reason)
                return self._as_usual(args, kwargs)
        return opened.run(self._instance, *args, **kwargs)

    @property
    def origin(self) -> str:
        """Where its graph is from: ``file``, ``daemon``, ``compiled`` (now), ``usual`` (not cached); "" before the first call."""
        return self._opened.origin if self._opened else ""

    @property
    def reason(self) -> str:
        """Why it is not cached; "" if it is, or before the first call."""
        return self._opened.reason if self._opened else ""

    @property
    def path(self) -> Path | None:
        """Its ``compiled_module``; None before the first call."""
        return self._opened.place.file if self._opened and self._opened.place else None

    def __deepcopy__(self, memo: dict[int, Any]) -> CachedMethod:
        """A copied model's wrapped methods are the copy's own."""
        instance = copy.deepcopy(self._instance, memo)
        return CachedMethod(self._function.__get__(instance, type(instance)), self._plan)

    def __reduce__(self) -> tuple[Any, ...]:
        """What was loaded or compiled belongs to the process; a copy opens its own."""
        return CachedMethod, (self._function.__get__(self._instance, type(self._instance)), self._plan)

    def _open(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Opened:
        with self._lock:
            if self._opened is None:
                self._refuse_impossible(args, kwargs)
                self._opened = Opening(self._function, self._instance, self._plan).opened(args, kwargs)
            return self._opened

    def _tell(self, reason: str) -> None:
        with self._lock:
            if reason in self._told or len(self._told) >= _MOST_TOLD:
                return
            self._told.add(reason)
        logger.warning(
            "npugraph_ex: %s: a call does not fit its compile-cache entry and is compiled as usual: %s", self.__qualname__, reason
        )

    def _refuse_impossible(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A call with arguments that the method does not take is an error, as the method's own, and decides nothing."""
        try:
            inspect.signature(self._function, follow_wrapped=False).bind(self._instance, *args, **kwargs)
        except TypeError:
            self._function(self._instance, *args, **kwargs)
            raise

    def _as_usual(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """As ``torch.compile`` does it; for inference, unless an argument asks for a gradient."""
        with self._lock:
            if self._usual is None:
                from npugraph_ex.inference.usual import compiled_as_usual  # noqa: PLC0415 -- imports Dynamo

                self._usual = compiled_as_usual(self._function.__get__(self._instance, type(self._instance)), self._plan)
        if wants_backward({str(at): value for at, value in enumerate((*args, *kwargs.values()))}):
            return self._usual(*args, **kwargs)
        with torch.no_grad():
            return self._usual(*args, **kwargs)
