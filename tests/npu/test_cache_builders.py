"""Several processes, and what can go wrong between them, with the bundled ``cache_compile`` behind the daemon."""

from __future__ import annotations

import io
import json
import pickle
import signal
from pathlib import Path

import pytest
import served_source
from conftest_node import eventually
from machine import ended


@pytest.fixture
def served(make_node, make_npu):
    """A machine whose daemon runs, with the program's model, and the node with that daemon."""
    node = make_node()
    node.start()
    npu = make_npu(cann=node.cann)
    served_source.write(npu.directory)
    return npu, node


@pytest.fixture
def pair(served):
    """Two processes with a cache directory each: the builder, held in its compile until a file is made, and one that waits for it."""
    npu, node = served
    hold, started = npu.directory / "hold", []

    def start(name, **more):
        report = npu.directory / f"{name}.json"
        given = json.dumps({"cache_dir": str(npu.directory / name), **more})
        started.append((npu.start("caching", given, report=report, NPGXD_SOCKET=str(node.socket)), report))

    try:
        start("builder", hold=str(hold))
        eventually(Path(f"{hold}.reached").exists, "the builder compiles", 120)
        start("waiter")
        eventually(lambda: node.status()["artifacts"]["waiting"] == 1, "the other one waits", 120)
        yield hold, started
    finally:
        for process, _ in started:
            process.kill()
            process.communicate()


def outcomes(started):
    said = [ended(process) for process, _ in started]
    assert [process.returncode for process, _ in started] == [0, 0], "\n----\n".join(text[-4000:] for text in said)
    return [json.loads(report.read_text()) for _, report in started]


def test_two_processes_at_once_compile_once(served, pair):
    _, node = served
    hold, started = pair
    hold.touch()
    told = outcomes(started)
    assert [one["off"] < 1e-6 for one in told] == [True, True]
    assert [one["traced"] for one in told] == [1, 0]
    assert node.status()["artifacts"]["published"] == 1


def test_a_daemon_that_is_killed_in_the_middle_costs_neither_process_its_graph(served, pair):
    npu, node = served
    hold, started = pair
    node.daemon.send_signal(signal.SIGKILL)
    node.daemon.wait(60)
    hold.touch()
    told = outcomes(started)
    assert [one["off"] < 1e-6 for one in told] == [True, True]
    assert [one["traced"] for one in told] == [1, 1]
    assert len(list(npu.directory.rglob("compiled_module"))) == len(list(npu.directory.rglob("compiled_module.*.json"))) == 2


def test_ranks_of_a_job_never_share_what_depends_on_the_rank(served):
    npu, node = served
    for cache, traced in (("cold", 1), ("warm", 0)):
        given = json.dumps({"cache_dir": str(npu.directory / cache)})
        told = npu.ranks("caching", 2, given, NPGXD_SOCKET=str(node.socket))
        assert [(rank["off"] < 1e-6, rank["traced"]) for rank in told] == [(True, traced)] * 2
    assert node.status()["artifacts"]["entries"] == 2
    assert {path.parent.parent.name for path in (npu.directory / "warm").rglob("compiled_module")} == {
        f"world2global_rank{rank}" for rank in range(2)
    }


def test_a_method_that_is_compiled_again_gives_its_entry_up_and_is_remembered(served):
    npu, node = served
    given = json.dumps({"cache_dir": str(npu.directory / "cache"), "rows": [4, 6, 4]})
    told = npu.run("caching", given, NPGXD_SOCKET=str(node.socket))
    assert (told["off"] < 1e-6, told["traced"]) == (True, 2)
    (aside,) = npu.directory.rglob("compiled_module.*.broken")
    assert not aside.with_name("compiled_module").exists()
    once = json.dumps({**json.loads(given), "rows": [4]})
    again = npu.run("caching", once, NPGXD_SOCKET=str(node.socket))
    assert (again["off"] < 1e-6, again["traced"]) == (True, 1)
    assert any("not cached" in line for line in again["said"])
    assert not aside.with_name("compiled_module").exists()


def test_off_is_as_bundled_and_a_file_of_unknown_source_is_not_believed_afterwards(served):
    npu, node = served
    given = json.dumps({"cache_dir": str(npu.directory / "cache")})
    told = npu.run("caching", given, NPGXD_SOCKET=str(node.socket), NPGXD_BRIDGE="off")
    assert (told["off"] < 1e-6, told["traced"], told["said"], told["bridge"]) == (True, 1, [], False)
    (found,) = npu.directory.rglob("compiled_module*")  # and no sidecar
    assert node.status()["artifacts"]["misses"] == 0
    bundled = found.read_bytes()
    told = npu.run("caching", given, NPGXD_SOCKET=str(npu.directory / "none.sock"))
    assert (told["off"] < 1e-6, told["traced"]) == (True, 1)
    assert any("made without npgxd" in line for line in told["said"])
    (aside,) = found.parent.glob("*.broken")
    assert aside.read_bytes() == bundled
    # Its format is unchanged: what we write is what the bundled code wrote, but for the name that Dynamo gave this process's graph.
    assert classes_in(found.read_bytes()) == classes_in(bundled)


def classes_in(data):
    """The classes that an entry is made of, in order."""
    names = []

    class Reader(pickle.Unpickler):
        def find_class(self, module, name):
            names.append(f"{module}.{name}")
            return type(name, (), {"__setstate__": lambda self, state: self.__dict__.update(state)})

    Reader(io.BytesIO(data)).load()
    return names
