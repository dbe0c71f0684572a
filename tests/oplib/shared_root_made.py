"""Other installers' kernels in a root, made up for tests."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

from npgxd.store.disk import Disk
from tests.store.made import FAMILY

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from npgxd.store.manifest import KernelManifest


class NoSync(Disk):
    """Every act but the waiting for the disk: these tests are about readers and kills, not about power."""

    def fsync_file(self, path: Path) -> None:
        self.step("fsync", path)

    def fsync_directory(self, path: Path) -> None:
        self.step("fsync", path)


FOREIGN_KEY = "Foreign/d0/x"


def environment(root: Path) -> dict[str, str]:
    return {"ASCEND_HOME_PATH": "", "ASCEND_OPP_PATH": str(root)}


def our_keys(kernels: Iterable[KernelManifest]) -> set[str]:
    return {name for kernel in kernels for name in kernel.simplified_keys}


def index_of(root: Path) -> Path:
    return root / "static_kernel/ai_core/config" / FAMILY / "binary_info_config.json"


def entry(name: str, key: str, **more: Any) -> dict[str, Any]:
    return {
        "simplifiedKey": key,
        "coreType": 1,
        "binPath": f"static_kernel_1_2/{FAMILY}/Add/{name}.o",
        "binDesc": {"blockDim": 4, "kernelName": name, "workspace": []},
        **more,
    }


def foreign(root: Path, name: str = "theirs", key: str = FOREIGN_KEY, **more: Any) -> dict[str, Any]:
    """Install a kernel as another program would: files, then the index in place. Its entry."""
    one = entry(name, key, **more)
    path = root / "static_kernel/ai_core" / one["binPath"]
    path.parent.mkdir(parents=True, exist_ok=True)
    content = name.encode() * 100
    path.write_bytes(content)
    described = {"sha256": hashlib.sha256(content).hexdigest(), "platformInfo": {"vector_core_cnt": 40}, "kernelName": name}
    path.with_suffix(".json").write_text(json.dumps(described))
    index = index_of(root)
    index.parent.mkdir(parents=True, exist_ok=True)
    total = json.loads(index.read_bytes()) if index.exists() else {}
    total.setdefault("Add", {"staticList": []})["staticList"].append(one)
    index.write_text(json.dumps(total))
    return one
