"""The README's main job, as a user runs it: the real backend on real ranks under torchrun, through a real daemon."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")

from tools.demo.chaos import survive
from tools.demo.children import Children
from tools.demo.serving import install_application

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_demo_is_true_from_the_first_start_to_the_last(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tools.demo", "--nproc", "2", "--batch-sizes", "1", "--extra-batch", "2"]
    done = subprocess.run([*command, "--out", str(tmp_path / "out")], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "UNTRUE" not in done.stdout
    assert "imulated CANN" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("victim", ["daemon", "rank"])
def test_a_kill_in_the_middle_of_the_demos_compile_hurts_no_other_rank(tmp_path: Path, victim: str) -> None:
    with Children(f"test-{victim}-{tmp_path.parent.name}") as children:
        script = install_application(tmp_path / "app")
        survival = survive(tmp_path / "run", children, script, victim=victim, batch_sizes=[1])
    assert survival.untrue() == []
