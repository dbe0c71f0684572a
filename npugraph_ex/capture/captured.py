"""One capture of one shape, and its replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from npugraph_ex.capture.placing import Buffer
from npugraph_ex.capture.results import Results

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npugraph_ex.capture.device import CaptureDevice, Pool
    from npugraph_ex.capture.placing import Placing
    from npugraph_ex.capture.watching import Watched
    from npugraph_ex.program import Program


@dataclass(frozen=True, slots=True)
class Captured:
    """``kept`` are the weights that are taken to stay where they are: their memory must not be given to others."""

    graph: Any
    placing: Placing
    buffers: dict[int, Buffer]
    results: Results
    written: tuple[int, ...]
    kept: tuple[torch.Tensor, ...]

    @classmethod
    def of(
        cls,
        program: Program,
        inputs: Sequence[Any],
        placing: Placing,
        watched: Watched,
        device: CaptureDevice,
        *,
        index: int,
        pool: Pool,
        error_mode: str,
    ) -> Captured:
        """Capture ``program`` for ``inputs``, which are neither read nor written. Raises what goes wrong, with nothing left behind."""
        buffers = {at: Buffer(device, inputs[at]) for at in placing.copied}
        arguments = [buffers[at].tensor if at in buffers else value for at, value in enumerate(inputs)]
        graph = device.new_graph()
        with device.capturing(graph, index=index, pool=pool, error_mode=error_mode):
            outputs = program.run(list(arguments))
        private = {
            at
            for at, value in enumerate(arguments)
            if isinstance(value, torch.Tensor) and device.private_format(value) is not None
        }
        results = Results(outputs, arguments, watched, private)
        kept = tuple(inputs[at] for at in placing.frozen)
        return cls(graph, placing, buffers, results, tuple(sorted(watched.written)), kept)

    def replay(self, inputs: list[Any], *, cloned: bool) -> object:
        """The outputs for ``inputs``, which are emptied."""
        with torch.no_grad():
            for at, buffer in self.buffers.items():
                buffer.fill(inputs[at])
            self.graph.replay()
            for at in self.placing.back:
                self.buffers[at].give_back(inputs[at])
            for at in self.written:
                if at not in self.buffers and not inputs[at].is_inference():
                    torch.autograd.graph.increment_version(inputs[at])
            outputs = self.results.give(inputs, cloned=cloned)
        inputs.clear()
        return outputs
