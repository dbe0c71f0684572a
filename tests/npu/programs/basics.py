"""The wheel as users have it: devices, versions, tensors to and fro, an operator that is not simulated, a captured graph."""

import ctypes

import torch
import torch_npu

from reporting import report

host = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
device = host.npu()
moved = {
    str(dtype): torch.equal(host.to(dtype).npu().cpu(), host.to(dtype))
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.bool)
}
views = [
    torch.equal(device.transpose(0, 2).cpu(), host.transpose(0, 2)),
    torch.equal(device[:, 1:, ::2].contiguous().cpu(), host[:, 1:, ::2]),
    torch.equal(device.to("npu:1").cpu(), host),
]
try:
    device.cumsum(0)
    torch.npu.synchronize()
    refused = ""
except RuntimeError as error:
    refused = str(error)

buffer = torch.zeros(4).npu()
graph = torch_npu.npu.NPUGraph()
with torch_npu.npu.graph(graph):
    buffer += 1
    doubled = buffer * 2
during_capture = buffer.cpu().tolist()
for _ in range(3):
    graph.replay()
torch.npu.synchronize()
opapi = ctypes.CDLL("libopapi.so")
report(
    devices=torch.npu.device_count(),
    name=torch.npu.get_device_name(),
    version=torch_npu.npu.utils.get_cann_version(),
    with_path=hasattr(opapi, "aclnnReselectStaticKernelWithPath"),
    without_path=hasattr(opapi, "aclnnReselectStaticKernel"),
    moved=moved,
    views=views,
    refused=refused,
    during_capture=during_capture,
    replayed=[buffer.cpu().tolist(), doubled.cpu().tolist()],
)
