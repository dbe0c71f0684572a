"""torch_npu and the backend's name in this environment: who is in charge, and what of it the bridge reaches. Nothing of them is imported."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.bundled import bundled_package
from npgxd.cli.findings._finding import Finding, Grade

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

TOPIC: Final = "torch"
_COPY: Final = Path("_acl_concrete_graph") / "static_kernel.py"
"""In every package that coordinates static kernels by itself."""
_PTH: Final = "npgxd-bridge.pth"


def check(environ: Mapping[str, str]) -> Iterator[Finding]:
    """Who is in charge of static kernels when a job is started from here."""
    if find_spec("torch") is None:
        yield Finding(
            Grade.NOTE, TOPIC, "there is no torch in this environment", "run npgxctl doctor from the environment of the job"
        )
        return
    bundled = bundled_package()
    copies = _copies(bundled)
    followed = _followed()
    if bundled is None:
        yield Finding(Grade.GOOD, TOPIC, "npugraph_ex is the portable backend; no torch_npu bundles one here")
    elif _is_off(environ):
        yield Finding(
            Grade.NOTE,
            TOPIC,
            f"NPGXD_BRIDGE={environ['NPGXD_BRIDGE']}: torch_npu's own npugraph_ex coordinates by itself",
            "unset it to use npgxd",
        )
        return
    elif followed is None:
        yield Finding(
            Grade.BAD,
            TOPIC,
            f"torch_npu has its own npugraph_ex ({bundled}), and the bridge into it is not installed in this interpreter ({sys.executable})",
            f"install npgxd with pip into this environment: {_PTH} must lie in its site-packages; in PYTHONPATH it is not read",
        )
        return
    else:
        yield Finding(Grade.GOOD, TOPIC, f"torch_npu's own npugraph_ex ({bundled}) goes through npgxd.bridge")
    if followed is None:
        return
    covered = [name for name in copies if name in followed]
    if covered:
        yield Finding(Grade.GOOD, TOPIC, f"the bridge covers {', '.join(covered)}")
    for name, path in copies.items():
        if name not in followed:
            yield Finding(
                Grade.NOTE,
                TOPIC,
                f"{name} ({path}) compiles and installs static kernels by itself: the bridge does not know it",
                "give the job npugraph_ex as its backend, and tell the npgxd project of this package",
            )


def _is_off(environ: Mapping[str, str]) -> bool:
    """As the bridge's hook reads it."""
    return environ.get("NPGXD_BRIDGE", "").strip().lower() in {"off", "0", "no", "false"}


def _followed() -> frozenset[str] | None:
    """The modules that the hook of this interpreter follows; None where it has none."""
    return next((frozenset(finder.targets) for finder in sys.meta_path if getattr(finder, "npgxd_bridge", False)), None)  # type: ignore[attr-defined]  # npgxd.bridge.hook's


def _copies(bundled: Path | None) -> dict[str, Path]:
    """Modules that coordinate static kernels by themselves, by every name under which one can be loaded."""
    found: dict[str, Path] = {}
    for package in sorted(path for path in bundled.parent.iterdir() if (path / _COPY).is_file()) if bundled is not None else ():
        for prefix in ("", "torch_npu.dynamo."):
            found[f"{prefix}{package.name}._acl_concrete_graph.static_kernel"] = package / _COPY
    alone = find_spec("torchair") if "torchair" not in sys.modules else None
    for place in (alone.submodule_search_locations if alone is not None else None) or ():
        if (Path(place) / _COPY).is_file():
            found.setdefault("torchair._acl_concrete_graph.static_kernel", Path(place) / _COPY)
    return found
