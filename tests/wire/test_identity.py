from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from npgxd.wire.identity import (
    OpRoot,
    compare,
    default_memo,
    environment_roots,
    identity,
    package_versions,
    roots_digest,
    vendor_priority,
)
from npgxd.wire.messages import CoreCounts, Difference, Hello, ToolchainIdentity
from tools.cann_sim import SimulatedCann, create


@pytest.fixture(scope="module")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> SimulatedCann:
    """A home with one built-in implementation, so that copying it is quick."""
    made = create(tmp_path_factory.mktemp("pristine") / "cann", version="9.1.0", soc="Ascend910B3")
    implementations = made.opp / "built-in/op_impl/ai_core/tbe/impl"
    shutil.rmtree(implementations / "ascendc")
    for path in implementations.glob("*.py"):
        if path.name != "add.py":
            path.unlink()
    return made


@pytest.fixture
def cann(pristine: SimulatedCann, tmp_path: Path) -> SimulatedCann:
    shutil.copytree(pristine.home, tmp_path / "cann", symlinks=True)
    return SimulatedCann(tmp_path / "cann")


@pytest.fixture
def memo(tmp_path: Path) -> Path:
    return tmp_path / "memo.json"


# ---- roots -----------------------------------------------------------------------------------------------------------


def make_roots(opp: Path, *vendors: str, line: str) -> None:
    for vendor in vendors:
        (opp / "vendors" / vendor).mkdir(parents=True, exist_ok=True)
    (opp / "built-in").mkdir(exist_ok=True)
    (opp / "vendors/config.ini").write_text(line)


def test_roots_are_in_canns_search_order(tmp_path: Path) -> None:
    opp, custom = tmp_path / "opp", tmp_path / "custom"
    make_roots(opp, "one", "two", "unlisted", line="# vendors\nload_priority = two , gone,one\n")
    custom.mkdir()
    environ = {"ASCEND_CUSTOM_OPP_PATH": f":{tmp_path / 'absent'}:{custom}:", "ASCEND_OPP_PATH": str(opp)}
    assert environment_roots(environ) == (
        OpRoot("custom", custom),
        OpRoot("vendor", opp / "vendors/two", "two"),
        OpRoot("vendor", opp / "vendors/one", "one"),
        OpRoot("built-in", opp / "built-in"),
    )


def test_a_root_that_is_named_twice_counts_where_it_comes_first(tmp_path: Path) -> None:
    opp = tmp_path / "opp"
    make_roots(opp, "one", line="load_priority=one,one")
    (tmp_path / "link").symlink_to(opp / "vendors/one")
    environ = {"ASCEND_CUSTOM_OPP_PATH": str(tmp_path / "link"), "ASCEND_OPP_PATH": str(opp)}
    assert [root.kind for root in environment_roots(environ)] == ["custom", "built-in"]


@pytest.mark.parametrize(
    "line", ["load_priority=../../evil,ok", "load_priority=.,..,ok", "load_priority=/etc,ok", "load_priority=a/b,ok"]
)
def test_a_vendor_is_one_directory_and_no_path(tmp_path: Path, line: str) -> None:
    make_roots(tmp_path, "ok", line=line)
    assert vendor_priority(tmp_path) == ("ok",)


def test_no_vendors_no_config_and_no_text_are_no_error(tmp_path: Path) -> None:
    assert vendor_priority(tmp_path) == ()
    (tmp_path / "vendors").mkdir()
    (tmp_path / "vendors/config.ini").write_bytes(b"\xff\xfe=\n\0load_priority")
    assert vendor_priority(tmp_path) == ()
    (tmp_path / "vendors/config.ini").unlink()
    os.mkfifo(tmp_path / "vendors/config.ini")
    assert vendor_priority(tmp_path) == ()


def test_opp_is_found_in_the_home_where_it_is_not_named(cann: SimulatedCann) -> None:
    named = environment_roots(cann.env())
    assert environment_roots({"ASCEND_HOME_PATH": str(cann.home)}) == named
    assert len(named) == 2


def test_versions_of_every_package_are_read(cann: SimulatedCann) -> None:
    (cann.home / "share/info/ops_nn/version.info").write_text("name=x\r\nVersion = 9.1.1 \r\nversion_dir=9.1\n")
    (cann.home / "share/info/odd").mkdir()
    (cann.home / "share/info/odd/version.info").write_bytes(b"\0" + b"\xff" * 100_000)
    (cann.home / "opp/version.info").write_text("Version=9.0.0\n")
    versions = package_versions(cann.home)
    assert (versions["runtime"], versions["ops_nn"], versions["odd"], versions["opp"]) == ("9.1.0", "9.1.1", "", "9.0.0")


# ---- the digest ------------------------------------------------------------------------------------------------------


def digest_of(cann: SimulatedCann, memo: Path | None = None) -> str:
    return roots_digest(environment_roots(cann.env()), memo)


def test_the_digest_is_of_the_content_wherever_it_lies(cann: SimulatedCann, tmp_path: Path, memo: Path) -> None:
    moved = SimulatedCann(tmp_path / "other place")
    shutil.copytree(cann.home, moved.home, symlinks=True)
    assert digest_of(moved, memo) == digest_of(cann, memo) == digest_of(cann)


@pytest.mark.parametrize(
    ("where", "counts"),
    [
        ("opp/built-in/op_impl/ai_core/tbe/impl/add.py", True),
        ("opp/built-in/op_impl/ai_core/tbe/impl/new.py", True),
        ("opp/built-in/op_impl/ai_core/tbe/op_tiling/lib/linux/x86_64/liboptiling_cube.so", True),
        ("opp/vendors/acme/op_impl/ai_core/tbe/kernel/ascend910b/gelu_v2/GeluV2.o", True),
        ("opp/vendors/acme/version.info", True),
        ("opp/built-in/op_impl/ai_core/tbe/impl/__pycache__/add.cpython-311.pyc", False),
        ("opp/vendors/acme/README", False),
        ("opp/vendors/unlisted/op_impl/ai_core/x.py", False),
        ("opp/static_kernel/ai_core/x.o", False),
        ("sim-runs.jsonl", False),
    ],
)
def test_what_decides_kernels_counts_and_nothing_else(cann: SimulatedCann, memo: Path, where: str, counts: bool) -> None:
    before = digest_of(cann, memo)
    path = cann.home / where
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((path.read_bytes() if path.exists() else b"") + b"#")
    assert (digest_of(cann, memo) != before) is counts


def test_the_order_of_roots_counts(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name / "op_impl/ai_core").mkdir(parents=True)
        (tmp_path / name / "op_impl/ai_core/x.py").write_text(name)
    roots = [OpRoot("custom", tmp_path / name) for name in ("one", "two")]
    assert roots_digest(roots, None) != roots_digest(roots[::-1], None)
    empty = tmp_path / "empty"
    empty.mkdir()
    assert roots_digest([OpRoot("custom", empty), *roots], None) == roots_digest(roots, None)
    assert roots_digest([OpRoot("custom", empty)], None) == roots_digest([], None) == ""


def test_a_root_that_cannot_be_read_gives_no_digest_rather_than_a_wrong_one(
    cann: SimulatedCann, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.open

    def refuse(path: str, *arguments: int, **named: int) -> int:
        if str(path).endswith("add.py"):
            raise PermissionError(13, "Permission denied", path)
        return real(path, *arguments, **named)

    monkeypatch.setattr(os, "open", refuse)
    assert digest_of(cann) == ""
    assert identity(cann.env()).versions["runtime"] == "9.1.0"


# ---- what a process says of itself -----------------------------------------------------------------------------------


def test_without_cann_nothing_is_told(tmp_path: Path) -> None:
    assert identity({"HOME": str(tmp_path)}) == ToolchainIdentity()
    assert identity({"NPGXD_SOC": "Ascend910B3"}) == ToolchainIdentity(soc="Ascend910B3")
    assert identity({}, soc="Ascend910B1", cores=CoreCounts(1, 2)) == ToolchainIdentity(soc="Ascend910B1", cores=CoreCounts(1, 2))
    assert not list(tmp_path.iterdir())


def test_a_process_says_soc_versions_and_roots_and_a_hello_can_carry_it(cann: SimulatedCann, memo: Path) -> None:
    told = identity(cann.env(), cores=CoreCounts(40, 20), memo=memo)
    assert (told.soc, told.cores, told.versions["ops_math"]) == ("Ascend910B3", CoreCounts(40, 20), "9.1.0")
    assert told.roots == digest_of(cann)
    header = Hello(versions=(1,), toolchain=told).header()
    assert Hello.parse(header).toolchain == told


@pytest.mark.parametrize(
    "environ",
    [
        {"ASCEND_HOME_PATH": "/nowhere", "ASCEND_OPP_PATH": "/nowhere/opp"},
        {"ASCEND_HOME_PATH": "nul\0byte", "ASCEND_OPP_PATH": "nul\0byte"},
        {"ASCEND_CUSTOM_OPP_PATH": ":::\0:"},
        {"ASCEND_HOME_PATH": "x" * 5000, "HOME": "/nowhere", "NPGXD_SOC": "s\0" * 5000},
        {"ASCEND_HOME_PATH": "/dev/null", "XDG_CACHE_HOME": "relative"},
    ],
)
def test_fc71_a_broken_environment_never_fails_a_rank(environ: dict[str, str]) -> None:
    told = identity(environ)
    assert (told.versions, told.roots) == ({}, "")
    assert Hello.parse(Hello(versions=(1,), toolchain=told).header()).toolchain == told


def test_the_memo_lies_in_the_users_cache(cann: SimulatedCann, tmp_path: Path) -> None:
    assert default_memo({"XDG_CACHE_HOME": "/c", "HOME": "/h"}) == Path("/c/npgxd/toolchain")
    assert default_memo({"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/npgxd/toolchain")
    assert default_memo({"HOME": ""}) is None
    first = identity({**cann.env(), "XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert identity({**cann.env(), "XDG_CACHE_HOME": str(tmp_path / "cache")}) == first
    assert first.roots


def test_what_an_earlier_npgxd_remembered_goes_and_nothing_else_does(cann: SimulatedCann, tmp_path: Path) -> None:
    environ = {**cann.env(), "XDG_CACHE_HOME": str(tmp_path)}
    ours = tmp_path / "npgxd"
    ours.mkdir()
    for name in ("toolchain.json", "toolchain.json.files", "toolchain.json.mine", "other.json"):
        (ours / name).write_text("{}")
    first = identity(environ)
    strangers = {"toolchain.json.mine", "other.json"}
    assert {path.name for path in ours.iterdir()} - {"toolchain"} == strangers  # of a young tree nothing is kept
    (ours / "toolchain.json").symlink_to(ours / "other.json")
    (ours / "toolchain.json.files").mkdir()
    strangers |= {"toolchain.json", "toolchain.json.files"}
    assert identity(environ) == first
    assert {path.name for path in ours.iterdir()} - {"toolchain"} == strangers, "what no npgxd put there stays"


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: nobody else can give a file away")
def test_another_users_file_of_that_name_stays(cann: SimulatedCann, tmp_path: Path) -> None:
    (tmp_path / "npgxd").mkdir()
    theirs = tmp_path / "npgxd/toolchain.json"
    theirs.write_text("{}")
    os.chown(theirs, 65534, -1)
    assert identity({**cann.env(), "XDG_CACHE_HOME": str(tmp_path)}).roots
    assert theirs.exists()


def test_a_former_memo_that_cannot_be_removed_is_no_trouble(
    cann: SimulatedCann, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "npgxd").mkdir()
    (tmp_path / "npgxd/toolchain.json").write_text("{}")
    real = os.unlink

    def refuse(path: str, **named: int) -> None:
        if str(path).endswith(".json"):
            raise PermissionError(1, "Operation not permitted", path)
        real(path, **named)

    monkeypatch.setattr(os, "unlink", refuse)
    assert identity({**cann.env(), "XDG_CACHE_HOME": str(tmp_path)}).roots


def test_the_module_is_light(tmp_path: Path) -> None:
    """Every rank imports it: nothing of the daemon, and none of the standard library's heavy parts."""
    program = (
        "import sys, npgxd.wire.messages; before = set(sys.modules); import npgxd.wire.identity;"
        "print(*sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=tmp_path)
    loaded = set(done.stdout.split())
    assert "npgxd.wire.stat_memo" in loaded
    assert not {name.partition(".")[0] for name in loaded} & {"asyncio", "subprocess", "socket", "ssl", "torch", "zmq", "psutil"}


# ---- comparing -------------------------------------------------------------------------------------------------------

DAEMON = ToolchainIdentity(
    soc="Ascend910B3", cores=CoreCounts(40, 20), versions={"runtime": "9.1.0", "ops_nn": "9.1.0"}, roots="a" * 64
)


def test_equal_toolchains_differ_in_nothing() -> None:
    assert compare(DAEMON, DAEMON) == ()


def test_what_a_rank_does_not_say_is_not_compared() -> None:
    assert compare(ToolchainIdentity(), DAEMON) == ()
    assert compare(replace(DAEMON, cores=None, roots=""), DAEMON) == ()


@pytest.mark.parametrize(
    ("rank", "expected"),
    [
        (replace(DAEMON, soc="Ascend910B1"), Difference("soc", "Ascend910B1", "Ascend910B3")),
        (replace(DAEMON, cores=CoreCounts(24, 20)), Difference("core counts", "24 vector, 20 cube", "40 vector, 20 cube")),
        (replace(DAEMON, versions={"runtime": "9.1.0", "ops_nn": "9.1.1"}), Difference("version of ops_nn", "9.1.1", "9.1.0")),
        (replace(DAEMON, versions={"runtime": "9.1.0"}), Difference("version of ops_nn", "not installed", "9.1.0")),
        (replace(DAEMON, versions={**DAEMON.versions, "x": ""}), Difference("version of x", "not stated", "not installed")),
        (replace(DAEMON, roots="b" * 64), Difference("operator implementations", "b" * 16, "a" * 16)),
    ],
)
def test_each_difference_is_told_with_both_sides(rank: ToolchainIdentity, expected: Difference) -> None:
    assert compare(rank, DAEMON) == (expected,)
    assert Difference.parse({"what": expected.what, "rank": expected.rank, "daemon": expected.daemon}) == expected


def test_a_daemon_that_cannot_tell_is_not_taken_for_equal() -> None:
    assert [item.daemon for item in compare(DAEMON, replace(DAEMON, soc="", roots=""))] == ["unknown", "unknown"]


def test_the_number_of_differences_is_bounded() -> None:
    assert len(compare(replace(DAEMON, versions={str(at): "1" for at in range(200)}), DAEMON)) == 64
