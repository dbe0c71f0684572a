"""The screens in docs/screens.md: what the commands say today of the same node, word for word but for what is of one day."""

from __future__ import annotations

import subprocess
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tools.demo.children import Children
from tools.screens.page import PAGE, SCREENS, lines, shown, words
from tools.screens.scene import Scene

if TYPE_CHECKING:
    from collections.abc import Iterator

NPGXCTL = Path(sys.executable).with_name("npgxctl")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with Children(uuid.uuid4().hex) as children:
        made = Scene(tmp_path, children)
        with made.node:
            made.play()
            yield made
            made.end()


def test_the_screens_in_the_documents_are_those_of_the_commands(scene: Scene) -> None:
    def says(*command: str) -> str:
        environment = scene.environment()
        return subprocess.run(
            [NPGXCTL, *command], capture_output=True, text=True, timeout=60, check=False, env=environment
        ).stdout

    documented = {name: shown(PAGE.read_text(), name) for name in SCREENS}
    anew = "take them anew: python -m tools.screens"
    status = words(says("status"))
    assert words(documented["status"]) == status, anew
    assert words(documented["top"]) == status + words("q ends"), anew
    assert words(documented["explain"]) == words(says("explain", scene.key)), anew
    findings = [line for line in lines(documented["doctor"]) if line.startswith(("daemon", "CANN"))]
    assert len(findings) >= 3
    assert set(findings) <= set(lines(says("doctor"))), anew
