"""An unchanged program with the bundled ``cache_compile``, started again and again on one node; what its files and the daemon then hold."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import served_source
from conftest_node import Node
from machine import Npu

from tools.cann_sim import create
from tools.cann_sim.native import build

if TYPE_CHECKING:
    from pathlib import Path


def entry(directory: Path) -> Path:
    (found,) = directory.rglob("compiled_module")
    return found


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in entry(directory).parent.iterdir())


class Serving:
    """A machine, the node with its daemon, and the program's cache directories."""

    def __init__(self, directory: Path, wheel):
        cann = create(directory / "cann")
        build(cann, wheel)
        self.node, self.npu = Node(directory, cann), Npu(cann, directory / "npu")
        self.npu.directory.mkdir()
        served_source.write(self.npu.directory)

    def start(self, cache):
        options = {"static_kernel_compile": True}
        given = json.dumps({"cache_dir": str(self.npu.directory / cache), "options": options})
        return self.npu.run("caching", given, NPGXD_SOCKET=str(self.node.socket))

    def artifacts(self):
        return self.node.status()["artifacts"]


@pytest.fixture(scope="module")
def serving(wheel, tmp_path_factory):
    made = Serving(tmp_path_factory.mktemp("cache"), wheel)
    try:
        made.node.start()
        yield made
    finally:
        made.node.close()


@pytest.fixture(scope="module")
def cold(serving):
    """The first start: what it told, and what the daemon held then."""
    served_source.write(serving.npu.directory)
    told = serving.start("first")
    (entry(serving.npu.directory / "first").parent / "neighbour").write_text("somebody's")
    return told, serving.artifacts()


def test_the_first_start_compiles_keeps_and_publishes(serving, cold):
    told, artifacts = cold
    assert (told["off"] < 1e-6, told["traced"], told["said"]) == (True, 1, [])
    assert told["kept"] == [True, True]  # before it ran
    assert (artifacts["entries"], artifacts["published"], artifacts["building"]) == (1, 1, 0)
    found = entry(serving.npu.directory / "first")
    assert {oct(path.stat().st_mode & 0o777) for path in found.parent.glob("compiled_module*")} == {"0o600"}
    assert len(list(found.parent.glob("compiled_module.*.json"))) == 1


def test_a_later_process_gets_it_from_the_daemon_without_a_trace(serving, cold):
    served_source.write(serving.npu.directory)
    told = serving.start("second")
    assert (told["off"] < 1e-6, told["traced"], told["said"]) == (True, 0, [])
    first, second = (entry(serving.npu.directory / name) for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert told["static"] == cold[0]["static"] != [[], []]
    assert (second.parent / "static_kernel_compile_outputs").is_dir()  # beside its own file, not beside that of who made it


@pytest.fixture
def cache(serving, cold, request):
    """A copy of the first start's cache directory, and the source as it was then."""
    served_source.write(serving.npu.directory)
    directory = serving.npu.directory / request.node.name
    shutil.copytree(serving.npu.directory / "first", directory)
    return directory


def test_an_edit_of_a_comment_keeps_the_entry(serving, cache):
    served_source.write(serving.npu.directory, "# Moved by some lines.\n\n" + served_source.SCALE)
    told = serving.start(cache)
    assert (told["off"] < 1e-6, told["traced"], told["said"]) == (True, 0, [])


def test_an_edit_of_a_traced_function_sets_the_entry_aside_until_it_is_undone(serving, cache):
    before = entry(cache).read_bytes()
    served_source.write(serving.npu.directory, served_source.SCALE.replace("x * FACTOR", "x + FACTOR"))
    told = serving.start(cache)
    assert (told["off"] < 1e-6, told["traced"]) == (True, 1)
    assert any("the code of served_scale:scaled changed" in line for line in told["said"])
    (stale,) = (path for path in entry(cache).parent.iterdir() if path.name.endswith(".stale"))
    assert stale.read_bytes() == before
    assert any(stale.name in line for line in told["said"])
    assert "neighbour" in names(cache)
    served_source.write(serving.npu.directory)
    told = serving.start(cache)
    assert (told["off"] < 1e-6, told["traced"]) == (True, 0)
    assert entry(cache).read_bytes() == before


def test_a_truncated_entry_is_set_aside_alone_and_the_daemons_is_used(serving, cache):
    found = entry(cache)
    whole = found.read_bytes()
    with found.open("r+b") as file:
        file.truncate(len(whole) // 2)
    told = serving.start(cache)
    assert (told["off"] < 1e-6, told["traced"]) == (True, 0)
    assert found.read_bytes() == whole
    assert any("set aside" in line for line in told["said"])
    assert any(path.name.endswith(".broken") and path.stat().st_size == len(whole) // 2 for path in found.parent.iterdir())
    assert "neighbour" in names(cache)
