"""The total uninstall of a shared root, started in the ways that are known, in an interpreter of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
WAYS = {
    "as vLLM-Ascend does": "Popen(['bash', script], stdin=DEVNULL, stdout=DEVNULL, stderr=DEVNULL, start_new_session=True).wait()",
    "run": "run([script], check=True, capture_output=True, text=True)",
    "a path": "run(pathlib.Path(script), check=True)",
    "a shell": "run(f'bash {script}', shell=True, check=True)",
    "from where it is": "run(['bash', './ai_core/uninstall.sh'], cwd=os.path.dirname(os.path.dirname(script)), check=True)",
    "bytes": "check_call([b'bash', os.fsencode(script)])",
}


@pytest.fixture
def root(tmp_path):
    ai_core = tmp_path / "opp" / "static_kernel" / "ai_core"
    ai_core.mkdir(parents=True)
    (ai_core / "uninstall.sh").write_text('#!/bin/bash\nrm -rf "$(dirname "$0")"\n')
    (ai_core / "uninstall.sh").chmod(0o755)
    return ai_core


def start(way, script):
    code = (
        "import os, pathlib; from subprocess import *; from npgxd.bridge.uninstalling import spare_neighbours;"
        f"spare_neighbours(); spare_neighbours(); script = {str(script)!r}; {way}"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=REPOSITORY, timeout=60)


@pytest.mark.parametrize("way", WAYS.values(), ids=list(WAYS))
def test_fc42_a_total_uninstall_is_not_started_where_npgxd_works(root, way):
    (root / ".npgxd.root").write_text("0" * 32)
    start(way, root / "uninstall.sh")
    assert root.exists()


def test_elsewhere_it_runs_as_it_is(root):
    start(WAYS["as vLLM-Ascend does"], root / "uninstall.sh")
    assert not root.exists()


def test_other_programs_run_as_they_are(root, tmp_path):
    (root / ".npgxd.root").write_text("0" * 32)
    package = root / "static_kernel_1"
    package.mkdir()
    (package / "uninstall.sh").write_text('rm -rf "$(dirname "$0")"\n')
    start("run(['bash', script], check=True)", package / "uninstall.sh")
    start("run('echo made > ' + script, shell=True, check=True)", tmp_path / "made")
    assert not package.exists()
    assert (tmp_path / "made").read_text() == "made\n"
