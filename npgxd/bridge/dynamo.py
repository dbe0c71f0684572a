"""What Dynamo loads for ``backend="npugraph_ex"``, where npgxd's entry point comes before torch_npu's, or is the only one.

Two distributions may declare that name, and the order of directories decides.  Where torch_npu bundles an npugraph_ex, this one calls
torch_npu's; elsewhere it is the portable backend.  It lies outside of ``npugraph_ex``, since that name is then torch_npu's.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from npgxd.bundled import bundled_package

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_THEIRS: Final = "torch_npu.dynamo"


def _of_torch_npu(gm: Any, example_inputs: Sequence[Any], **named: Any) -> Callable[..., Any]:
    """torch_npu's own backend.  torch_npu is not imported before: while Dynamo looks a name up, it could not register the same one."""
    compiled: Callable[..., Any] = importlib.import_module(_THEIRS)._npugraph_ex_backend_entrypoint(gm, example_inputs, **named)  # noqa: SLF001 -- its entry point
    return compiled


def _chosen() -> Callable[..., Any]:
    if bundled_package() is not None:
        # By this torch_npu, if it is imported later, knows that the name has its backend, and does not register another one.
        _of_torch_npu.__module__ = _THEIRS
        return _of_torch_npu
    from npugraph_ex.backend import npugraph_ex as portable  # noqa: PLC0415 -- where the name is torch_npu's, this module is not there

    return portable


npugraph_ex = _chosen()
"""The backend."""
