"""A user's program, with nothing of ours in it: a model's method wrapped by torch_npu's own ``cache_compile``.

``caching REPORT WISHES``: the model is ``served_model.py`` of the working directory. WISHES is JSON: ``cache_dir``, ``rows`` (of each
call's input), ``options``, ``hold`` (a file: the compile says ``<hold>.reached`` and waits until it exists).
"""

import json
import logging
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch_npu  # noqa: F401 -- registers the device and the backend

from reporting import arguments, report
from tools.cann_sim.native import counters, reset_counters

sys.path.insert(0, str(Path.cwd()))
from served_model import Model

WISHES = json.loads(arguments()[0])
RANK, WORLD = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


class Lines(logging.Handler):
    """Keeps what npgxd says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


def hold() -> None:
    """Make the bundled compiler stop in the middle of its work, until it is let go."""
    from npugraph_ex.inference import _cache_compiler

    compiler = _cache_compiler.CacheBackend.fw_compiler

    def held(self: object, *given: object) -> object:
        Path(WISHES["hold"] + ".reached").touch()
        while not Path(WISHES["hold"]).exists():
            time.sleep(0.05)
        return compiler(self, *given)

    _cache_compiler.CacheBackend.fw_compiler = held


def kept_when_run() -> list[bool]:
    """Whether an entry lay in the cache directory when a graph was run, for each run: others may owe a running graph a collective."""
    from npugraph_ex._acl_concrete_graph.acl_graph import AclGraph

    run, kept = AclGraph.__call__, []

    def noted(self: object, *given: object, **named: object) -> object:
        kept.append(any(Path(WISHES["cache_dir"]).rglob("compiled_module")))
        return run(self, *given, **named)

    AclGraph.__call__ = noted
    return kept


def main() -> None:
    said = Lines()
    logging.getLogger("npgxd").addHandler(said)
    if WORLD > 1:
        dist.init_process_group("gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=RANK, world_size=WORLD)
        torch.npu.set_device(RANK)
    if "hold" in WISHES:
        hold()
    kept = kept_when_run()
    host, device = Model(RANK).eval(), Model(RANK).eval().npu()
    cached = torch.npu.npugraph_ex.inference.cache_compile(
        device.step, dynamic=False, cache_dir=WISHES["cache_dir"], options=WISHES.get("options", {})
    )
    off, static = 0.0, []
    for call, rows in enumerate(WISHES.get("rows", [4, 4])):
        x = torch.full((rows, 8), 0.1 * call + 0.1)
        reset_counters()
        with torch.no_grad():
            off = max(off, float((cached(x.npu()).cpu() - host.step(x)).abs().max()))
        static.append(sorted(counters().static))
    traced = sys.modules["torch._dynamo.utils"].counters["stats"]["unique_graphs"]
    report(
        off=off,
        traced=traced,
        kept=kept,
        static=static,
        said=said.lines,
        pid=os.getpid(),
        bridge="npgxd.bridge.caching" in sys.modules,
    )
    if WORLD > 1:
        dist.barrier()
        dist.destroy_process_group()


main()
