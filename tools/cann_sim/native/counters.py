"""What the simulated libascendcl counted: every launch, by op type, and the static kernels that ran."""

from __future__ import annotations

import ctypes
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Counters:
    """One process's counts. ``static`` and ``dynamic`` are launches by op type, replays of captured graphs included."""

    cann_version: str
    pid: int
    launches: int
    static_launches: int
    host_launches: int = 0
    """Launches that the host made, one by one; those of a replay are not among them."""
    replays: int = 0
    """Replays of captured graphs."""
    static: dict[str, int] = field(default_factory=dict)
    dynamic: dict[str, int] = field(default_factory=dict)
    kernels: dict[str, int] = field(default_factory=dict)
    """Launches by the path of the static kernel's object."""
    gone: dict[str, int] = field(default_factory=dict)
    """How often a selected kernel's object was missing at its use."""
    loads: list[dict[str, Any]] = field(default_factory=list)
    """Roots that were loaded: ``root``, and how many kernels were ``loaded``, ``shadowed``, ``torn``."""
    dumps: list[dict[str, Any]] = field(default_factory=list)
    """Operator dumps: ``path`` and number of ``records``."""


def counters() -> Counters:
    """This process's counts so far; OSError where no simulated libascendcl is to be found."""
    library = ctypes.CDLL("libascendcl.so")
    library.cann_sim_counters.restype = ctypes.c_char_p
    return Counters(**json.loads(library.cann_sim_counters()))


def reset_counters() -> None:
    """Count from nothing again; what is loaded stays loaded."""
    ctypes.CDLL("libascendcl.so").cann_sim_reset_counters()


def left_counters(directory: Path) -> list[Counters]:
    """The counts of processes that ran with ``CANN_SIM_COUNTERS=<directory>`` and exited by themselves."""
    return [Counters(**json.loads(path.read_bytes())) for path in sorted(directory.glob("*.json"))]
