"""One rank of the scene: it asks for the kernels of the records in its file, and lives on."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.client import current

if TYPE_CHECKING:
    from tools.cann_sim import records


def main(path: str) -> None:
    """``path``: a file of records, one JSON object a line, as a dump has one in each file."""
    items = [(f"{at}.json", line.encode()) for at, line in enumerate(Path(path).read_text(encoding="utf-8").splitlines())]
    client = current()
    client.recording("decode")
    client.static_kernels(items, graph="decode")
    signal.pause()


def write(path: Path, *items: records.Record) -> None:
    """Make such a file."""
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
