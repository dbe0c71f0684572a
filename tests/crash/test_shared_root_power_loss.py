"""Power loss while kernels enter and leave a shared op root, where others have kernels, too: whoever loads it sees no torn kernel."""

from __future__ import annotations

import logging
import shutil
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from npgxd.oplib.shared_root_choice import choose, directory_of
from npgxd.oplib.shared_root_files import KernelFiles
from npgxd.oplib.shared_root_index import TotalIndex, entry_text
from npgxd.oplib.shared_root_total import TotalFile
from npgxd.store.disk import Disk
from npgxd.store.index import INDEX_NAME
from tests.crash.looking import SHOWN, look
from tests.crash.scenarios import Scenario
from tests.store.made import FAMILY, files
from tools.cann_sim.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from npgxd.store.manifest import KernelManifest
    from tests.crash.ground import Ground

OTHER = "static_kernel_of_somebody"


class SharedRoot(Scenario):
    """Two kernels are installed into a root in which another installer has one; then one of them leaves."""

    known: ClassVar = {"a": {b"A"}, "b": {b"B"}}

    def prepare(self, root: Path) -> None:
        super().prepare(root)
        made = files(root.parent / "scratch" / "other", "other", b"another installer's")[0]
        place = self.ai_core(root) / OTHER / FAMILY / "MatMulV2"
        place.mkdir(parents=True)
        for path in (made.object, made.description):
            shutil.copy(path, place)
        config = self.ai_core(root) / "config" / FAMILY
        config.mkdir(parents=True)
        text = entry_text(made.entry.facts, f"{OTHER}/{FAMILY}/MatMulV2/{made.object.name}")
        (config / INDEX_NAME).write_bytes(TotalIndex().with_ours({"MatMulV2": [text]}))

    def act(self, root: Path, mark: Callable[[str], None]) -> None:
        ground = self.opened(root)
        disk = ground.house.state.disk
        manifests = ground.publish({"a": b"A", "b": b"B"})
        kernels = KernelFiles(self.ai_core(root), ground.house.kernels.directory, disk)
        total = TotalFile(self.ai_core(root) / "config" / FAMILY, disk, 1.0)
        self.bring_in(kernels, total, manifests)
        mark("installed")
        mark("b leaves")
        self.index(total, manifests[:1])
        disk.remove_tree(self.ai_core(root) / directory_of(manifests[1].id))
        mark("b has left")
        total.close()
        ground.close()

    def bring_in(self, kernels: KernelFiles, total: TotalFile, manifests: Sequence[KernelManifest]) -> None:
        assert kernels.place(manifests) == {}
        self.index(total, manifests)

    def index(self, total: TotalFile, manifests: Sequence[KernelManifest]) -> None:
        total.replace(lambda index: index.with_ours(choose(manifests, index, lambda *_: False).entries))

    def check(self, root: Path, marks: frozenset[str]) -> list[str]:
        reader = Reader("Ascend910B3")
        torn = [str(one) for one in (*reader.load(root / "cann").torn, *reader.verify())]
        seen = {key.rpartition("/")[2] for key in reader.selected}
        wanted = {"other"} | ({"a"} if "installed" in marks else set()) | ({"b"} if marks == {"installed"} else set())
        problems = [f"torn: {one}" for one in torn] + [f"not loaded: {name}" for name in sorted(wanted - seen)]
        return problems + super().check(root, marks)

    def lost(self, ground: Ground, marks: frozenset[str]) -> list[str]:
        return [name for name in self.known if "installed" in marks and ground.content(name) is None]

    @staticmethod
    def ai_core(root: Path) -> Path:
        return root / "cann" / "static_kernel" / "ai_core"


class IndexFirst(SharedRoot):
    """The wrong order: the index names what is not there yet."""

    def bring_in(self, kernels: KernelFiles, total: TotalFile, manifests: Sequence[KernelManifest]) -> None:
        self.index(total, manifests)
        kernels.place(manifests)


def test_power_loss_at_any_moment_of_an_install_or_a_removal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    looked = look(SharedRoot(), "shared root", monkeypatch, per_moment=12)
    assert looked.strangers == []
    assert not looked.wrong, "\n".join((f"{len(looked.wrong)} of {looked.told.states}", *looked.wrong[:SHOWN]))


@pytest.mark.parametrize(("scenario", "method"), [(IndexFirst, ""), (SharedRoot, "fsync_tree"), (SharedRoot, "fsync_directory")])
def test_a_broken_promise_is_found_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, scenario: type[SharedRoot], method: str
) -> None:
    caplog.set_level(logging.CRITICAL)
    if method:
        honest: Any = getattr(Disk, method)
        monkeypatch.setattr(Disk, method, lambda disk, path: None if "cann" in path.parts else honest(disk, path))
    assert look(scenario(), "broken", monkeypatch, per_moment=12).wrong
