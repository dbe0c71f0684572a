"""What a call of the bundled ``compile_static_kernel`` asks for: its options, in whichever of the two packages' ways they come."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field
from typing import Any

from npgxd.wire.messages import CompileOptions

_TRUE = {True, "True", "true", "1"}


@dataclass(frozen=True, slots=True)
class Asked:
    """``build_dir``: where the outputs go, None for the working directory. ``beside_cache``: that is a compile cache's own directory."""

    build_dir: str | None = None
    beside_cache: bool = False
    recompile: bool = False
    options: CompileOptions = field(default_factory=CompileOptions)
    config: Any = None
    """The package's own configuration, as it was given."""


OURS = (
    "config",
    "build_dir",
    "use_cache_compile",
    "cached_cann_version",
    "compile_cache_dir",
    "cached_deterministic",
    "super_kernel_optimize",
)
"""Keyword arguments that are not the graph's."""


def asked(named: dict[str, Any]) -> Asked:
    """Read the keyword arguments called ``OURS``; ValueError for super kernel options that cannot be read."""
    config = named.get("config") or {}

    def setting(name: str) -> Any:
        """An option of npugraph_ex's configuration, or torchair's keyword argument."""
        return config.get(f"static_kernel_compile.{name}", named.get(name))

    eager = config.get("force_eager") in _TRUE
    beside_cache = not eager and setting("use_cache_compile") in _TRUE
    return Asked(
        build_dir=setting("compile_cache_dir") if beside_cache else named.get("build_dir"),
        beside_cache=beside_cache,
        recompile=config.get("disable_static_kernel_compile_cache") in _TRUE,
        options=_super_kernel(config, named),
        config=named.get("config"),
    )


def _super_kernel(config: dict[str, Any], named: dict[str, Any]) -> CompileOptions:
    def option(name: str) -> Any:
        return config.get(name, config.get(f"_{name}", named.get(name)))

    if option("super_kernel_optimize") not in _TRUE:
        return CompileOptions()
    given: dict[str, Any] = {}
    for name in ("super_kernel_optimize_options", "super_kernel_debug_options"):
        value = option(name)
        given |= (ast.literal_eval(value) if isinstance(value, str) else value) or {}
    return CompileOptions(super_kernel={**{name: _spelled(value) for name, value in given.items()}, "enable": "true"})


def _spelled(value: Any) -> str:
    """As op_compiler reads a setting (the portable backend spells them alike, so that both ask for the same kernels)."""
    if isinstance(value, (list, tuple)):
        return ",".join(_spelled(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)
