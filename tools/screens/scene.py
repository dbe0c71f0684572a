"""The node that the screens show: a job that has its kernels, one of which an operator is refused, and one that waits for the compiler."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tools.cann_sim import Costs, records
from tools.demo.failure import DemoError
from tools.demo.node import Node
from tools.screens import rank

if TYPE_CHECKING:
    from collections.abc import Callable

    from tools.demo.children import Children

SERVING: Final = (
    *(records.matmul(size, 4096, 4096) for size in (1, 2, 4)),
    *(records.elementwise(name, (size, 4096)) for name in ("Add", "Mul") for size in (1, 2, 4)),
)
REFUSED: Final = "Sub"
HANGING: Final = "Exp"
PATIENCE_S: Final = 60.0


class Scene:
    """Made in ``directory``; ends with ``children``."""

    def __init__(self, directory: Path, children: Children) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.node = Node(directory / "node", children, costs=Costs(startup_s=0.2, per_op_s=0.05))
        self.key = ""
        """Of the operator that is refused."""

    def play(self) -> None:
        """Return when everything is as it is to be shown; DemoError if it never is."""
        cann = self.node.cann
        cann.order(REFUSED, "fail")
        cann.order(HANGING, "hang")
        self.node.start_daemon()
        self.job("serve.py", 2, *SERVING)
        self._until("the first has its kernels", lambda told: _states(told) == ["INSTALLED"] * 2)
        more = [records.elementwise(name, (8, 4096)) for name in ("Add", "Mul", REFUSED)]
        self.job("train.py", 1, *SERVING[:3], *more)
        self._until("the second has what there is", lambda told: _states(told) == ["DEGRADED", "INSTALLED", "INSTALLED"])
        self.job(
            "evaluate.py", 1, *(records.matmul(size, 4096, 4096) for size in (8, 16)), records.elementwise(HANGING, (8, 4096))
        )
        self._until("the third compiles", lambda told: [job["done"] for job in told["workers"]["jobs"]] == [2])
        self.key = self._told()["failures"][0]["key"]

    def end(self) -> None:
        """As a crash does: a daemon that is asked to stop would wait for the compiler that hangs."""
        self.node.kill_daemon()

    def job(self, name: str, ranks: int, *items: records.Record) -> None:
        """``ranks`` processes of a program called ``name``, as a launcher starts them."""
        program, asked = self.directory / name, self.directory / f"{name}.records"
        program.write_text(Path(rank.__file__).read_text(encoding="utf-8"), encoding="utf-8")
        rank.write(asked, *items)
        for number in range(ranks):
            variables = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
            self.node.children.start(
                [sys.executable, str(program), str(asked)],
                log=self.directory / f"{name}.{number}.log",
                environment={
                    **self.environment(),
                    **{key: str(value) for key, value in variables.items()},
                    "TORCHELASTIC_RUN_ID": name,
                    "MASTER_ADDR": "localhost",
                    "MASTER_PORT": "29500",
                },
                cwd=self.directory,
            )

    def environment(self) -> dict[str, str]:
        """Of somebody who works on that node."""
        programs = str(Path(sys.executable).parent)
        here = str(Path(__file__).parents[2])
        return {**self.node.environment(), "PATH": os.pathsep.join((programs, os.environ["PATH"])), "PYTHONPATH": here}

    def _told(self) -> dict[str, Any]:
        return self.node.status() or {}

    def _until(self, what: str, is_so: Callable[[dict[str, Any]], bool]) -> None:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            told = self._told()
            if told and is_so(told):
                return
            time.sleep(0.05)
        raise DemoError(f"never happened: {what}; npgxctl status says:\n{self.node.npgxctl('status').stdout}")


def _states(told: dict[str, Any]) -> list[str]:
    return sorted(each["state"] for job in told["jobs"] for each in job["ranks"])
