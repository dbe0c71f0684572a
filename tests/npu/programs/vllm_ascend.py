"""How vLLM-Ascend drives torch_npu's npugraph_ex, as far as it is known from its public sources (docs/cann.md, "What torch_npu does today").

It patches a private method while it compiles, gives its options through a private function, runs graphs eagerly and captures them itself
once for each batch size, and takes SIGTERM to start the vendor's total uninstall.
"""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

CODES: list[str] = []
"""The code of each graph that was compiled, which vLLM-Ascend stores."""


def end_on_sigterm() -> None:
    """What its worker does before anything is compiled: a handler that uninstalls every static kernel of the node and exits."""

    def uninstall_and_exit(number: int, frame: Any) -> None:
        script = Path(os.environ["ASCEND_HOME_PATH"], "opp/static_kernel/ai_core/uninstall.sh")
        if script.exists():
            quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
            subprocess.Popen(["bash", str(script)], start_new_session=True, **quiet)
        raise SystemExit

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, uninstall_and_exit)


def compiled(model: torch.nn.Module, batches: list[int]) -> Callable[..., Any]:
    """``model`` for any batch size, with static kernels for ``batches``."""
    from npugraph_ex.configs.compiler_config import _process_kwargs_options

    import npugraph_ex

    config = npugraph_ex.CompilerConfig()
    options = {"force_eager": True, "inplace_pass": False, "clone_input": False, "clone_output": False}
    options |= {"static_kernel_compile": True, "_vllm_aclnn_static_kernel_sym_range": batches}
    _process_kwargs_options(config, {"options": options})

    def backend(graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
        compiler = npugraph_ex.npu_fx_compiler._NpuFxCompiler
        original = compiler._get_compiled_gm

        def patched(self: Any, graph: torch.fx.GraphModule, example_inputs: list[Any]) -> Any:
            compiled_gm = original(self, graph, example_inputs)
            CODES.append(compiled_gm.get_code())
            return compiled_gm

        compiler._get_compiled_gm = patched
        try:
            return npugraph_ex.get_npu_backend(compiler_config=config)(graph, example_inputs)
        finally:
            compiler._get_compiled_gm = original

    return torch.compile(model, backend=backend, fullgraph=True, dynamic=True)


class Captured:
    """One captured graph for each batch size: a call before, in which kernels are compiled, then capture, then replays."""

    def __init__(self, model: Callable[..., Any]) -> None:
        self._model = model
        self._graphs: dict[int, tuple[Any, list[torch.Tensor], list[torch.Tensor]]] = {}

    def __call__(self, xs: list[torch.Tensor]) -> list[torch.Tensor]:
        batch = xs[0].shape[0]
        if batch not in self._graphs:
            inputs = [x.clone() for x in xs]
            self._model(inputs)
            graph = torch.npu.NPUGraph()
            with torch.npu.graph(graph):
                outputs = self._model(inputs)
            self._graphs[batch] = graph, inputs, outputs
        graph, inputs, outputs = self._graphs[batch]
        for mine, given in zip(inputs, xs, strict=True):
            mine.copy_(given)
        graph.replay()
        torch.npu.synchronize()
        return outputs
