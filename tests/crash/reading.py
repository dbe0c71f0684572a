"""A process that reads, over and over, until it is told to stop: ``python -m tests.crash.reading STATE kernels|views``.

It prints ``reading``, then one line of JSON: loops, reads, what was torn, and which writers' bytes were seen.  What is removed while
it is being looked at is not torn: it was there, or it is gone; but what is there has all of its files, and its own bytes.
"""

# ruff: noqa: T201 -- it talks to the test that runs it
from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

from tools.cann_sim.reader import Reader


class Loop:
    """What was seen so far."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.reads = 0
        self.torn: list[str] = []
        self.seen: set[str] = set()

    def kernels(self) -> None:
        """Every kernel's members against its manifest."""
        for manifest in (self.state / "kernels").glob("*/*/manifest.json"):
            try:
                self.kernel(manifest)
            except FileNotFoundError as error:
                if manifest.exists():
                    self.torn.append(str(error))

    def kernel(self, manifest: Path) -> None:
        told = json.loads(manifest.read_bytes())
        writers = set()
        for member in told["members"]:
            content = (manifest.parent / member["name"]).read_bytes()
            if hashlib.sha256(content).hexdigest() != member["sha256"]:
                self.torn.append(f"{manifest.parent.name}: {member['name']}")
            if member["name"].endswith(".o"):
                writers.add(content[:1].decode())
        if len(writers) != 1:
            self.torn.append(f"{manifest.parent.name}: the files of two writers {writers}")
        self.seen |= writers
        self.reads += 1

    def views(self) -> None:
        """Every view's index and all its members, as a rank loads them; one that goes away meanwhile goes as a whole."""
        for view in (self.state / "views").iterdir():
            reader = Reader("Ascend910B3")
            report = reader.load(view)
            problems = [str(one) for one in (*report.torn, *reader.verify())]
            if view.exists():
                self.torn += problems or ([] if reader.selected else [f"{view.name}: nothing in it"])
            self.reads += 1


def main(state: str, kind: str) -> None:
    """Read until a file ``stop`` lies beside the state directory."""
    loop = Loop(Path(state))
    print("reading", flush=True)
    loops = 0
    while not (loop.state.parent / "stop").exists():
        getattr(loop, kind)()
        loops += 1
    print(json.dumps({"loops": loops, "reads": loop.reads, "torn": loop.torn[:5], "seen": sorted(loop.seen)}))


if __name__ == "__main__":
    main(*sys.argv[1:])
