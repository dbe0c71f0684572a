"""``python -m tools.screens``: take every screen of docs/screens.md anew (needs tmux)."""

from __future__ import annotations

import shlex
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tools.demo.children import Children
from tools.screens.page import PAGE, SCREENS, replaced
from tools.screens.scene import PATIENCE_S, Scene

if TYPE_CHECKING:
    from collections.abc import Mapping

COLUMNS, LINES = 110, 60
_SHOWN: Final = "-- shown --"


def main() -> int:
    """Write the page."""
    with tempfile.TemporaryDirectory(prefix="npgxd-screens-") as directory, Children(uuid.uuid4().hex) as children:
        Path(directory).chmod(0o755)  # as a node's CANN and state are: open to every user
        scene = Scene(Path(directory), children)
        with scene.node:
            scene.play()
            text = PAGE.read_text(encoding="utf-8")
            for number, (name, words) in enumerate(SCREENS.items()):
                command = ["npgxctl", *(word.format(key=scene.key[:12]) for word in words)]
                text = replaced(text, name, command, taken(command, scene.environment(), Path(directory) / f"tmux{number}"))
            scene.end()
    PAGE.write_text(text, encoding="utf-8")
    print(PAGE)
    return 0


def taken(command: list[str], environment: Mapping[str, str], server: Path) -> str:
    """What a terminal shows when ``command`` has run in it, or its first page."""
    tmux = ["tmux", "-S", str(server), "-f", "/dev/null"]
    shown = f"{shlex.join(command)}; echo {shlex.quote(_SHOWN)}; sleep {PATIENCE_S:.0f}"
    start = [*tmux, "new-session", "-d", "-x", str(COLUMNS), "-y", str(LINES), shown]
    subprocess.run(start, env={**environment, "TERM": "xterm-256color"}, check=True)
    try:
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            screen = subprocess.run([*tmux, "capture-pane", "-p"], capture_output=True, text=True, check=True).stdout
            if _SHOWN in screen or "q ends" in screen:
                lines = [line.rstrip() for line in screen.partition(_SHOWN)[0].splitlines()]
                return "\n".join(lines).strip("\n")
            time.sleep(0.05)
        raise SystemExit(f"{shlex.join(command)} has shown nothing")
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)


if __name__ == "__main__":
    sys.exit(main())
