"""One round on a stand-in for the bundled module and the client: what is asked of both, and how it can end."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from npgxd.bridge.rounds import Rounds
from npgxd.bridge.vote import Scheme
from npgxd.client import Outcome, Progress
from npgxd.wire.messages import CoreCounts
from npgxd.wire.states import ClientState, Reason, RoundState

RECORD = json.dumps({"op_type": "Add", "inputs": [], "outputs": [], "attrs": []}).encode()


class Module:
    """The bundled module, as far as a round needs it."""

    def __init__(self, directory):
        self.directory = directory
        self.loaded = []
        self.mapped = []
        self.dumped = {"Add_float_ND_1_0.json": RECORD, "MatMulV2_float_ND_1_0.json": RECORD}
        self.torch = SimpleNamespace(
            npu=SimpleNamespace(
                synchronize=lambda: self.loaded.append("synchronize"),
                _aclnn_reselect_static_kernel_with_path=self.loaded.append,
                _aclnn_reselect_static_kernel=lambda: self.loaded.append("default root"),
            )
        )
        self.dist = SimpleNamespace(is_available=lambda: True, is_initialized=lambda: False)

    def safe_resolve_output_dir(self, build_dir):
        place = self.directory / "static_kernel_compile_outputs" / "ts1_pid1_outputs"
        place.mkdir(parents=True, exist_ok=True)
        return place

    def _fx_func_run(self, args, graph, inputs, directory):
        graph(*args, **inputs)
        folder = directory / f"{os.getpid()}_opcompile"
        folder.mkdir()
        for name, raw in self.dumped.items():
            (folder / name).write_bytes(raw)

    def _is_in_blacklist(self, name):
        return "MatMul" in name

    def _get_static_kernel_cache_key(self, folder, config):
        return f"{folder.name.split('_', 1)[1]} {sorted(path.name for path in folder.iterdir())} {config}"

    def _get_cache_path(self, directory):
        return directory.parent / "static_kernel_cache" / "CANN.json"

    def _query_static_kernel_cache(self, path, key):
        return dict(self.mapped).get(key)

    def _update_static_kernel_cache(self, path, key, directory):
        self.mapped.append((key, directory))


class Client:
    """A daemon's client that gives one outcome, or none where nobody answers."""

    def __init__(self, outcome=None, progress=()):
        self.outcome = outcome
        self.progress = progress
        self.asked = []
        self.identity = {}

    def welcome(self):
        return self.outcome and "welcome"

    def recording(self, label):
        self.asked.append(f"recording {label}")

    def identify(self, **identity):
        self.identity = identity

    def static_kernels(self, records, *, graph, options, recompile, on_progress):
        self.asked.append(([name for name, _ in records], recompile))
        for progress in self.progress:
            on_progress(progress)
        return self.outcome

    def gathered(self, round_id):
        return [("Add_float_ND_1_0.json", RECORD), ("Add_float_ND_1_0.json", RECORD.replace(b"Add", b"Sub"))]


@pytest.fixture
def module(tmp_path, monkeypatch):
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("npgxd.client.notice._said", set())
    return Module(tmp_path)


def rounds(module, client, bundled=None):
    called = [] if bundled is None else bundled
    return Rounds(
        module,
        bundled=lambda *args, **named: called.append(args),
        bundled_uninstall=lambda: called.append("uninstall"),
        connect=lambda: client,
    )


def installed(tmp_path):
    return Outcome(ClientState.INSTALLED, Reason.COMPILED, round="r", view=tmp_path / "view")


def test_a_graph_is_run_once_its_records_are_sent_and_the_view_is_loaded(module, tmp_path):
    client, ran = Client(installed(tmp_path)), []
    rounds(module, client).compile(lambda x, scale: ran.append((x, scale)), 3, config={}, build_dir=None, scale=2)
    assert ran == [(3, 2)]
    assert client.asked[1] == (["Add_float_ND_1_0.json"], False)
    assert module.loaded == ["synchronize", str(tmp_path / "view")]
    (selected,) = tmp_path.glob("*/*/*_selected/*")
    assert selected.name == "Add_float_ND_1_0.json"


def test_an_older_cann_reselects_its_default_root(module, tmp_path):
    client = Client(Outcome(ClientState.INSTALLED, Reason.HIT, round="r", root=tmp_path))
    rounds(module, client).compile(lambda: None, config={"disable_static_kernel_compile_cache": True})
    assert client.asked[1][1] is True
    assert module.loaded == ["synchronize", "default root"]


def test_without_a_daemon_the_bundled_function_gets_the_call_as_it_is(module):
    called = []
    served = rounds(module, Client(), called)
    served.compile("graph", 1, 2, config={"a": 1})
    served.uninstall()
    assert called == [("graph", 1, 2), "uninstall"]


def test_a_served_process_uninstalls_nothing(module, tmp_path):
    called = []
    served = rounds(module, Client(installed(tmp_path)), called)
    served.uninstall()
    served.compile(lambda: None, config={})
    served.uninstall()
    assert called == []


def test_a_rank_that_was_served_never_enters_the_bundled_flow(module, tmp_path):
    called, client = [], Client(installed(tmp_path))
    served = rounds(module, client, called)
    served.compile(lambda: None, config={})
    client.outcome = None  # the daemon has gone
    (tmp_path / "static_kernel_compile_outputs/ts1_pid1_outputs" / f"{os.getpid()}_opcompile").rename(tmp_path / "earlier")
    client.static_kernels = lambda *_, **__: Outcome(ClientState.DEGRADED, Reason.DAEMON_UNAVAILABLE, "gone")
    served.compile(lambda: None, config={})
    assert called == []


def test_what_a_graph_raises_is_left_to_its_own_run(module, tmp_path, caplog):
    def fails():
        raise RuntimeError("theirs")

    rounds(module, Client(installed(tmp_path))).compile(fails, config={})
    assert module.loaded == []
    assert "theirs" in caplog.text


def test_a_graph_that_another_thread_keeps_from_the_dump_is_run_and_said_to_have_no_kernels(module, tmp_path, caplog):
    inside, leave, ran = threading.Event(), threading.Event(), []
    served = rounds(module, Client(installed(tmp_path)))
    served._scheme = Scheme.ALONE

    def slow():
        inside.set()
        leave.wait(60)

    other = threading.Thread(target=served.compile, args=(slow,), kwargs={"config": {}})
    other.start()
    inside.wait(60)
    module.safe_resolve_output_dir = lambda _: tmp_path
    served.compile(lambda: ran.append(1), config={})
    leave.set()
    other.join()
    assert ran == [1]
    assert "dump_switch_held" in caplog.text


def test_records_that_cannot_be_read_are_told_of(module, tmp_path, caplog):
    module.dumped["Torn_float_ND_1_0.json"] = RECORD[:-3]
    rounds(module, Client(installed(tmp_path))).compile(lambda: None, config={})
    assert "bad_records: 1 of the dumped records cannot be used: Torn_float_ND_1_0.json" in caplog.text
    assert module.loaded  # the others are used


@pytest.mark.parametrize("error", [RuntimeError("failed to resolve path"), AttributeError("no such function")])
def test_a_view_that_cannot_be_loaded_is_told_of(module, tmp_path, caplog, error):
    def fails(_):
        raise error

    module.torch.npu._aclnn_reselect_static_kernel_with_path = fails
    rounds(module, Client(installed(tmp_path))).compile(lambda: None, config={})
    assert "reselect_failed" in caplog.text


def test_outputs_that_cannot_be_written_do_not_keep_kernels_away(module, tmp_path, caplog):
    def fails(_):
        raise RuntimeError("read-only")

    module.safe_resolve_output_dir = fails
    rounds(module, Client(installed(tmp_path))).compile(lambda: None, config={})
    assert module.loaded == ["synchronize", str(tmp_path / "view")]
    assert "is not written: read-only" in caplog.text


def test_what_the_graph_writes_to_is_as_before(module, tmp_path):
    x = torch.zeros(2)
    rounds(module, Client(installed(tmp_path))).compile(lambda t: t.add_(1), x, config={})
    assert x.tolist() == [0, 0]


# ---- what one rank of a job does for all -----------------------------------------------------------------------------


@pytest.fixture
def served(tmp_path):
    """An outcome whose kernels came in one run package."""
    package = tmp_path / "stored"
    package.write_bytes(b"#!/bin/sh")
    packages = (("static_kernel_1.run", package),)
    return Outcome(
        ClientState.INSTALLED, Reason.COMPILED, round="r", unique=1, gathered=1, view=tmp_path / "view", packages=packages
    )


def test_the_map_of_packages_is_written_by_the_bundled_functions_from_what_was_selected(module, served):
    rounds(module, Client(served)).compile(lambda: None, config={"frozen_parameter": True})
    ((key, directory),) = module.mapped
    assert key == "opcompile_selected ['Add_float_ND_1_0.json'] {'frozen_parameter': True}"
    (package,) = directory.glob("*.run")
    assert os.access(package, os.X_OK)  # the bundled flow runs it
    assert not os.access(served.packages[0][1], os.X_OK)  # the store's own stays as it is


def test_kernels_of_several_packages_are_in_no_map_which_knows_of_one(module, served, tmp_path):
    another = (*served.packages, ("static_kernel_2.run", served.packages[0][1]))
    rounds(module, Client(replace(served, packages=another))).compile(lambda: None, config={})
    assert module.mapped == []
    assert len(list(module.directory.glob("*/*/*.run"))) == 2


def test_what_is_selected_is_what_no_earlier_graph_of_the_process_selected(module, served):
    module.dumped["Add_float_ND_1_1.json"] = RECORD
    both = rounds(module, Client(served))
    both.compile(lambda: None, config={})
    (selected,) = module.directory.glob("*/*/*_selected")
    assert len(list(selected.iterdir())) == 1
    for folder in selected.parent.glob("*_opcompile*"):
        folder.rename(module.directory / folder.name)
    module.dumped["Sub_float_ND_1_0.json"] = RECORD.replace(b"Add", b"Sub")
    both.compile(lambda: None, config={})
    assert [path.name for path in selected.iterdir()] == ["Sub_float_ND_1_0.json"]


def test_a_disabled_cache_is_not_written_to(module, served):
    rounds(module, Client(served)).compile(lambda: None, config={"disable_static_kernel_compile_cache": True})
    assert module.mapped == []
    assert list(module.directory.glob("*/*/*.run"))  # the documented package is there nevertheless


def test_beside_a_compile_cache_the_map_tells_of_the_records_that_were_dumped(module, served):
    config = {"static_kernel_compile.use_cache_compile": True}
    rounds(module, Client(served)).compile(lambda: None, config=config)
    assert module.mapped[0][0].startswith("opcompile [")


def test_the_records_of_several_ranks_are_gathered_by_one_of_them_and_the_map_tells_of_those(module, served, monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    shared = rounds(module, Client(served))
    shared._scheme = Scheme.ALONE
    shared.compile(lambda: None, config={})
    (folder,) = module.directory.glob("*/*/*_opcompile_gathered")
    assert {path.name: json.loads(path.read_bytes())["op_type"] for path in folder.iterdir()} == {
        "Add_float_ND_1_0.json": "Add",
        "Add_float_ND_1_0_1.json": "Sub",
    }
    assert module.mapped[0][0] == "opcompile_gathered ['Add_float_ND_1_0.json', 'Add_float_ND_1_0_1.json'] {}"


@pytest.mark.parametrize("how", ["by the daemon's word", "by its local rank"])
def test_another_rank_writes_none_of_that_and_says_nothing(module, served, monkeypatch, caplog, how):
    caplog.set_level("INFO", logger="npgxd")
    told = None if how == "by its local rank" else False
    if told is None:
        monkeypatch.setenv("LOCAL_RANK", "1")
    progress = Progress(
        "r", RoundState.COMPILING, records=2, unique=2, done=1, total=2, elapsed_s=2.0, stalled_s=60.0, speaks=told
    )
    silent = Client(replace(served, speaks=told), [progress])
    rounds(module, silent).compile(lambda: None, config={})
    assert module.mapped == []
    assert not list(module.directory.glob("*/*/*.run"))
    assert caplog.records == []


def test_the_rank_that_speaks_tells_how_far_a_round_is_every_ten_seconds_and_of_a_stall_once(module, served, caplog):
    caplog.set_level("INFO", logger="npgxd")
    progress = [
        Progress(
            "r", RoundState.COMPILING, records=2, unique=2, done=done, total=2, elapsed_s=elapsed, stalled_s=stalled, speaks=True
        )
        for done, elapsed, stalled in ((0, 0.5, 0.0), (0, 1.0, 0.0), (1, 4.0, 0.0), (1, 11.0, 60.0), (1, 12.0, 61.0))
    ]
    rounds(module, Client(replace(served, speaks=True), progress)).compile(lambda: None, config={})
    told = [record.message.split(": ", 2)[2] for record in caplog.records]
    assert [line.split(",")[0] for line in told] == [
        "static kernels COMPILING(0/2)",
        "nothing has moved for 60 s",
        "static kernels COMPILING(1/2)",
        "static kernels INSTALLED (compiled 0 of 1 kernels",
    ]


def test_outputs_that_cannot_be_completed_are_told_of_and_do_not_keep_kernels_away(module, served, caplog):
    module._get_cache_path = lambda _: (_ for _ in ()).throw(RuntimeError("read-only"))
    rounds(module, Client(served)).compile(lambda: None, config={})
    assert module.loaded == ["synchronize", str(served.view)]
    assert "is not complete: RuntimeError: read-only" in caplog.text


@pytest.mark.parametrize(("vector", "cube", "said"), [(40, 20, CoreCounts(vector=40, cube=20)), (0, 0, None), (2**40, 20, None)])
def test_the_daemon_is_told_of_the_device_and_of_its_cores_where_the_runtime_tells(module, served, vector, cube, said):
    device = SimpleNamespace(vector_core_num=vector, cube_core_num=cube)
    module.torch_npu = SimpleNamespace(
        npu=SimpleNamespace(get_device_name=lambda: "Ascend910B3", get_device_properties=lambda: device)
    )
    client = Client(served)
    rounds(module, client).compile(lambda: None, config={})
    assert client.identity == {"soc": "Ascend910B3", **({"cores": said} if said else {})}
