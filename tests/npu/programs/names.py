"""Who has the name ``npugraph_ex`` after imports in some order: ``names REPORT ORDERS``, ORDERS being a JSON list of lists of acts.

Orders that begin alike share their beginnings: each act is done in a process forked from that of the acts before, so that what takes
seconds is done once. An act is a module to import, or one of ``ACTS``.
"""

import importlib
import json
import os
import sys
import traceback
import warnings
from pathlib import Path
from typing import Any

from reporting import arguments

warnings.filterwarnings("ignore")
OURS = Path(__file__).parents[3] / "npugraph_ex"
DECLARED = Path(arguments()[1]) if len(arguments()) > 1 else None


def declare(target: str) -> None:
    """Let a distribution be found first that declares Dynamo's ``npugraph_ex`` as ``target``."""
    assert DECLARED is not None
    info = DECLARED / target.replace(":", "-") / "first-1.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: first\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[torch_dynamo_backends]\nnpugraph_ex = {target}\n")
    sys.path.insert(0, str(info.parent))


def compile_and_run() -> None:
    import torch

    device = "npu" if hasattr(torch, "npu") else "cpu"
    double = torch.compile(lambda x: x + x, backend="npugraph_ex", fullgraph=True, dynamic=False)
    assert double(torch.ones(3, device=device)).cpu().tolist() == [2, 2, 2]


def look_up() -> None:
    import torch

    torch.compile(lambda x: x, backend="npugraph_ex")


ACTS = {
    "autoload on": lambda: os.environ.pop("TORCH_DEVICE_BACKEND_AUTOLOAD", None),
    "autoload off": lambda: os.environ.update(TORCH_DEVICE_BACKEND_AUTOLOAD="0"),
    "our entry point first": lambda: declare("npgxd.bridge.dynamo:npugraph_ex"),
    "their entry point first": lambda: declare("torch_npu.dynamo:_npugraph_ex_backend_entrypoint"),
    "look up": look_up,
    "compile": compile_and_run,
}


def facts() -> dict[str, Any]:
    """Who is in charge now, by every name that is promised."""
    import torch

    at_first = [name for name in sys.modules if name.startswith("npugraph_ex.") and is_ours(name)]
    package = importlib.import_module("npugraph_ex")
    by_import = importlib.import_module("npugraph_ex.inference")
    spelled = torch.npu.npugraph_ex.inference
    static_kernel = importlib.import_module("npugraph_ex._acl_concrete_graph.static_kernel")
    return {
        "in charge": package.get_npu_backend.__code__.co_filename.split("/site-packages/")[-1],
        "ours": at_first + [name for name in sys.modules if name.startswith("npugraph_ex.") and is_ours(name)],
        "spelled": [spelled.cache_compile.__module__, spelled.readable_cache.__module__, by_import.cache_compile.__module__],
        "bridged": getattr(static_kernel.compile_static_kernel, "npgxd_bridge", False),
        "torchair": type(sys.modules.get("torchair")).__name__,
    }


def is_ours(name: str) -> bool:
    return str(getattr(sys.modules[name], "__file__", "")).startswith(f"{OURS}{os.sep}")


def act(name: str) -> None:
    if name in ACTS:
        ACTS[name]()
    else:
        importlib.import_module(name)


def follow(orders: list[list[str]], done: list[str]) -> None:
    """Do what comes next in ``orders``, each in a process of its own; report where an order ends."""
    if [] in orders:
        tell(done, facts())
    for name in sorted({order[0] for order in orders if order}):
        child = os.fork()
        if child == 0:
            here = [*done, name]
            try:
                act(name)
                follow([order[1:] for order in orders if order[:1] == [name]], here)
            except BaseException:  # noqa: BLE001 -- told, and found by the test
                tell(here, {"failed": traceback.format_exc()})
            os._exit(0)
        os.waitpid(child, 0)


def tell(done: list[str], what: dict[str, Any]) -> None:
    with Path(sys.argv[1] + ".lines").open("a") as lines:
        lines.write(json.dumps([", ".join(done), what]) + "\n")


follow(json.loads(arguments()[0]), [])
Path(sys.argv[1]).write_text(json.dumps(dict(map(json.loads, Path(sys.argv[1] + ".lines").read_text().splitlines()))))
