"""Who is in charge of the name npugraph_ex, with the real torch_npu: torch_npu's own package, bridged, whatever is imported first.

``NPGXD_NPU_ROUNDS=2`` or more tries every order; a quick run tries those that differ in who comes first.
"""

from __future__ import annotations

import itertools
import json
import os

import pytest

IMPORTS = ("torch", "torch_npu", "npugraph_ex")
QUICK = [
    ["autoload on", "torch", "torch_npu", "npugraph_ex"],
    ["autoload on", "npugraph_ex", "torch", "torch_npu"],
    ["autoload off", "torch", "npugraph_ex", "torch_npu"],
    ["autoload off", "our entry point first", "torch", "look up", "torch_npu", "compile"],
    ["autoload off", "our entry point first", "torch", "compile", "npugraph_ex", "torch_npu"],
]
EVERY = [
    *([f"autoload {word}", *order] for word in ("on", "off") for order in itertools.permutations(IMPORTS)),
    *(
        [f"autoload {word}", f"{whose} entry point first", *order]
        for whose in ("our", "their")
        for word, order in (
            ("off", ("torch", "look up", "torch_npu", "compile")),
            ("off", ("torch", "look up", "npugraph_ex", "compile")),
            ("off", ("torch", "compile", "npugraph_ex", "torch_npu")),
            ("off", ("npugraph_ex", "compile", "torch_npu")),
            ("on", ("torch", "compile", "npugraph_ex")),
        )
    ),
]
ORDERS = EVERY if int(os.environ.get("NPGXD_NPU_ROUNDS", "1")) > 1 else QUICK

pytestmark = pytest.mark.timeout(60 + 60 * len(ORDERS))  # the first test waits for all orders


@pytest.fixture(scope="module")
def told(homes, tmp_path_factory):
    """What every order ended with."""
    from machine import Npu

    npu = Npu(homes("9.1.0"), tmp_path_factory.mktemp("names"))
    return npu.run("names", json.dumps(ORDERS), npu.directory / "declared", patience_s=60.0 * len(ORDERS))


@pytest.mark.parametrize("order", [", ".join(order) for order in ORDERS])
def test_torch_npus_own_package_is_in_charge_and_bridged_in_whatever_order_things_are_imported(told, order):
    assert told[order] == {
        "in charge": "torch_npu/dynamo/npugraph_ex/npu_fx_compiler.py",
        "ours": [],  # no submodule of the portable package was ever loaded
        "spelled": ["torch_npu.npu.npugraph_ex.inference"] * 2 + ["npugraph_ex.inference"],
        "bridged": True,
        "torchair": "_LazyTorchair",
    }
