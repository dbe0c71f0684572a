"""The import hook: it lets torch_npu's own modules load, and then has parts of them replaced.

The ``.pth`` line imports this module at every interpreter's start, so it imports nothing beyond what every interpreter has, and
whatever goes wrong here, now or later, the import that was asked for goes on.
"""

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

_PACKAGES = ("npugraph_ex", "torchair")
TARGETS: dict[str, str] = {
    # Short names are those that a program imports; the long ones are the packages' real names. Each makes a copy of its own.
    **{
        f"{prefix}{package}.{module}": part
        for package in _PACKAGES
        for prefix in ("", "torch_npu.dynamo.")
        for module, part in (
            ("_acl_concrete_graph.static_kernel", "static_kernel"),
            ("inference._cache_compiler", "compile_cache"),
        )
    },
    "torch_npu.dynamo.npugraph_ex": "package",
    "torch_npu": "torch_npu",
}
"""Modules that are followed, and which part of ``replacing`` is for them."""


class BridgeFinder:
    """A finder that finds what the others find, and follows the loading of the bundled modules."""

    npgxd_bridge = True
    targets = frozenset(TARGETS)
    """What it follows, for ``npgxctl doctor``."""

    def find_spec(
        self, name: str, path: "Sequence[str] | None" = None, target: "ModuleType | None" = None
    ) -> "ModuleSpec | None":
        """None for every module but those of ``TARGETS``; for these, what the other finders find, with its loading followed."""
        part = TARGETS.get(name)
        if part is None:
            return None
        for finder in sys.meta_path:
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec: ModuleSpec | None = find(name, path, target)
            if spec is not None:
                _follow(spec, part)
                return spec
        return None


def _follow(spec: "ModuleSpec", part: str) -> None:
    """Have ``replacing`` see the module of ``spec`` when it is executed."""
    loader = spec.loader
    execute: Callable[[ModuleType], None] | None = getattr(loader, "exec_module", None)
    if execute is None:
        return

    def followed(module: "ModuleType") -> None:
        try:
            from npgxd.bridge import replacing  # noqa: PLC0415 -- not at every interpreter's start

            around = replacing.AROUND[part]
        except Exception as error:  # noqa: BLE001 -- torch_npu works without us
            print(f"npgxd: the bridge is not active in this process: {error!r}", file=sys.stderr)  # noqa: T201 -- nothing else is sure to work
            execute(module)
            return
        around(module, execute)

    try:
        loader.exec_module = followed  # type: ignore[method-assign, union-attr]
    except AttributeError:
        return  # a loader without a place for it: the bundled flow stays


def install() -> None:
    """Put the finder in front, once, unless NPGXD_BRIDGE says off."""
    import os  # noqa: PLC0415 -- site has imported it already

    if os.environ.get("NPGXD_BRIDGE", "").strip().lower() in {"off", "0", "no", "false"}:
        return
    if not any(getattr(finder, "npgxd_bridge", False) for finder in sys.meta_path):
        sys.meta_path.insert(0, BridgeFinder())


install()
