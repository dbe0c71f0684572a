"""A process that has the feature off says so (FC-62)."""

from __future__ import annotations

import os
import threading

import pytest
import torch

from npgxd.wire import messages as m
from npugraph_ex import compiling, late
from npugraph_ex.option_off import OptionOff
from tests.client.conftest import fake, short, store
from tests.client.test_trouble import wait_for

__all__ = ["fake", "short", "store"]


@pytest.fixture
def daemon(fake, short, monkeypatch):
    monkeypatch.setenv("NPGXD_SOCKET", str(short / "npgxd.sock"))
    off = OptionOff()
    monkeypatch.setattr(compiling, "OFF", off)
    yield fake()
    if off._client is not None:
        off._client.close()


def run(**options):
    torch._dynamo.reset()
    model = torch.compile(torch.exp, backend="npugraph_ex", options=options, fullgraph=True)
    x = torch.rand(3)
    assert torch.equal(model(x), torch.exp(x))


def test_fc62_a_process_with_the_option_off_is_disabled_for_that_reason_and_not_silent(daemon):
    run()
    run()
    wait_for(lambda: daemon.asked(m.Report), "it is told")
    (report,) = daemon.asked(m.Report)
    assert (report.state, report.reason) == ("DISABLED", "option_off")
    (hello,) = daemon.asked(m.Hello)
    assert hello.toolchain == m.ToolchainIdentity()


def test_a_graph_with_the_option_on_is_the_processs_state(daemon, client):
    run(static_kernel_compile=True)
    run()
    assert daemon.asked(m.Hello) == []


def test_it_is_taken_back_when_a_graph_asks_for_static_kernels(daemon, client):
    run()
    wait_for(lambda: daemon.asked(m.Report), "it is told")
    off = compiling.OFF
    told = off._client
    run(static_kernel_compile=True)
    wait_for(lambda: told._session.last_welcome() is None, "its connection ends")
    assert off._client is None


def test_a_forked_child_tells_it_for_itself(daemon):
    run()
    wait_for(lambda: daemon.asked(m.Report), "it is told")
    child = os.fork()
    if child == 0:
        compiling.OFF.tell("0")
        wait_for(lambda: compiling.OFF._client._reported, "it is told")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert len({hello.pid for hello in daemon.asked(m.Hello)}) == 2


def test_a_process_that_can_have_no_more_threads_runs_all_the_same(daemon, monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start new thread: {thread.name}")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    run()
    compiling.OFF.take_back()
    assert late.answered(lambda: "an answer", "none") == "none"
