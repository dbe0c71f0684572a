"""What ``cache_compile`` was asked for: its options, wherever they were given, and its decompositions.

Promise: ``config``, ``backend`` and ``options`` say the same or it is an error; what only the GE graph mode has is refused by name; and a
decomposition that would call itself without end raises at the trace and names its operator.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any, Final

from npugraph_ex.options import OptionError, Options, read_options

if TYPE_CHECKING:
    from collections.abc import Callable

_GE: Final = "max-autotune"
_GE_HINT: Final = "GE graphs and their cache (ge_cache) exist in torchair alone; npugraph_ex keeps FX graphs and needs no mode"


def agreed(config: object, backend: object, options: object) -> Options:
    """The options of one ``cache_compile`` call. OptionError if what was given disagrees or is not known."""
    told = {"config": _of_config(config), "backend": _of_backend(backend), "options": _of_options(options)}
    given = {name: read for name, read in told.items() if read is not None}
    first = next(iter(given), "")
    for name, read in given.items():
        if read != given[first]:
            raise OptionError(
                f"{first} and {name} do not agree: {_shown(given[first])} and {_shown(read)}",
                hint="Give one of them, or the same options in both",
                option=name,
            )
    return given[first] if first else read_options(None)


def check_ge_cache(ge_cache: object) -> None:
    """``ge_cache`` belongs to the GE graph mode: False is what it can be here."""
    if not isinstance(ge_cache, bool):
        raise OptionError(f"ge_cache={ge_cache!r} is not valid: it must be True or False", option="ge_cache")
    if ge_cache:
        raise OptionError("ge_cache=True needs the GE graph mode (max-autotune)", hint=_GE_HINT, option="ge_cache")


def guarded(decompositions: object) -> dict[Any, Callable[..., Any]]:
    """``custom_decompositions`` with a watch on each: one that comes to itself again is refused (OptionError) instead of never ending."""
    if decompositions is None:
        return {}
    if not isinstance(decompositions, Mapping) or not all(callable(value) for value in decompositions.values()):
        raise OptionError(
            "custom_decompositions must be what get_decompositions() returns: operators and the functions that replace them",
            option="custom_decompositions",
        )
    return {operator: _watched(operator, function) for operator, function in decompositions.items()}


def _watched(operator: object, function: Callable[..., Any]) -> Callable[..., Any]:
    inside = threading.local()

    @functools.wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        if getattr(inside, "busy", False):
            raise OptionError(
                f"the decomposition of {operator} calls {operator} itself, so it would never end",
                hint=f"Let {getattr(function, '__qualname__', function)} use other operators, or register it for another overload",
                option="custom_decompositions",
            )
        inside.busy = True
        try:
            return function(*args, **kwargs)
        finally:
            inside.busy = False

    return run


# ---- where options may be given --------------------------------------------------------------------------------------


def _of_options(options: object) -> Options | None:
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise OptionError(f"options={options!r} is not valid: it must be a dict", option="options")
    return read_options(options)


def _of_config(config: object) -> Options | None:
    """Options by another name: a dict, Options, or an object with options as its attributes."""
    if config is None or isinstance(config, Options):
        return config
    if isinstance(config, Mapping):
        return read_options(config)
    if getattr(config, "mode", None) == _GE:
        raise OptionError("config.mode='max-autotune' is the GE graph mode", hint=_GE_HINT, option="config")
    told = {name: value for name, value in getattr(config, "__dict__", {}).items() if not name.startswith("__")}
    if not told and not hasattr(config, "__dict__"):
        raise OptionError(f"config={config!r} is not valid: it must be a dict of options", option="config")
    return read_options(told)


def _of_backend(backend: object) -> Options | None:
    """The options inside a back end, which must be this package's; None where it says nothing of them."""
    if isinstance(backend, functools.partial):
        if not _is_ours(backend.func) or backend.args or set(backend.keywords) - {"options"}:
            raise _not_ours(backend)
        return _of_options(backend.keywords.get("options"))
    if backend is None or backend == "npugraph_ex" or _is_ours(backend):
        return None
    if hasattr(backend, "config"):
        return _of_config(backend.config)
    raise _not_ours(backend)


def _is_ours(function: object) -> bool:
    """Whether it is the back end; told by its name, since its module imports Dynamo."""
    where = getattr(function, "__module__", ""), getattr(function, "__qualname__", "")
    return where == ("npugraph_ex.backend", "npugraph_ex")


def _not_ours(backend: object) -> OptionError:
    return OptionError(
        f"backend={backend!r} is not npugraph_ex, and only its graphs can be kept",
        hint='Leave backend out, or give "npugraph_ex"',
        option="backend",
    )


def _shown(options: Options) -> str:
    plain = read_options(None)
    changed = {
        item.name: getattr(options, item.name)
        for item in fields(Options)
        if item.name != "given" and (item.name in options.given or getattr(options, item.name) != getattr(plain, item.name))
    }
    return repr(changed)
