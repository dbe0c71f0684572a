"""What administrators see, and the exit codes behind it, from answers as the daemon gives them."""

from __future__ import annotations

import io
import os
from typing import Any

import pytest

from npgxd.cli import gc, import_, status, verify
from npgxd.cli.exits import Exit
from npgxd.cli.main import main
from npgxd.cli.page import Line, show


def plain(lines: list[Line]) -> list[str]:
    out = io.StringIO()
    show(lines, out)
    return out.getvalue().splitlines()


def found(*problems: dict[str, str], repair: bool = False) -> dict[str, Any]:
    left = sum(not problem["done"] for problem in problems)
    return {"repair": repair, "kernels": 3, "packages": 1, "views": 2, "rounds": 0, "pins": 0, "bytes": 4096} | {
        "found": len(problems),
        "left": left,
        "problems": list(problems),
    }


BAD = {"kind": "kernel_damaged", "name": "ab", "detail": "k.o has other\x1b[2J bytes", "done": ""}
MENDED = {**BAD, "done": "set aside in the quarantine"}


@pytest.mark.parametrize(
    ("document", "code"),
    [
        (found(), Exit.OK),
        (found(BAD), Exit.PROBLEMS),
        (found(MENDED, repair=True), Exit.PROBLEMS),
        (found(MENDED, BAD, repair=True), Exit.PROBLEMS_LEFT),
    ],
)
def test_verify_has_a_code_for_each_outcome(document, code):
    assert verify.exit_code(document) is code


def test_verify_names_every_problem_with_the_remedy_and_nothing_acts_on_the_terminal():
    assert plain(verify.page(found())) == [
        "verified   CLEAN  3 kernels, 1 run package, 2 views, 0 rounds, 0 pins, 0 artifacts, 4.1 kB"
    ]
    lines = plain(verify.page(found(BAD)))
    assert lines[1] == "  kernel_damaged  ab: k.o has other\\x1b[2J bytes"
    assert "verify --repair" in lines[2]
    assert "1 problem is left" in plain(verify.page(found(BAD, repair=True)))[2]


def test_gc_tells_what_went_what_stayed_and_why():
    report: dict[str, Any] = {"dry_run": False, "scanned": 5, "removed": 2, "packages": 1, "views": 1, "freed": 30_000}
    report |= {
        "kept": {"leased": 2, "pinned": 1},
        "bytes": 70_000,
        "free": 10**9,
        "retired": 1,
        "over": True,
        "short": False,
        "hold": "",
    }
    assert plain(gc.page(report)) == [
        "gc         REMOVED  2 of 5 kernels, 1 run package, 1 view, 30.0 kB",
        "kept       2 leased, 1 pinned; 70.0 kB, 1.0 GB free",
        "retired    1 kernel of a replaced toolchain, first to go",
        (
            "limits     NOT MET  more is kept than [store] max_gb allows, and the rest is needed: end processes that hold leases, "
            "unpin (npgxctl pins), raise the limit, or free space on the disk"
        ),
    ]
    short = {**report, "over": False, "short": True, "kept": {"leased": 2, "within the limits": 3}}
    assert "and the 3 that nobody needs would not be enough, so they stay" in plain(gc.page(short))[-1]
    assert gc.exit_code(report) is Exit.PROBLEMS
    assert gc.exit_code({**report, "over": False}) is Exit.OK


def test_status_tells_retired_pinned_and_the_last_pass():
    document = {"removal": {"retired": 3, "pinned": 2, "last": {"ago_s": 61, "removed": 4, "scanned": 9, "freed_bytes": 5000}}}
    (line,) = [line for line in plain(status.page(document, now=0.0)) if line.startswith("removal")]
    assert "3 retired" in line
    assert "2 pinned" in line
    assert line.endswith("last gc 1 min ago removed 4 of 9 kernels, 5.0 kB")


def test_status_tells_that_the_disk_is_short_as_long_as_it_is():
    document = {"removal": {"free_bytes": 10**9, "min_free_bytes": 2 * 10**9, "last": {"short": False}}}
    (line,) = [line for line in plain(status.page(document, now=0.0)) if "NO SPACE" in line]
    assert "1.0 GB are free on the disk, [store] min_free_gb asks for 2.0 GB: nothing is compiled" in line
    document["removal"] |= {"free_bytes": 2 * 10**9, "last": {"short": True}}
    assert not any("NO SPACE" in line for line in plain(status.page(document, now=0.0)))


def test_import_finds_record_folders_and_packages_and_follows_no_link(tmp_path):
    outputs = tmp_path / "a" / "static_kernel_compile_outputs" / "ts1_pid7_outputs"
    for name in ("7", "7_debug", "7_opcompile", "7_opcompile_selected", "7_opcompile_gathered", "7_opcompile_else"):
        (outputs / name).mkdir(parents=True)
    (outputs / "static_kernel_20260101.run").write_bytes(b"run")
    (outputs / "other.run").write_bytes(b"run")
    (outputs / "static_kernel_2.run").symlink_to(outputs / "other.run")
    os.mkfifo(outputs / "static_kernel_3.run")
    (tmp_path / "link").symlink_to(outputs)
    tree = import_.find(tmp_path)
    assert [folder.name for folder in sorted(tree.folders)] == ["7_opcompile", "7_opcompile_gathered", "7_opcompile_selected"]
    assert [package.name for package in tree.packages] == ["static_kernel_20260101.run"]


@pytest.mark.parametrize("words", [["gc"], ["verify"], ["pins"], ["pin", "abcd"], ["drain"]])
def test_without_a_daemon_every_command_says_so_and_how_to_start_one(words, tmp_path, capsys):
    assert main([*words, "--socket", str(tmp_path / "admin.sock")]) == Exit.UNAVAILABLE
    said = capsys.readouterr()
    assert said.out == ""
    assert "systemctl start npgxd" in said.err
