"""What the files cost: publishing a kernel with and without fsync, and checking the fingerprints of a large op root."""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import time
from typing import TYPE_CHECKING

from npgxd.store.catalog import Catalog
from npgxd.store.disk import DISK, Disk
from npgxd.store.index import IndexEntry
from npgxd.store.kernels import KernelStore
from npgxd.store.manifest import Making, ManifestEntry, Origin
from npgxd.store.staging import MadeFile, stage_kernel
from npgxd.store.state import StateDirectory
from npgxd.toolchain import Fingerprinter, ToolchainSettings, discover
from tools.cann_sim import Costs, create
from tools.demo.node import SOC, VERSION

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tools.demo.children import Children

MEBIBYTE = 1024 * 1024
TIMES = 30
FILES = 20_000
OPS = ("MatMulV2", "Add", "Cast", "SoftmaxV2", "LayerNormV3")


class _NotWaiting(Disk):
    """A disk whose fsyncs are left out, to see what they cost."""

    def fsync_file(self, path: Path) -> None:
        """Nothing."""

    def fsync_directory(self, path: Path) -> None:
        """Nothing."""

    def fsync_tree(self, root: Path) -> None:
        """Nothing."""


def publish(directory: Path, _children: Children) -> dict[str, str]:
    """A kernel of 1 MiB: staged as a worker does it, then published; beside it, one plain file written and fsynced."""
    directory.mkdir(parents=True, exist_ok=True)
    told: dict[str, str] = {}
    for what, disk in (("with fsync", DISK), ("without fsync", _NotWaiting())):
        state = StateDirectory.open(directory / what.replace(" ", "-"), disk=disk)
        catalog = Catalog(state.catalog, disk=disk)
        kernels = KernelStore(state, catalog)
        staging: list[float] = []
        publishing: list[float] = []
        for number in range(TIMES):
            made = _made(directory / "scratch", number)
            target = state.staging / f"{number}"
            begun = time.perf_counter()
            stage_kernel(target, _origin(number), Making("0" * 64, 1.0, 1.0), [made], disk=disk)
            between = time.perf_counter()
            kernels.publish([target])
            publishing.append(time.perf_counter() - between)
            staging.append(between - begun)
        catalog.close()
        state.close()
        told[f"stage a kernel of 1 MiB, {what}"] = _spread(staging)
        told[f"publish it (rename, catalog), {what}"] = _spread(publishing)
    plain = [_seconds(lambda number=number: _plain(directory / f"plain-{number}")) for number in range(TIMES)]  # type: ignore[misc]
    told["one plain file of 1 MiB, written and fsynced"] = _spread(plain)
    return told


def fingerprint(directory: Path, _children: Children) -> dict[str, str]:
    """Everything that a toolchain with an op root of 20,000 files is known by: nothing remembered, all remembered, and a look again."""
    directory.mkdir(parents=True, exist_ok=True)
    cann = create(directory / "cann", version=VERSION, soc=SOC, costs=Costs())
    place = cann.opp / "built-in/op_impl/ai_core/tbe/impl/ascendc"
    for number in range(FILES):
        path = place / f"generated_{number // 100}" / f"part_{number}.h"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"// " + str(number).encode() * 500)
    settings = ToolchainSettings(home=cann.home, opp=cann.opp, custom_opp=(), soc=SOC, cores=None)
    toolchain = discover(settings, {**os.environ, **cann.env()})
    time.sleep(0.1)  # what is as young as the clock's tick is never remembered
    memo = directory / "memo.json"
    cold = [_seconds(lambda: Fingerprinter(toolchain, None).summary()) for _ in range(3)]
    Fingerprinter(toolchain, memo).summary()
    warm = [_seconds(lambda: Fingerprinter(toolchain, memo).summary()) for _ in range(5)]
    known = Fingerprinter(toolchain, memo)
    first = [_seconds(lambda op=op: known.op(op)) for op in OPS]  # type: ignore[misc]
    again = [_seconds(known.refresh) for _ in range(20)]
    return {
        f"the whole toolchain, {FILES} files more, nothing remembered": _spread(cold),
        "the same, by a new daemon with the memo": _spread(warm),
        "one op type, first time, with the memo": _spread(first),
        f"{len(OPS)} op types, looked at again (each round does)": _spread(again),
    }


def _made(scratch: Path, number: int) -> MadeFile:
    scratch.mkdir(parents=True, exist_ok=True)
    stem = f"kernel_{number}"
    content = os.urandom(MEBIBYTE)
    (scratch / f"{stem}.o").write_bytes(content)
    described = {"sha256": hashlib.sha256(content).hexdigest(), "kernelName": stem}
    (scratch / f"{stem}.json").write_text(json.dumps(described))
    facts = IndexEntry((f"MatMulV2/{number}",), 1, 20, stem, (32,))
    return MadeFile(ManifestEntry(stem, facts), scratch / f"{stem}.o", scratch / f"{stem}.json", scratch)


def _origin(number: int) -> Origin:
    record = json.dumps({"op_type": "MatMulV2", "number": number})
    digest = hashlib.sha256(record.encode()).hexdigest()
    return Origin(digest, "MatMulV2", record, digest, "0" * 64, SOC, "ascend910b", VERSION)


def _plain(path: Path) -> None:
    with path.open("wb") as file:
        file.write(os.urandom(MEBIBYTE))
        file.flush()
        os.fsync(file.fileno())


def _seconds(act: Callable[[], object]) -> float:
    begun = time.perf_counter()
    act()
    return time.perf_counter() - begun


def _spread(seconds: list[float]) -> str:
    ms = [value * 1000 for value in seconds]
    return f"min {min(ms):.2f}  median {statistics.median(ms):.2f}  max {max(ms):.2f} ms (n={len(ms)})"
