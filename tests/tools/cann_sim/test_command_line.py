from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tools.cann_sim import Costs, opened
from tools.cann_sim.cli import main
from tools.cann_sim.records import elementwise, write_records

ADD, EXP = elementwise("Add", (4, 8)), elementwise("Exp", (4, 8))
REPOSITORY = Path(__file__).parents[3]


def test_create_says_that_it_is_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    home = tmp_path / "cann"
    assert (
        main(["create", str(home), "--version", "9.0.0", "--soc", "Ascend910_9382", "--scale", "0", "--object-bytes", "100"]) == 0
    )
    shown = capsys.readouterr().out
    assert "SIMULATED CANN 9.0.0 for Ascend910_9382" in shown
    assert f"source {home}/set_env.sh" in shown
    assert opened(home).costs == Costs(startup_s=1.0, per_op_s=0.5, scale=0.0, object_bytes=100)
    assert main(["create", str(home)]) == 1


def test_unknown_versions_and_socs_are_errors(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        main(["create", str(tmp_path / "a"), "--version", "1.0"])
    assert main(["create", str(tmp_path / "b"), "--soc", "Other"]) == 1
    assert "unknown soc_version 'Other'" in capsys.readouterr().err


def test_set_costs_changes_what_is_named_only(bench, capsys: pytest.CaptureFixture[str]):
    bench.cann.set_costs(Costs(startup_s=3, per_op_s=4))
    assert main(["set-costs", str(bench.cann.home), "--per-op-s", "0.5"]) == 0
    assert bench.cann.costs == Costs(startup_s=3, per_op_s=0.5)
    assert "simulated costs" in capsys.readouterr().out


def test_orders_are_given_listed_and_cancelled(bench, capsys: pytest.CaptureFixture[str]):
    home = str(bench.cann.home)
    assert main(["order", home, "MatMul*", "fail", "--times", "2"]) == 0
    assert capsys.readouterr().out == "1: fail for MatMul*, 2 times\n"
    assert main(["order", home, "*", "no_space"]) == 0
    assert main(["order", home]) == 0
    assert capsys.readouterr().out.endswith("1: fail for MatMul*, 2 times\n2: no_space for *\n")
    assert main(["order", home, "Add"]) == 1
    assert main(["order", home, "--cancel"]) == 0
    assert bench.cann.orders() == ()


def test_runs_are_listed(bench, capsys: pytest.CaptureFixture[str]):
    bench.cann.order("Exp", "crash", times=1)
    bench.compile([EXP])
    bench.compile([ADD, EXP])
    assert main(["runs", str(bench.cann.home)]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "1 records, 0 kernels, not ended" in first
    assert "2 records, 2 kernels, exit 0" in second
    assert "(simulated)" in second


def test_read_loads_a_root_and_compares_it_with_records(shared, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    root, params = tmp_path / "root", tmp_path / "params"
    shared.install(shared.compile([ADD, EXP]).package, root)
    write_records(params, [ADD, EXP])
    read = ["read", str(root), "--soc", "Ascend910B3"]
    assert main(read) == 0
    assert main([*read, "--records", str(params)]) == 0
    assert capsys.readouterr().out.endswith(f"{root}: 2 kernels loaded, 0 shadowed\nexact\n")
    write_records(params, [elementwise("Mul", (3,))], first=2)
    assert main([*read, "--records", str(params)]) == 1
    assert "missing Mul " in capsys.readouterr().out
    next(root.rglob("*.o")).unlink()
    assert main(read) == 1
    assert "TORN " in capsys.readouterr().out
    assert main(["read", str(root), "--soc", "Other"]) == 1


def test_the_module_runs_as_a_command():
    command = [sys.executable, "-m", "tools.cann_sim", "--help"]
    shown = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout
    assert "SIMULATED CANN" in shown
    for name in ("create", "set-costs", "order", "runs", "read"):
        assert name in shown
