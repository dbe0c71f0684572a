"""What the tests of the compile cache need: no daemon unless a test starts one, and processes that start anew."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.client import client as client_module

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
HERE = Path(__file__).parent


@pytest.fixture(autouse=True)
def _no_daemon(tmp_path, monkeypatch):
    monkeypatch.setenv("NPGXD_SOCKET", str(tmp_path / "no.sock"))
    monkeypatch.setattr(client_module, "_clients", {})


@pytest.fixture
def start() -> Callable[..., dict[str, Any]]:
    """Run a script of this folder in a process of its own; what it prints last is JSON."""

    def run(script: str, *arguments: object, **environ: str) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, str(HERE / script), *map(str, arguments)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **environ},
            capture_output=True,
            text=True,
            timeout=170,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
        return told

    return run
