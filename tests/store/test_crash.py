from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FEWEST_STEPS = {
    "create": 15,
    "publish": 15,
    "publish-again": 20,
    "view": 15,
    "drop-view": 10,
    "accept": 4,
    "settle": 1,
    "set-aside": 9,
    "package": 3,
}


@pytest.mark.parametrize("scenario", sorted(FEWEST_STEPS))
def test_fc07_a_kill_before_any_act_on_the_disk_leaves_nothing_torn_and_nothing_acknowledged_lost(
    tmp_path: Path, scenario: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.store.crash", scenario, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=150,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step for step in steps if step["problems"]] == []
    assert steps[-1]["died_before"] == ""
    assert len(steps) - 1 >= FEWEST_STEPS[scenario], [step["died_before"] for step in steps]
