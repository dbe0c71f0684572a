"""The engine of CUDA devices: the portable recorder, and graphs captured as an NPU's are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npugraph_ex.capture import CaptureRunner
from npugraph_ex.capture.device import cuda
from npugraph_ex.engines._eager import EagerEngine, EagerRunner
from npugraph_ex.options import CAPTURE

if TYPE_CHECKING:
    from npugraph_ex.engines._base import Runner
    from npugraph_ex.options import Options
    from npugraph_ex.program import Program


@dataclass(frozen=True, slots=True)
class CudaEngine(EagerEngine):
    """Records and reselects as the engine of every device without CANN does, and captures by ``torch.cuda.CUDAGraph``."""

    device: str = "cuda"
    capabilities: frozenset[str] = frozenset({CAPTURE})

    def runner(self, program: Program, options: Options, *, name: str, training: bool) -> Runner:
        """Captures an inference graph's shapes, unless ``force_eager`` says no."""
        if training or options.force_eager:
            return EagerRunner(program)
        return CaptureRunner(program, options, cuda(), name=name)
