"""npugraph_ex: the portable ``torch.compile`` backend, with CANN's static kernels from the node's npgxd daemon.

``torch.compile(model, backend="npugraph_ex", options={"static_kernel_compile": True}, fullgraph=True)``

Promises: results equal eager's; the first run of a graph is recorded and is the user's own call, so state and random generators
advance once; nothing that the daemon does, or that its absence means, makes a model fail or wait without end; and what became of
static kernels is always told: in the log, in ``npgxctl status`` and by ``static_kernel_report``.  Importing this package imports
no torch, installs no signal handler and no exit hook.

Where torch_npu bundles a package of this name, that one is in charge: importing this one then imports torch_npu, leaves the name to it,
and loads nothing more of its own, so that no program ever has parts of both.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from npgxd import __version__
from npgxd.bundled import bundled_package


def _hand_over() -> bool:
    """Leave this name to torch_npu's own package, if it has one and can be loaded; whether that is so now."""
    if bundled_package() is None:
        return False
    import logging  # noqa: PLC0415 -- only here
    import os  # noqa: PLC0415 -- same

    ours = sys.modules.pop(__name__)
    autoload = os.environ.get("TORCH_DEVICE_BACKEND_AUTOLOAD")
    try:
        importlib.import_module("torch_npu")  # and torch with it; it enters its package, to be loaded when it is looked at
    except Exception as error:  # noqa: BLE001 -- no CANN here, another accelerator: whatever it is, torch works without it
        sys.modules[__name__] = ours
        if autoload is None:  # torch_npu changes it while it is loaded
            os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None)
        else:
            os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = autoload
        logging.getLogger("npugraph_ex").warning(
            "npugraph_ex: torch_npu cannot be loaded, so the portable backend is in charge: %s: %s", type(error).__name__, error
        )
        return False
    theirs = sys.modules.setdefault(__name__, ours)
    if theirs is ours:
        return False
    getattr(theirs, "__path__", None)  # loads it, as an import of it would; an error in it is told by whatever is used of it
    return True


def join_torch_npu() -> None:
    """Be ``torch.npu.npugraph_ex`` where there is a ``torch.npu`` and it has none of its own: the documented name."""
    npu = getattr(sys.modules.get("torch"), "npu", None)
    if isinstance(npu, ModuleType) and not hasattr(npu, "npugraph_ex"):
        npu.npugraph_ex = sys.modules[__name__]  # type: ignore[attr-defined]


if not _hand_over():
    from npugraph_ex.reports import GraphReport, static_kernel_report

    join_torch_npu()

__all__ = ["GraphReport", "__version__", "reset", "static_kernel_report"]


def __getattr__(name: str) -> ModuleType:
    """``npugraph_ex.inference`` needs torch, so it is imported when it is asked for."""
    if name == "inference":
        return importlib.import_module("npugraph_ex.inference")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def reset() -> None:
    """Forget this process's reports, graph numbers and what was said once; for tests."""
    from npugraph_ex import _notices, reports  # noqa: PLC0415 -- only tests need them here

    reports.forget()
    _notices.forget()
