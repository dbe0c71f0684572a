"""One round on a stand-in for the bundled module and the client: what is asked of both, and how it can end."""

from __future__ import annotations

import json
import os
import threading
from types import SimpleNamespace

import pytest
import torch

from npgxd.bridge.rounds import Rounds
from npgxd.bridge.vote import Scheme
from npgxd.client import Outcome
from npgxd.wire.states import ClientState, Reason

RECORD = json.dumps({"op_type": "Add", "inputs": [], "outputs": [], "attrs": []}).encode()


class Module:
    """The bundled module, as far as a round needs it."""

    def __init__(self, directory):
        self.directory = directory
        self.loaded = []
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
        place = self.directory / "static_kernel_compile_outputs"
        place.mkdir(exist_ok=True)
        return place

    def _fx_func_run(self, args, graph, inputs, directory):
        graph(*args, **inputs)
        folder = directory / f"{os.getpid()}_opcompile"
        folder.mkdir()
        for name, raw in self.dumped.items():
            (folder / name).write_bytes(raw)

    def _is_in_blacklist(self, name):
        return "MatMul" in name


class Client:
    """A daemon's client that gives one outcome, or none where nobody answers."""

    def __init__(self, outcome=None):
        self.outcome = outcome
        self.asked = []

    def welcome(self):
        return self.outcome and "welcome"

    def recording(self, label):
        self.asked.append(f"recording {label}")

    def static_kernels(self, records, *, graph, options, recompile):
        self.asked.append(([name for name, _ in records], recompile))
        return self.outcome


@pytest.fixture
def module(tmp_path, monkeypatch):
    for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE"):
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
    (selected,) = tmp_path.glob("*/*_selected/*")
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
    (tmp_path / "static_kernel_compile_outputs" / f"{os.getpid()}_opcompile").rename(tmp_path / "earlier")
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
