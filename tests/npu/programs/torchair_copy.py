"""torchair's own copy of the static-kernel module, from the wheel. What torchair needs of GE is stood in for: the simulation has none."""

import importlib
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import torch
import torch_npu

from reporting import report
from tools.cann_sim.native import counters, reset_counters

PACKAGE = Path(torch_npu.__file__).parent / "dynamo" / "torchair"
for name in ("torchair", "torchair.core"):
    sys.modules[name] = ModuleType(name)
    sys.modules[name].__path__ = [str(PACKAGE.joinpath(*name.split(".")[1:]))]
sys.modules["torchair.core"]._torchair = SimpleNamespace(
    AclopStartDumpArgs=lambda _, path: torch_npu._C._aclop_start_dump(path),
    AclopStopDumpArgs=lambda _: torch_npu._C._aclop_stop_dump(),
)
static_kernel = importlib.import_module("torchair._acl_concrete_graph.static_kernel")

x = torch.ones(5, 7).npu()
static_kernel.compile_static_kernel(lambda x: x * 3 + 1, x)
reset_counters()
right = (x * 3 + 1).cpu().tolist() == [[4.0] * 7] * 5
ran = counters()
static_kernel.uninstall_static_kernel()
report(where=static_kernel.__file__, right=right, static=ran.static, kernels=sorted(ran.kernels))
