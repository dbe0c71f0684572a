from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tools.cann_sim import Reader, create, opened
from tools.cann_sim.compiler.socs import SOCS, find_soc
from tools.cann_sim.ops import BUILT_IN, VENDOR, file_name, op_types
from tools.cann_sim.records import elementwise, write_records

if TYPE_CHECKING:
    from pathlib import Path

TBE = "op_impl/ai_core/tbe"


@pytest.mark.parametrize("version", ["8.5.0", "9.0.0", "9.1.0"])
def test_every_package_has_its_version_file(tmp_path: Path, version: str):
    cann = create(tmp_path / "cann", version=version, soc="Ascend910_9382")
    infos = {path.parent.name: path.read_text() for path in (cann.home / "share/info").glob("*/version.info")}
    assert {"runtime", "compiler", "ops_math", "ops_nn", "ops_cv", "ops_transformer", "ops_legacy"} <= set(infos)
    assert all(text.startswith(f"Version={version}\n") for text in infos.values())
    assert cann.version == version
    assert cann.soc.family == "ascend910_93"


def test_a_home_says_that_it_is_simulated(shared_home):
    assert (shared_home.home / "SIMULATED").read_text().startswith("SIMULATED CANN 9.1.0 for Ascend910B3")
    assert "SIMULATED" in (shared_home.home.parent / "set_env.sh").read_text()


def test_set_env_sets_what_the_handle_says(shared_home):
    script = f". '{shared_home.home.parent}/set_env.sh'; env -0"
    base = {"PATH": os.environ["PATH"]}
    text = subprocess.run(["/bin/sh", "-c", script], env=base, capture_output=True, check=True, text=True).stdout
    sourced = dict(line.split("=", 1) for line in text.split("\0") if line)
    handle = shared_home.env()
    assert {name: sourced[name] for name in handle if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")} == {
        name: value for name, value in handle.items() if name not in ("PYTHONPATH", "LD_LIBRARY_PATH")
    }
    assert sourced["PYTHONPATH"] == str(shared_home.home / "python/site-packages")


def test_opp_latest_resolves_to_the_op_root(shared_home):
    assert (shared_home.home / "opp_latest").resolve() == shared_home.opp.resolve()


def test_two_homes_of_one_version_have_the_same_ops(tmp_path: Path):
    def contents(opp: Path) -> dict[str, bytes]:
        return {str(path.relative_to(opp)): path.read_bytes() for path in opp.rglob("*") if path.is_file()}

    first, second = create(tmp_path / "a"), create(tmp_path / "b")
    assert contents(first.opp) == contents(second.opp)
    assert first.op_compiler.read_bytes() == second.op_compiler.read_bytes()


def test_every_op_has_its_files_and_shares_its_library(shared_home):
    for root, groups in (("built-in", BUILT_IN), ("vendors/acme", VENDOR)):
        tbe = shared_home.opp / root / TBE
        table = json.loads((tbe / "config/ascend910b/aic-ascend910b-ops-info.json").read_text())
        assert set(table) == {op for group in groups for op in group.ops}
        for op_type, entry in table.items():
            name = entry["opFile"]["value"]
            assert name == file_name(op_type)
            assert (tbe / "impl" / f"{name}.py").is_file()
            assert '#include "../common/' in (tbe / "impl/ascendc" / name / f"{name}.cpp").read_text()
            assert (tbe / "op_tiling/lib/linux/x86_64" / entry["tilingLib"]["value"]).is_file()
    assert (shared_home.opp / "vendors/config.ini").read_text() == "load_priority=acme\n"


def test_the_ops_of_a_decoder_and_of_training_are_there():
    needed = (
        "MatMulV2 MatMulV3 BatchMatMulV2 Add Sub Mul Div RealDiv Muls Adds Cast ReduceMean ReduceSum Rsqrt RmsNorm Sigmoid Swish "
        "SwiGlu SoftmaxV2 SoftmaxGrad Transpose TransData ViewCopy Slice StridedSlice ConcatD SplitD GatherV2 IndexPutV2 Pow "
        "ScatterUpdate Square Sqrt Neg Exp Log Cos Sin Maximum Minimum Select Less Greater Equal ZerosLike Fill BroadcastTo Tile "
        "EmbeddingDenseGrad MaskedFill LogSoftmaxV2 NLLLoss ReluGrad Relu Tanh Gelu ApplyAdam"
    )
    assert set(needed.split()) <= set(op_types())


@pytest.mark.parametrize(
    ("op_type", "name"), [("MatMulV2", "mat_mul_v2"), ("NLLLoss", "nll_loss"), ("SGD", "sgd"), ("Add", "add")]
)
def test_file_names_are_in_snake_case(op_type: str, name: str):
    assert file_name(op_type) == name


@pytest.mark.parametrize(
    ("soc", "family"),
    [
        ("Ascend910B1", "ascend910b"),
        ("Ascend910B4-1", "ascend910b"),
        ("Ascend910B2C", "ascend910b"),
        ("Ascend910_9362", "ascend910_93"),
        ("Ascend910_9392", "ascend910_93"),
        ("Ascend910B", "ascend910"),
        ("Ascend910PremiumA", "ascend910"),
        ("Ascend310P3", "ascend310p"),
        ("Ascend950PR_9599", "ascend950"),
    ],
)
def test_socs_have_their_families(soc: str, family: str):
    assert find_soc(soc).family == family


def test_core_counts_differ_inside_a_family():
    assert find_soc("Ascend910B1").cube_cores != find_soc("Ascend910B3").cube_cores


def test_every_soc_of_the_table_can_have_a_home(tmp_path: Path):
    for number, soc in enumerate(sorted({entry.family: name for name, entry in SOCS.items()}.values())):
        cann = create(tmp_path / str(number), soc=soc)
        assert list((cann.opp / "built-in" / TBE / "config" / cann.soc.family).iterdir())


def test_unknown_versions_and_socs_are_refused_with_what_is_known(tmp_path: Path):
    with pytest.raises(LookupError, match=r"CANN 7\.0 is not simulated; known: 8\.5\.0"):
        create(tmp_path / "a", version="7.0")
    with pytest.raises(LookupError, match=r"unknown soc_version 'H100'; known: .*Ascend910B3"):
        create(tmp_path / "b", soc="H100")
    assert list(tmp_path.iterdir()) == []


def test_paths_with_blanks_and_quotes_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    odd = tmp_path / "it's a place"
    odd.mkdir()
    (odd / "python").symlink_to(os.path.realpath(sys.executable))
    monkeypatch.setattr("sys.executable", str(odd / "python"))
    cann = create(odd / "cann")
    write_records(odd / "p", [elementwise("Add", (4,))])
    script = f'. {shlex.quote(str(odd / "cann/set_env.sh"))} && cd / && op_compiler -p "$1" -v Ascend910B3 -f -o "$2" && sh "$2"/*.run -q'
    environ = {"PATH": os.environ["PATH"], "HOME": str(odd), "TMPDIR": str(odd)}
    command = ["/bin/sh", "-c", script, "sh", str(odd / "p"), str(odd / "o")]
    done = subprocess.run(command, env=environ, cwd=odd, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert Reader("Ascend910B3").load(cann.opp).loaded == 1


def test_a_home_is_found_again_by_either_path(shared_home, tmp_path: Path):
    assert opened(shared_home.home) == opened(shared_home.home.parent) == shared_home
    with pytest.raises(LookupError, match="no simulated CANN"):
        opened(tmp_path)
