"""The name npugraph_ex beside stand-ins for torch and torch_npu, each time in an interpreter of its own. tests/npu has the real ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
HOOK = "import npgxd.bridge.hook"
OLDER = "import sys, types, torch; torch.npu = types.ModuleType('torch.npu')"
"""A torch_npu without an npugraph_ex of its own."""
WHO = "print(npugraph_ex.__name__, torch.npu.npugraph_ex is npugraph_ex, torch.npu.npugraph_ex.static_kernel_report())"


@pytest.fixture
def python(tmp_path):
    """Run code beside a torch that is empty and a torch_npu that is ``torch_npu``; what it printed."""

    def run(code, *, torch_npu=None, bundled=False, **environment):
        site = tmp_path / "site"
        for package in (
            "torch",
            *(("torch_npu",) if torch_npu is not None else ()),
            *(("torch_npu/dynamo/npugraph_ex",) * bundled),
        ):
            (site / package).mkdir(parents=True)
            (site / package / "__init__.py").touch()
        if torch_npu is not None:
            (site / "torch_npu" / "__init__.py").write_text(torch_npu)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("NPGXD_", "TORCH_"))}
        environment = {**kept, **environment, "PYTHONPATH": f"{site}:{REPOSITORY}"}
        done = subprocess.run(
            [sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr

    return run


def test_without_torch_npu_the_name_is_ours_and_imports_no_torch(python):
    code = "import sys, npugraph_ex; print(npugraph_ex.static_kernel_report(), 'torch' in sys.modules)"
    assert python(code) == ("() False", "")


@pytest.mark.parametrize("order", ["torch, torch_npu, npugraph_ex", "npugraph_ex, torch, torch_npu", "torch, torch_npu"])
def test_a_torch_npu_without_a_package_of_its_own_gets_ours_at_the_documented_name_in_any_order(python, order):
    code = f"{HOOK}\nimport {order}\nimport npugraph_ex\n{WHO}"
    assert python(code, torch_npu=OLDER) == ("npugraph_ex True ()", "")


def test_a_torch_npu_with_its_own_package_keeps_the_name_and_nothing_of_ours_is_loaded(python):
    theirs = "import sys, types; theirs = types.ModuleType('theirs'); theirs.__path__ = []; sys.modules.setdefault('npugraph_ex', theirs)"
    code = (
        "import sys, npugraph_ex; print(npugraph_ex.__name__, *[name for name in sys.modules if name.startswith('npugraph_ex.')])"
    )
    assert python(code, torch_npu=theirs, bundled=True) == ("theirs", "")


@pytest.mark.parametrize("before", [{}, {"TORCH_DEVICE_BACKEND_AUTOLOAD": "1"}])
def test_where_torch_npu_cannot_be_loaded_the_portable_backend_is_in_charge_and_says_so(python, before):
    broken = "import os; os.environ['TORCH_DEVICE_BACKEND_AUTOLOAD'] = '0'; raise ImportError('libascendcl.so: cannot open')"
    code = (
        "import logging, os; logging.basicConfig(); import npugraph_ex;"
        "print(npugraph_ex.static_kernel_report(), os.environ.get('TORCH_DEVICE_BACKEND_AUTOLOAD'))"
    )
    told, complaint = python(code, torch_npu=broken, bundled=True, **before)
    assert told == f"() {before.get('TORCH_DEVICE_BACKEND_AUTOLOAD')}"
    assert "the portable backend is in charge: ImportError: libascendcl.so: cannot open" in complaint


def test_what_dynamo_loads_is_torch_npus_backend_where_it_has_one_and_is_imported_when_it_is_called(python):
    code = (
        "import sys; from npgxd.bridge.dynamo import npugraph_ex; print(npugraph_ex.__module__, 'torch_npu' in sys.modules);"
        "import torch_npu.dynamo as d; d._npugraph_ex_backend_entrypoint = lambda gm, inputs, **named: (gm, inputs, named);"
        "print(npugraph_ex('graph', [1], options={}))"
    )
    assert python(code, torch_npu="", bundled=True)[0].split("\n") == [
        "torch_npu.dynamo False",
        "('graph', [1], {'options': {}})",
    ]
