"""The import hook on a stand-in for torch_npu, each time in an interpreter of its own. tests/npu has the real one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PTH = REPOSITORY / "npgxd" / "bridge" / "npgxd-bridge.pth"

PACKAGE = """
import atexit, signal
def _finalize(): print("finalized")
atexit.register(_finalize)
signal.signal(signal.SIGTERM, lambda *_: None)
signal.signal(signal.SIGINT, lambda *_: None)
"""
STATIC_KERNEL = """
def compile_static_kernel(fx_func, *args, config=None, build_dir=None, **kwargs): return "bundled"
def uninstall_static_kernel(): print("uninstalled")
"""
LONG = "torch_npu.dynamo.npugraph_ex._acl_concrete_graph.static_kernel"


@pytest.fixture
def python(tmp_path):
    """Run code in an interpreter that starts with the .pth line and can import the stand-in; what it printed."""
    package = tmp_path / "site" / "torch_npu" / "dynamo" / "npugraph_ex"
    (package / "_acl_concrete_graph").mkdir(parents=True)
    for directory in (package.parents[1], package.parent, package / "_acl_concrete_graph"):
        (directory / "__init__.py").touch()
    (package / "__init__.py").write_text(PACKAGE)
    (package / "_acl_concrete_graph" / "static_kernel.py").write_text(STATIC_KERNEL)

    def run(code, **environment):
        environment = {**{name: value for name, value in os.environ.items() if not name.startswith("NPGXD_")}, **environment}
        environment["PYTHONPATH"] = f"{tmp_path / 'site'}:{REPOSITORY}"
        command = [sys.executable, "-c", f"{PTH.read_text()}\n{code}"]
        done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.split(), done.stderr

    run.static_kernel = package / "_acl_concrete_graph" / "static_kernel.py"
    return run


BRIDGED = f"import {LONG} as m; print(getattr(m.compile_static_kernel, 'npgxd_bridge', None), m.compile_static_kernel.__name__)"


def test_the_bundled_functions_are_replaced_when_their_module_is_loaded(python):
    assert python(BRIDGED) == (["True", "compile_static_kernel"], "")


def test_both_names_of_a_bundled_module_are_followed(python):
    short = (
        "import sys, types, torch_npu.dynamo.npugraph_ex as real; alias = types.ModuleType('npugraph_ex'); alias.__path__ = real.__path__;"
        "sys.modules['npugraph_ex'] = alias; import npugraph_ex._acl_concrete_graph.static_kernel as m;"
        "print(m.compile_static_kernel.npgxd_bridge, m.__name__)"
    )
    assert python(short)[0] == ["True", "npugraph_ex._acl_concrete_graph.static_kernel"]


def test_signal_handlers_and_the_exit_hook_are_put_back(python):
    code = (
        "import signal; before = [signal.getsignal(n) for n in (15, 2)]; import torch_npu.dynamo.npugraph_ex;"
        "print([signal.getsignal(n) for n in (15, 2)] == before)"
    )
    assert python(code) == (["True"], "")
    assert python(code, NPGXD_BRIDGE="off")[0] == ["False", "finalized"]


@pytest.mark.parametrize("word", ["off", "OFF", "0", "no", "false"])
def test_the_bridge_can_be_switched_off(python, word):
    assert python(BRIDGED, NPGXD_BRIDGE=word)[0] == ["None", "compile_static_kernel", "finalized"]


def test_a_line_that_runs_twice_installs_one_hook(python):
    again = "import importlib, sys, npgxd.bridge.hook as hook; hook.install(); importlib.reload(hook);"
    assert python(again + "print(sum(hasattr(f, 'npgxd_bridge') for f in sys.meta_path))")[0] == ["1"]


def test_an_interpreter_starts_with_nothing_more_than_the_hook(python):
    loaded = "import sys; print(*sorted(name for name in sys.modules if name.startswith(('npgxd', 'zmq', 'msgpack', 'torch'))))"
    assert python(loaded)[0] == ["npgxd", "npgxd.bridge", "npgxd.bridge.hook"]


def test_a_bridge_that_cannot_be_loaded_leaves_torch_npu_as_it_is(python):
    told, complaint = python(f"import sys; sys.modules['npgxd.bridge.replacing'] = None; {BRIDGED}")
    assert told == ["None", "compile_static_kernel", "finalized"]
    assert "npgxd: the bridge is not active" in complaint
    assert "Traceback" not in complaint


def test_a_client_that_cannot_be_loaded_leaves_the_bundled_flow_with_its_removal_at_exit(python):
    told, complaint = python(f"import sys; sys.modules['zmq'] = None; {BRIDGED}")
    assert told == ["None", "compile_static_kernel", "uninstalled"]
    assert "do not go through the daemon" in complaint
    assert "Traceback" not in complaint


def test_an_interpreter_without_npgxd_starts_in_silence(tmp_path):
    done = subprocess.run(
        [sys.executable, "-S", "-c", PTH.read_text()],
        env={"PATH": os.environ["PATH"]},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_another_torch_npu_than_is_known_keeps_its_flow(python):
    python.static_kernel.write_text("def compile_other(): return 'bundled'\n")
    told, complaint = python(f"import {LONG} as m; print(m.compile_other())")
    assert told == ["bundled"]
    assert "do not go through the daemon" in complaint


def test_an_error_of_the_bundled_module_is_its_own(python):
    python.static_kernel.write_text("raise RuntimeError('theirs')\n")
    told, _ = python(f"try:\n    import {LONG}\nexcept RuntimeError as error:\n    print(error)")
    assert told == ["theirs"]
