"""The engine of Ascend devices: CANN's own dump as the recorder, and CANN's reselect."""

from __future__ import annotations

import logging
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from npugraph_ex import _notices
from npugraph_ex.capture import CAPTURING, CaptureRunner
from npugraph_ex.capture.device import NpuCaptureDevice
from npugraph_ex.engines._base import ReselectFailed, Runner
from npugraph_ex.engines._eager import EagerRunner
from npugraph_ex.options import CAPTURE
from npugraph_ex.recording.npu_dump import NpuDump, NpuRecorder
from npugraph_ex.recording.switch import SWITCH

if TYPE_CHECKING:
    from pathlib import Path

    from npugraph_ex.options import Options
    from npugraph_ex.program import Program
    from npugraph_ex.recording.describe import Surroundings
    from npugraph_ex.recording.recorded import Recorder

_SOC = re.compile(r"Ascend\d+\w*(-\d+)?", re.ASCII)


def _torch_npu() -> Any:
    """torch_npu, which made the device that the graph's tensors are on."""
    return sys.modules["torch_npu"]


@dataclass(frozen=True, slots=True)
class NpuEngine:
    """Graphs are captured by ``torch.npu.NPUGraph``, with the static kernels that were reselected for the process until then."""

    device: str = "npu"
    capabilities: frozenset[str] = frozenset({CAPTURE})

    def soc(self) -> str:
        """The name that the runtime gives the current device, as aclrtGetSocName does."""
        name = str(_torch_npu().npu.get_device_name())
        return name if _SOC.fullmatch(name) else ""

    def runner(self, program: Program, options: Options, *, name: str, training: bool) -> Runner:
        """Captures an inference graph's shapes, unless ``force_eager`` says no or this torch_npu cannot."""
        if training or options.force_eager:
            return EagerRunner(program)
        if not hasattr(_torch_npu().npu, "NPUGraph"):
            line = "this torch_npu has no torch.npu.NPUGraph, so graphs are not captured, and run operator by operator"
            _notices.once("no NPUGraph", logging.WARNING, line)
            return EagerRunner(program)
        return CaptureRunner(program, options, NpuCaptureDevice(), name=name)

    def recorder(self, surroundings: Surroundings) -> Recorder:
        """CANN's dump, which knows its surroundings itself."""
        del surroundings
        torch_npu = _torch_npu()
        return NpuRecorder(NpuDump(torch_npu._C, SWITCH), torch_npu.npu.synchronize)  # noqa: SLF001 -- where torch_npu has the dump

    def reselect(self, view: Path | None) -> str:
        """Load ``view``, or the default root, with no operator in flight (docs/cann.md, "How the runtime reads it")."""
        npu = _torch_npu().npu
        name = "_aclnn_reselect_static_kernel" if view is None else "_aclnn_reselect_static_kernel_with_path"
        load = getattr(npu, name, None)
        if load is None:
            raise ReselectFailed(
                f"this torch_npu or CANN cannot load static kernels {'again' if view is None else 'from a path'}",
                hint="aclnnReselectStaticKernelWithPath exists in CANN 9.1.0 and later; older ones need a torch_npu that has "
                "torch_npu.npu._aclnn_reselect_static_kernel",
            )
        try:
            with CAPTURING:
                npu.synchronize()
                load(*(() if view is None else (str(view),)))
        except (RuntimeError, OSError, ValueError, TypeError) as error:
            raise ReselectFailed(
                f"reselecting {view or 'the default root'} failed: {error}", hint="The graph runs with dynamic kernels"
            ) from error
        return "reselected"
