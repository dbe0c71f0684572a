"""npugraph_ex: the portable ``torch.compile`` backend, with CANN's static kernels from the node's npgxd daemon.

``torch.compile(model, backend="npugraph_ex", options={"static_kernel_compile": True}, fullgraph=True)``

Promises: results equal eager's; the first run of a graph is recorded and is the user's own call, so state and random generators
advance once; nothing that the daemon does, or that its absence means, makes a model fail or wait without end; and what became of
static kernels is always told: in the log, in ``npgxctl status`` and by ``static_kernel_report``.  Importing this package imports
no torch, installs no signal handler and no exit hook.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType

from npgxd import __version__
from npugraph_ex.reports import GraphReport, static_kernel_report

__all__ = ["GraphReport", "__version__", "reset", "static_kernel_report"]


def __getattr__(name: str) -> ModuleType:
    """``npugraph_ex.inference`` needs torch, so it is imported when it is asked for."""
    if name == "inference":
        return importlib.import_module("npugraph_ex.inference")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _join_torch_npu() -> None:
    """Be ``torch.npu.npugraph_ex`` where there is a ``torch.npu`` and it has none of its own: the documented name."""
    npu = getattr(sys.modules.get("torch"), "npu", None)
    if isinstance(npu, ModuleType) and not hasattr(npu, "npugraph_ex"):
        npu.npugraph_ex = sys.modules[__name__]  # type: ignore[attr-defined]


_join_torch_npu()


def reset() -> None:
    """Forget this process's reports, graph numbers and what was said once; for tests."""
    from npugraph_ex import _notices, reports  # noqa: PLC0415 -- only tests need them here

    reports.forget()
    _notices.forget()
