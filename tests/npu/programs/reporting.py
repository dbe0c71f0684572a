"""What the programs share: the report's path is their first argument."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tools.cann_sim.native import counters


def report(**facts: Any) -> None:
    """Write the report, with this process's launch counters."""
    Path(sys.argv[1]).write_text(json.dumps({**facts, "counters": asdict(counters())}))


def arguments() -> list[str]:
    return sys.argv[2:]
