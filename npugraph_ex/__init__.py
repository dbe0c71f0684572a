"""npugraph_ex: the portable ``torch.compile`` backend, with CANN's static kernels from the node's npgxd daemon.

``torch.compile(model, backend="npugraph_ex", options={"static_kernel_compile": True}, fullgraph=True)``

Promises: results equal eager's; the first run of a graph is recorded and is the user's own call, so state and random generators
advance once; nothing that the daemon does, or that its absence means, makes a model fail or wait without end; and what became of
static kernels is always told: in the log, in ``npgxctl status`` and by ``static_kernel_report``.  Importing this package imports
no torch, installs no signal handler and no exit hook.
"""

from __future__ import annotations

from npgxd import __version__
from npugraph_ex.reports import GraphReport, static_kernel_report

__all__ = ["GraphReport", "__version__", "reset", "static_kernel_report"]


def reset() -> None:
    """Forget this process's reports, graph numbers and what was said once; for tests."""
    from npugraph_ex import _notices, reports  # noqa: PLC0415 -- only tests need them here

    reports.forget()
    _notices.forget()
