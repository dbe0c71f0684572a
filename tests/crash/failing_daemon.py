"""A daemon that ends, or whose disk fails, at one named act: ``failing_daemon.py FAILPOINT --config FILE``.

A failpoint is ``operation:pattern:number:how``: the ``number``-th act of that name (see ``Disk.step``) on a path that matches the
pattern, relative to the state directory.  ``how`` is ``kill`` (SIGKILL, before the act), ``note=FILE`` (go on, and write each
matching act to FILE), ``hold=FILE`` (wait until FILE is there), or the name of an errno (that act fails, and all later ones that match).
The daemon itself knows nothing of this.
"""

from __future__ import annotations

import errno
import fnmatch
import os
import signal
import sys
import tomllib
from pathlib import Path

from npgxd.daemon.main import main
from npgxd.store.disk import Disk, explained
from tests.system.conftest_node import eventually


class Failpoint:
    """Stands in for ``Disk.step``."""

    def __init__(self, text: str, state: Path) -> None:
        self.operation, self.pattern, number, self.how = text.split(":")
        self.left = int(number)
        self.state = state

    def step(self, operation: str, path: Path) -> None:
        try:
            place = str(path.relative_to(self.state)) if path != self.state else "."
        except ValueError:
            return
        if not fnmatch.fnmatch(operation, self.operation) or not fnmatch.fnmatch(place, self.pattern):
            return
        self.left -= 1
        if self.left > 0:
            return
        if self.how.startswith("note="):
            with Path(self.how.removeprefix("note=")).open("a") as file:
                file.write(f"{operation} {place}\n")
        elif self.how.startswith("hold="):
            eventually(Path(self.how.removeprefix("hold=")).exists, "the disk answers again")
        elif self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        else:
            number = getattr(errno, self.how)
            with explained(operation, path):  # as the disk module does it for the real one
                raise OSError(number, os.strerror(number), str(path))


def run(text: str, arguments: list[str]) -> int:
    settings = tomllib.loads(Path(arguments[arguments.index("--config") + 1]).read_text())
    failpoint = Failpoint(text, Path(settings["daemon"]["state_dir"]))
    Disk.step = lambda _disk, operation, path: failpoint.step(operation, path)  # type: ignore[method-assign]
    return main(arguments)


if __name__ == "__main__":
    sys.exit(run(sys.argv[1], sys.argv[2:]))
