"""``npgxctl explain`` and ``retry`` on a real daemon: by its administrator, and by a user who sees their own alone."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from conftest_node import AS_ROOT, PATIENCE_S, Node, eventually, matmuls, named

from tools.cann_sim import records

if TYPE_CHECKING:
    from subprocess import CompletedProcess

STRANGER = 54321
AS_STRANGER = f"""
import os, sys
from npgxd.cli.main import build_parser, main
import npgxd.cli.explain, json.encoder, encodings.ascii, encodings.unicode_escape
build_parser()
os.setgroups([]); os.setgid({STRANGER}); os.setuid({STRANGER})
sys.exit(main(sys.argv[1:]))
"""


def npgxctl(node: Node, *words: str, program: tuple[str, ...] = ("-m", "npgxd.cli.main")) -> CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program, *words],
        env=node.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE_S,
    )


def test_fc12_a_failure_is_explained_from_its_round_to_its_log_and_retried(node: Node) -> None:
    add = named(records.elementwise("Add", [16, 8], "float16"))
    node.cann.order("Add", "fail")
    rank = node.rank([*matmuls(16), *add])
    hint = rank.outcome()["hint"]
    assert "npgxctl explain" in hint
    assert "npgxctl retry" in hint
    process = npgxctl(node, "explain", str(rank.process.pid), "--json")
    assert process.returncode == 3
    (told,) = json.loads(process.stdout)["rounds"]
    (failure,) = told["failures"]
    assert npgxctl(node, "explain", told["round"][:8]).returncode == 3
    kernel = npgxctl(node, "explain", failure["key"][:12])
    assert kernel.returncode == 3
    for said in ("FAILED", "tiling failed", "op_compiler -p", "exit status 1", "compile_error.log", "npgxctl retry"):
        assert said in kernel.stdout, said
    nothing = npgxctl(node, "explain", "feedfeed")
    assert (nothing.returncode, nothing.stdout) == (1, "")
    assert "nothing is known under feedfeed" in nothing.stderr
    node.cann.cancel_orders()
    assert npgxctl(node, "retry", failure["key"][:12], "feed").returncode == 1, "one of them was not remembered"
    assert npgxctl(node, "retry", "--all").returncode == 1, "nothing is left"
    assert node.rank(add).outcome()["state"] == "INSTALLED"
    present = json.loads(npgxctl(node, "explain", failure["key"], "--json").stdout)
    assert (present["schema"], present["state"], present["jobs"][0]["outcome"]) == (1, "present", "compiled")


def test_a_kernel_that_compiles_is_explained_with_who_waits_and_after_a_restart_what_failed_still_is(node: Node) -> None:
    node.cann.order("Add", "fail")
    outcome = node.rank(named(records.elementwise("Add", [16, 8], "float16"))).outcome()
    assert outcome["state"] == "DEGRADED"
    failed = (node.status() or {})["failures"][0]["key"]
    node.cann.order("MatMulV2", "hang")
    rank = node.rank(matmuls(16))
    compiling = eventually(
        lambda: [r for r in (node.status() or {})["queue"]["rounds"] if r["state"] == "COMPILING"], "it compiles"
    )
    told = npgxctl(node, "explain", compiling[0]["round"], "--json")
    assert told.returncode == 5
    (needed,) = json.loads(told.stdout)["waits_for"]
    kernel = json.loads(npgxctl(node, "explain", needed["key"], "--json").stdout)
    assert [each["pid"] for each in kernel["waiting"]] == [rank.process.pid]
    assert kernel["jobs"][0]["running"]
    node.kill()
    node.cann.cancel_orders()
    node.start()
    again = npgxctl(node, "explain", failed)
    assert again.returncode == 3
    assert "op_compiler -p" in again.stdout


@AS_ROOT
def test_another_user_is_told_why_a_kernel_failed_and_not_whose_it_was(node: Node) -> None:
    node.cann.order("Add", "fail")
    rank = node.rank(named(records.elementwise("Add", [16, 8], "float16")))
    rank.outcome()
    key = (node.status() or {})["failures"][0]["key"]
    node.runtime.chmod(0o755)
    node.socket.chmod(0o666)
    stranger = ("-c", AS_STRANGER)
    kernel = npgxctl(node, "explain", key, "--json", program=stranger)
    assert kernel.returncode == 3, kernel.stderr
    told = json.loads(kernel.stdout)
    assert "tiling failed" in told["why"]
    assert all("command" not in job and "logs" not in job for job in told["jobs"])
    assert npgxctl(node, "explain", str(rank.process.pid), program=stranger).returncode == 1
    refused = npgxctl(node, "retry", "--all", program=stranger)
    assert refused.returncode == 69
    assert "root and the daemon's own user" in refused.stderr
