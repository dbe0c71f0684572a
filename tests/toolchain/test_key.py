from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from npgxd.toolchain import CompilerFlags, Fingerprinter, RecordParser, ToolchainSettings, discover, kernel_key
from npgxd.wire.messages import CompileOptions, CoreCounts
from tools.cann_sim import SimulatedCann
from tools.cann_sim import records as described

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

FOLLOW = CompilerFlags("true")


def key_of(
    environ: Mapping[str, str],
    fields: dict[str, object],
    *,
    name: str = "r.json",
    options: CompileOptions | None = None,
    flags: CompilerFlags = FOLLOW,
    settings: ToolchainSettings | None = None,
) -> str:
    """The key that a daemon with this environment gives to a record, from nothing but files."""
    fingerprints = Fingerprinter(discover(settings or ToolchainSettings(), environ), None)
    record = RecordParser().record(name, json.dumps(fields).encode())
    return kernel_key(record, fingerprints.op(record.op_type), options or CompileOptions(), flags)


def test_a_key_is_64_lower_case_hexadecimal_digits(cann: SimulatedCann) -> None:
    key = key_of(cann.env(), described.matmul(4, 8, 16))
    assert len(key) == 64
    assert set(key) <= set("0123456789abcdef")


def test_fc04_everything_that_decides_a_kernel_is_in_its_key(cann: SimulatedCann, tmp_path: Path) -> None:
    environ, fields = cann.env(), described.matmul(4, 8, 16, cores=(40, 20))

    def elsewhere(name: str, change: Callable[[Path], object]) -> dict[str, str]:
        copy = SimulatedCann(tmp_path / name)
        shutil.copytree(cann.home, copy.home, symlinks=True)
        change(copy.home)
        return copy.env()

    def append(path: str) -> Callable[[Path], object]:
        return lambda home: (home / path).write_bytes((home / path).read_bytes() + b"\n# changed\n")

    tbe = "opp/built-in/op_impl/ai_core/tbe"
    keys = {
        "as it is": key_of(environ, fields),
        "cann version": key_of(elsewhere("v", append("share/info/runtime/version.info")), fields),
        "ops package": key_of(elsewhere("p", append("share/info/ops_nn/version.info")), fields),
        "op_compiler": key_of(elsewhere("c", append("bin/op_compiler")), fields),
        "implementation": key_of(elsewhere("i", append(f"{tbe}/impl/mat_mul_v2.py")), fields),
        "tiling library": key_of(elsewhere("t", append(f"{tbe}/op_tiling/lib/linux/x86_64/liboptiling_cube.so")), fields),
        "soc": key_of({**environ, "NPGXD_SOC": "Ascend910B1"}, fields),
        "core limit of the node": key_of(environ, fields, settings=ToolchainSettings(cores=CoreCounts(24, 12))),
        "core limit of the record": key_of(environ, described.matmul(4, 8, 16, cores=(24, 12))),
        "deterministic": key_of(environ, described.matmul(4, 8, 16, cores=(40, 20), deterministic=True)),
        "impl mode": key_of(environ, described.matmul(4, 8, 16, cores=(40, 20), impl_mode="high_precision")),
        "shape": key_of(environ, described.matmul(8, 8, 16, cores=(40, 20))),
        "dtype": key_of(environ, described.matmul(4, 8, 16, "bfloat16", cores=(40, 20))),
        "super kernel": key_of(environ, fields, options=CompileOptions(super_kernel={"stream-fusion": "1"})),
        "super kernel options": key_of(environ, fields, options=CompileOptions(super_kernel={"stream-fusion": "0"})),
        "records not followed": key_of(environ, fields, flags=CompilerFlags("")),
    }
    assert len(set(keys.values())) == len(keys)


def test_fc04_what_decides_nothing_is_in_no_key(cann: SimulatedCann, tmp_path: Path) -> None:
    environ, fields = cann.env(), described.matmul(4, 8, 16, cores=(40, 20))
    key = key_of(environ, fields)
    for noise in (
        {"MASTER_PORT": "29501"},
        {"ASCEND_GLOBAL_LOG_LEVEL": "0", "ASCEND_SLOG_PRINT_TO_STDOUT": "1"},
        {"POD_IP": "10.1.2.3", "HOSTNAME": "other"},
        {"RANK": "7", "LOCAL_RANK": "7", "ASCEND_RT_VISIBLE_DEVICES": "7", "ASCEND_DEVICE_ID": "7"},
        {"PWD": "/elsewhere", "HOME": "/home/other"},
    ):
        assert key_of({**environ, **noise}, fields) == key
    moved = SimulatedCann(tmp_path / "another" / "path")
    shutil.copytree(cann.home, moved.home, symlinks=True)
    assert key_of(moved.env(), fields) == key
    assert key_of(environ, dict(reversed(fields.items())), name="MatMulV2_17.json") == key
    assert key_of(environ, {**fields, "bin_type": 2, "bin_info": "/a/b.o"}) == key
    assert key_of(environ, fields, flags=CompilerFlags("bare")) == key  # how the option is spelled, not what it does


def test_fc16_each_record_has_a_key_of_its_own_in_any_order(cann: SimulatedCann) -> None:
    fingerprints = Fingerprinter(discover(ToolchainSettings(), cann.env()), None)

    def keys(fields: list[dict[str, object]]) -> list[str]:
        records, rejected = RecordParser().parse((str(at), described.encode(item)) for at, item in enumerate(fields))
        assert not rejected
        return [kernel_key(record, fingerprints.op(record.op_type), CompileOptions(), FOLLOW) for record in records]

    known = described.many(120)
    before = keys(known)
    assert len(set(before)) == 120
    assert keys(known[::-1]) == before[::-1]
    assert set(keys(described.many(125))) - set(before) == set(keys(described.many(125)[120:]))
