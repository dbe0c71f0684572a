"""The run package as a file: its options by version, its checksum, extraction without installing."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from typing import TYPE_CHECKING

import pytest

from tools.cann_sim.records import elementwise, many

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = [elementwise("Add", (4, 8)), elementwise("Exp", (4, 8))]
LINES = [
    "Verifying archive integrity...  100%   SHA256 checksums are OK. All good.",
    "Uncompressing STATIC KERNEL RUN PACKAGE  100%",
]


@pytest.fixture
def package(shared) -> Path:
    path: Path = shared.compile(RECORDS).package
    return path


def flip(package: Path, at: int) -> None:
    content = bytearray(package.read_bytes())
    content[at] ^= 0xFF
    package.write_bytes(content)


def test_it_is_executable_and_says_that_it_is_simulated(shared, package: Path):
    assert package.stat().st_mode & 0o700 == 0o700
    assert b"SIMULATED CANN 9.1.0" in package.read_bytes()[:200]
    assert "simulated CANN 9.1.0" in shared.run(package, "--help").stdout
    assert package.stem in shared.run(package, "--info").stdout


def test_check_tells_a_whole_package_from_a_damaged_one(shared, package: Path):
    good = shared.run(package, "--check")
    assert (good.returncode, good.stdout) == (0, LINES[0] + "\n")
    assert shared.run(package, "--check", "-q").stdout == ""
    flip(package, -100)
    bad = shared.run(package, "--check")
    assert bad.returncode == 2
    assert "Error in SHA256 checksums" in bad.stderr


def test_a_changed_checksum_block_is_noticed(shared, package: Path):
    content = package.read_bytes()
    at = content.index(b"\n# SHA256 ") + len(b"\n# SHA256 ")
    package.write_bytes(content[:at] + b"0" * 64 + content[at + 64 :])
    assert shared.run(package, "--check").returncode == 2


def test_a_damaged_package_extracts_nothing(shared, package: Path, tmp_path: Path):
    flip(package, -100)
    assert shared.run(package, "--noexec", "--target", tmp_path / "x").returncode == 2
    assert not (tmp_path / "x").exists()


def test_setup_nocheck_skips_the_check(shared, package: Path):
    content = package.read_bytes()
    at = content.index(b"\n# SHA256 ") + len(b"\n# SHA256 ")
    package.write_bytes(content[:at] + b"0" * 64 + content[at + 64 :])
    root = shared.directory / "root"
    assert shared.run(package, "-q", f"--install-path={root}", SETUP_NOCHECK="1").returncode == 0
    assert (root / "static_kernel/ai_core/config/ascend910b/binary_info_config.json").is_file()


def test_list_names_every_file(shared, package: Path):
    names = [line.split()[-1] for line in shared.run(package, "--list").stdout.splitlines()]
    top = package.stem
    assert f"{top}/config/ascend910b/binary_info_config.json" in names
    assert f"{top}/uninstall.sh" in names
    assert f"{top}/scripts/install.sh" in names
    assert sum(name.endswith(".o") for name in names) == 2
    assert {"uninstall.sh", "version.info"} <= set(names)


def test_noexec_with_target_only_extracts(shared, package: Path, tmp_path: Path):
    done = shared.run(package, "--noexec", "--target", tmp_path / "x")
    assert (done.returncode, done.stdout.splitlines()) == (0, LINES)
    assert (tmp_path / "x" / package.stem / "config/ascend910b/binary_info_config.json").is_file()
    assert not (shared.cann.opp / "static_kernel").exists()


def test_installing_prints_the_documented_lines(shared, package: Path, tmp_path: Path):
    done = shared.run(package, f"--install-path={tmp_path / 'root'}")
    assert done.returncode == 0
    assert done.stdout.splitlines()[:2] == LINES


@pytest.mark.parametrize("quiet", ["-q", "--quiet"])
def test_quiet_prints_nothing(shared, package: Path, tmp_path: Path, quiet: str):
    done = shared.run(package, quiet, f"--install-path={tmp_path / 'root'}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_it_extracts_under_tmpdir_and_leaves_nothing_there(shared, package: Path, tmp_path: Path):
    scratch = tmp_path / "scratch"
    failed = shared.run(package, f"--install-path={tmp_path / 'root'}", TMPDIR=str(scratch))
    assert failed.returncode == 1
    assert str(scratch) in failed.stderr
    scratch.mkdir()
    kept = shared.run(package, "-q", "--keep", f"--install-path={tmp_path / 'root'}", TMPDIR=str(scratch))
    assert kept.returncode == 0
    (extracted,) = scratch.iterdir()
    shutil.rmtree(extracted)
    assert shared.run(package, "-q", f"--install-path={tmp_path / 'root'}", TMPDIR=str(scratch)).returncode == 0
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--frobnicate"], "Unrecognized flag : --frobnicate"),
        (["--install-path="], "--install-path needs a directory"),
        (["--target"], "--target needs a directory"),
    ],
)
def test_bad_arguments_are_refused(shared, package: Path, arguments: list[str], complaint: str):
    done = shared.run(package, *arguments)
    assert done.returncode == 1
    assert complaint in done.stderr


@pytest.mark.parametrize("version", ["8.5.0", "9.0.0", "9.1.0-beta.1"])
def test_before_9_1_there_is_no_install_path(bench_for, version: str, tmp_path: Path):
    bench = bench_for(version)
    package = bench.compile(RECORDS).package
    refused = bench.run(package, f"--install-path={tmp_path / 'root'}")
    assert refused.returncode == 1
    assert "Unrecognized flag : --install-path=" in refused.stderr
    assert "--install-path" not in bench.run(package, "--help").stdout
    assert not (tmp_path / "root").exists()
    assert bench.run(package, "-q").returncode == 0
    assert (bench.cann.opp / "static_kernel/ai_core" / package.stem).is_dir()


def test_9_1_installs_into_the_default_root_without_install_path(bench):
    package = bench.compile(RECORDS).package
    assert bench.run(package).returncode == 0
    assert (bench.cann.opp / "static_kernel/ai_core" / package.stem).is_dir()


def test_the_default_root_is_the_sourced_environments(bench, tmp_path: Path):
    package = bench.compile(RECORDS).package
    elsewhere = tmp_path / "opp"
    elsewhere.mkdir()
    assert bench.run(package, "-q", ASCEND_HOME_PATH="/nonexistent", ASCEND_OPP_PATH=str(elsewhere)).returncode == 0
    assert (elsewhere / "static_kernel/ai_core" / package.stem).is_dir()
    unsourced = bench.run(package, ASCEND_HOME_PATH="", ASCEND_OPP_PATH="")
    assert unsourced.returncode == 1
    assert "set_env.sh" in unsourced.stderr


def test_a_package_runs_when_renamed_and_from_a_path_with_spaces(shared, package: Path, tmp_path: Path):
    moved = tmp_path / "a place" / "renamed file.run"
    moved.parent.mkdir()
    moved.write_bytes(package.read_bytes())
    root = tmp_path / "the root"
    done = shared.run("sh", moved, "-q", f"--install-path={root}", TMPDIR=str(moved.parent))
    assert (done.returncode, done.stderr) == (0, "")
    assert (root / "static_kernel/ai_core" / package.stem).is_dir()
    assert shared.run(root / "static_kernel/ai_core" / package.stem / "uninstall.sh").returncode == 0


def test_an_interrupted_package_cleans_up(shared, tmp_path: Path):
    package = shared.compile(many(4)).package
    installs = b'"$where/$name/scripts/install.sh" "$root" "$@"\nfi'
    text = package.read_bytes()
    assert text.count(installs) == 1
    text = text.replace(installs, b"touch ../started; sleep 60 & wait\nfi")
    slow = tmp_path / "slow.run"
    slow.write_bytes(text)
    scratch, work = tmp_path / "scratch", tmp_path / "work"
    scratch.mkdir()
    work.mkdir()
    environ = {**shared.env(), "TMPDIR": str(scratch)}
    process = subprocess.Popen(["sh", str(slow)], cwd=work, env=environ, start_new_session=True, stdout=subprocess.DEVNULL)
    for _ in range(1000):
        if (tmp_path / "started").exists():
            break
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGTERM)
    assert process.wait(timeout=10) == 15
    assert list(scratch.iterdir()) == []
