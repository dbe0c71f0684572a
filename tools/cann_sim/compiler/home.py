"""The CANN home that this compiler belongs to: versions, settings, its run log, and whether the environment was sourced."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from .costs import Costs
from .orders import Order, Orders
from .versions import Features, features_of

SETTINGS = "sim.json"
RUN_LOG = "sim-runs.jsonl"


class NotSourced(RuntimeError):
    """The CANN environment is not set up as ``set_env.sh`` does it."""


class Home:
    """One simulated CANN home (what ASCEND_HOME_PATH names)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        settings: dict[str, Any] = json.loads((path / SETTINGS).read_bytes())
        self.features: Features = features_of(settings["version"])
        self.costs = Costs(**settings["costs"])
        self.orders = Orders(path, [Order(**order) for order in settings["orders"]])

    def build(self) -> str:
        """What decides a kernel beside its record and its op's files: the compiler itself and every version.info."""
        whole = hashlib.sha256((self.path / "bin" / "op_compiler").read_bytes().partition(b"\n")[2])
        for info in sorted((self.path / "share" / "info").glob("*/version.info")):
            whole.update(f"\0{info.parent.name}\0".encode() + info.read_bytes())
        return whole.hexdigest()

    def require_environment(self, environ: dict[str, str]) -> None:
        """Fail as the real compiler does without its environment: it finds neither its op roots, nor opc, nor its modules."""
        for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH"):
            if not environ.get(name):
                raise NotSourced(f"{name} is not set; source set_env.sh of the CANN installation first")
        if not (Path(environ["ASCEND_OPP_PATH"]) / "built-in").is_dir():
            raise NotSourced(f"ASCEND_OPP_PATH={environ['ASCEND_OPP_PATH']} has no built-in ops")
        if not any((Path(entry) / "opc").is_file() for entry in environ.get("PATH", "").split(":") if entry):
            raise NotSourced("opc: command not found; PATH lacks the CANN bin directory, source set_env.sh")
        modules = self.path / "python" / "site-packages"
        if not any(
            os.path.realpath(entry) == os.path.realpath(modules) for entry in environ.get("PYTHONPATH", "").split(":") if entry
        ):
            raise NotSourced(f"No module named 'opc_tool'; PYTHONPATH lacks {modules}, source set_env.sh")

    def log_run(self, event: dict[str, object]) -> None:
        """Append one line to the home's run log by a single write, so that concurrent runs never mix."""
        descriptor = os.open(self.path / RUN_LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            os.write(descriptor, json.dumps(event, separators=(",", ":")).encode() + b"\n")
        finally:
            os.close(descriptor)
