"""The administrator's socket and commands, on a real daemon."""

from __future__ import annotations

import json
import socket
import stat
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import AS_ROOT, PATIENCE_S, Node, eventually, matmuls

from npgxd.wire.credentials import PeerCredentials, send_as

if TYPE_CHECKING:
    from collections.abc import Callable


def npgxctl(node: Node, *words: str, code: int = 0) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-m", "npgxd.cli.main", *words, "--json"],
        env=node.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout else {"error": done.stderr}


def kernels(node: Node) -> list[Path]:
    return sorted(path.parent for path in node.state.glob("kernels/*/*/manifest.json"))


def objects(kernel: Path) -> Path:
    return next(kernel.glob("*.o"))


def test_the_socket_is_its_owners_alone_and_speaks_its_own_vocabulary(node: Node) -> None:
    path = node.runtime / "admin.sock"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as forger:
        forger.connect(str(path))
        send_as(forger, PeerCredentials(0, 0, 1), b"\xc1 no message")
    assert npgxctl(node, "pins") == {"schema": 1, "pins": []}
    assert node.status() is not None


@AS_ROOT
def test_another_user_is_not_let_in_also_where_the_file_system_would(node: Node) -> None:
    node.runtime.chmod(0o755)
    (node.runtime / "admin.sock").chmod(0o666)
    program = (
        "import os, sys\nfrom npgxd.cli.main import build_parser, main\nbuild_parser()\n"
        "os.setgid(65534); os.setuid(65534)\nsys.exit(main(['gc', '--json']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=node.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )
    assert done.returncode == 69
    assert "no administrator" in done.stderr
    assert "run npgxctl as root" in done.stderr


def test_verify_names_every_kind_of_damage_and_repair_mends_it(node: Node) -> None:
    rank = node.rank(matmuls(16, 32, 48, 64))
    assert rank.outcome()["state"] == "INSTALLED"
    rank.end()
    assert npgxctl(node, "verify")["found"] == 0
    damaged, gone, *_ = kernels(node)
    objects(damaged).write_bytes(b"other bytes")
    for path in gone.iterdir():
        path.unlink()
    gone.rmdir()
    package = next(node.state.glob("packages/*.run"))
    package.write_bytes(b"other")
    (node.state / "rounds" / f"{1:032x}.round").write_bytes(b"torn")
    (node.state / "leases" / f"{1:032x}").write_bytes(b"{")
    found = npgxctl(node, "verify", code=1)
    kinds = {problem["kind"] for problem in found["problems"]}
    assert {"kernel_damaged", "row_stale", "package_damaged", "round_damaged", "lease_damaged"} <= kinds
    assert found["left"] == found["found"]
    assert damaged.exists(), "without --repair nothing is touched"
    mended = npgxctl(node, "verify", "--repair", code=1)
    assert mended["left"] == 0
    assert npgxctl(node, "verify")["found"] == 0
    assert not damaged.exists()
    outcome = node.rank(matmuls(16, 32, 48, 64)).outcome()
    assert (outcome["state"], outcome["hits"], outcome["compiled"], outcome["torn"]) == ("INSTALLED", 2, 2, 0)


def test_verify_repair_does_not_touch_a_view_that_a_process_reads_and_says_so(node: Node) -> None:
    reader = node.rank(matmuls(16))
    view = reader.outcome()["view"]
    objects(kernels(node)[0]).write_bytes(b"other bytes")  # the view has hard links of the same files
    report = npgxctl(node, "verify", "--repair", code=2)
    left = [problem for problem in report["problems"] if not problem["done"]]
    assert [problem["kind"] for problem in left] == ["view_damaged"]
    assert "restarted" in left[0]["detail"]
    assert Path(view).is_dir()
    other = node.rank(matmuls(16)).outcome()
    assert (other["state"], other["compiled"], other["torn"]) == ("INSTALLED", 1, 0)
    assert other["view"] != view


def test_gc_dry_run_changes_nothing_and_pins_hold(make_node: Callable[..., Node]) -> None:
    node = make_node()
    node.settings["store"] = {"max_gb": 1e-6, "recent_s": 0}
    node.start()
    rank = node.rank(matmuls(16, 32, 48))
    rank.outcome()
    report = npgxctl(node, "gc", code=1)
    assert (report["removed"], report["kept"]) == (0, {"leased": 3})
    rank.end()
    eventually(lambda: node.status()["kernels"]["leases"] == 0, "the lease has ended")
    node.kill()  # what was told a moment ago is held for a minute; a new daemon has told nothing
    node.start()
    key = json.loads((kernels(node)[0] / "manifest.json").read_text())["origin"]["key"]
    assert npgxctl(node, "pin", key[:12])["pin"]["keys"] == 1
    dry = npgxctl(node, "gc", "--dry-run", code=1)
    assert (dry["removed"], dry["dry_run"], len(dry["victims"])) == (2, True, 2)
    assert len(kernels(node)) == 3
    assert npgxctl(node, "gc", code=1)["removed"] == 2
    assert len(kernels(node)) == 1
    node.kill()
    node.start()
    assert npgxctl(node, "gc", code=1)["kept"] == {"pinned": 1}, "pins survive kill -9"
    assert npgxctl(node, "unpin", key[:12])["unpinned"] == key[:12]
    npgxctl(node, "gc")
    assert not kernels(node)
    assert not list((node.state / "packages").iterdir()), "a package goes with the last of its kernels"
    assert npgxctl(node, "verify")["found"] == 0
    outcome = node.rank(matmuls(16, 32, 48)).outcome()
    assert (outcome["state"], outcome["compiled"]) == ("INSTALLED", 3)


def test_what_cannot_be_found_or_read_is_said_with_a_remedy(node: Node) -> None:
    assert "no kernel is known" in npgxctl(node, "pin", "abcd", code=69)["error"]
    assert "pins: none" in npgxctl(node, "unpin", "abcd", code=69)["error"]
    assert "names no kernels" in npgxctl(node, "pin", "../etc", code=78)["error"]
    assert "no records below" in npgxctl(node, "import", str(node.runtime), code=78)["error"]


def tree(place: Path, node: Node) -> Path:
    """An output tree as a rank leaves it, with the packages that served it."""
    outputs = place / "static_kernel_compile_outputs" / "ts20260101_pid7_outputs"
    selected = outputs / "7_opcompile_selected"
    selected.mkdir(parents=True)
    for name, text in matmuls(16, 32):
        (selected / name).write_text(text)
    (outputs / "7_opcompile").mkdir()
    (outputs / "7_opcompile" / "again.json").write_text(matmuls(16)[0][1])
    (outputs / "7_opcompile" / "torn.json").write_text("{")
    for package in node.state.glob("packages/*.run"):
        (outputs / "static_kernel_20260101000000.run").write_bytes(package.read_bytes())
    return place


def test_import_queues_the_records_of_existing_trees(node: Node, tmp_path: Path) -> None:
    place = tree(tmp_path / "old", node)
    said = npgxctl(node, "import", str(place), code=1)
    assert (said["unique"], said["queued"], said["trusted"]) == (2, 2, 0)
    assert [item["name"] for item in said["skipped"]] == ["7_opcompile/torn.json"]
    eventually(lambda: (node.status() or {})["kernels"]["count"] == 2, "they are compiled in the background")
    outcome = node.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["reason"]) == ("INSTALLED", "hit")
    assert npgxctl(node, "import", str(place), code=1)["present"] == 2


def test_import_with_trust_takes_the_kernels_and_marks_them(make_node: Callable[..., Node], tmp_path: Path) -> None:
    first, second = make_node(), make_node()
    first.start()
    first.rank(matmuls(16, 32)).outcome()
    place = tree(tmp_path / "old", first)
    second.start()
    said = npgxctl(second, "import", "--trust-toolchain", str(place), code=1)
    assert (said["trusted"], said["queued"]) == (2, 0), said
    assert not second.cann.runs(), "nothing was compiled"
    made = [json.loads((kernel / "manifest.json").read_text())["making"] for kernel in kernels(second)]
    assert [making["trusted"] for making in made] == [True, True]
    outcome = second.rank(matmuls(16, 32)).outcome()
    assert (outcome["state"], outcome["reason"], outcome["torn"]) == ("INSTALLED", "hit", 0)
    assert npgxctl(second, "verify")["found"] == 0


@pytest.mark.parametrize("word", ["drain", "shutdown"])
def test_the_daemon_ends_when_it_is_told_to(node: Node, word: str) -> None:
    npgxctl(node, word)
    assert node.daemon is not None
    assert node.daemon.wait(PATIENCE_S) == 0


def test_a_drain_that_is_asked_for_again_lets_compiles_finish_all_the_same(make_node: Callable[..., Node]) -> None:
    """Who repeats it to see how far it is does not end what the answer says may finish."""
    node = make_node(per_op_s=1.5)
    node.start()
    rank = node.rank(matmuls(16))
    eventually(lambda: (node.status() or {})["workers"]["busy"], "it compiles")
    for _ in range(2):
        assert npgxctl(node, "drain")["state"] == "DRAINING"
    assert node.daemon is not None
    assert node.daemon.wait(PATIENCE_S) == 0
    assert "stopping now" not in node.log.read_text()
    assert "1 of 1 kernel in" in node.log.read_text()
    rank.process.kill()
