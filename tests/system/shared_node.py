"""A node whose CANN is older than 9.1.0: its kernels go into the default root, which every process reads."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import BRISK, Named, Node, Rank, matmuls

from tools.cann_sim import Reader
from tools.cann_sim.records import write_records

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class SharedNode:
    """A node whose CANN has no views, and what is in its default root."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.environment = node.cann.env()
        self.tree = node.cann.opp / "static_kernel"
        self.ai_core = self.tree / "ai_core"
        self.index = self.ai_core / "config/ascend910b/binary_info_config.json"

    def rank(self, items: Named, **options: Any) -> Rank:
        return self.node.rank(items, options=options, **self.environment)

    def read(self) -> Reader:
        """A fresh process's look at the root, everything opened."""
        reader = Reader("Ascend910B3")
        report = reader.load_default({**os.environ, **self.environment})
        assert not report.torn
        assert not reader.verify()
        return reader

    def ours(self) -> list[str]:
        """Our kernels that the index names."""
        if not self.index.exists():
            return []
        entries = [entry for op in json.loads(self.index.read_bytes()).values() for entry in op["staticList"]]
        return sorted({entry["binPath"].split("/")[0] for entry in entries if entry["binPath"].startswith("npgxd_")})

    def directories(self) -> list[str]:
        return sorted(path.name for path in self.ai_core.glob("npgxd_*"))

    def status(self) -> dict[str, Any]:
        document = self.node.status()
        assert document is not None
        return document

    def sessions(self) -> dict[int, dict[str, Any]]:
        return {rank["pid"]: rank for job in self.status()["jobs"] for rank in job["ranks"]}

    def package(self, *sizes: int) -> Path:
        """A run package that somebody else compiled, with the vendor's compiler and without npgxd."""
        where = self.node.directory / f"foreign{'_'.join(map(str, sizes))}"
        for name in ("work", "out"):
            (where / name).mkdir(parents=True)
        write_records(where / "records", [json.loads(text) for _, text in matmuls(*sizes)])
        follow = [] if self.node.cann.version == "8.5.0" else ["-f", "true"]
        command = [self.node.cann.op_compiler, "-p", where / "records", "-v", "Ascend910B3", "-o", where / "out", *follow]
        subprocess.run(command, cwd=where / "work", env={**os.environ, **self.environment}, check=True, capture_output=True)
        (package,) = (where / "out").glob("*.run")
        return package

    def install(self, package: Path) -> Path:
        """Run it as its user would; where it lies in the root then."""
        subprocess.run([package], env={**os.environ, **self.environment}, check=True, capture_output=True)
        return self.ai_core / package.stem

    def remove(self, place: Path) -> None:
        """All of a directory at once: while a removal went on file by file, the daemon would be putting back what is gone already."""
        gone = self.node.directory / "gone"
        place.rename(gone)
        shutil.rmtree(gone)

    def compiles(self) -> int:
        """Of the daemon: those of ``package`` are not counted."""
        return sum(1 for run in self.node.cann.runs() if str(self.node.state) in " ".join(run.argv))


@pytest.fixture
def make_shared(make_node: Callable[..., Node]) -> Callable[..., SharedNode]:
    def made(version: str = "9.0.0", *, leave_after_s: float = 600.0, start: bool = True, **costs: float) -> SharedNode:
        node = make_node(version=version, **costs)
        node.settings["op_library"] = {"leave_after_s": leave_after_s, "unreadable": "ignore"}
        node.program = BRISK
        if start:
            node.start()
        return SharedNode(node)

    return made
