"""Where this process stands among those of its job on this node: labels from the environment, no identity."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


def local_rank(environ: Mapping[str, str] = os.environ) -> int:
    """LOCAL_RANK; a process without one, or with a damaged one, speaks for itself: 0."""
    return _number(environ, "LOCAL_RANK") or 0


def local_world_size(environ: Mapping[str, str] = os.environ) -> int | None:
    """LOCAL_WORLD_SIZE, or None where it is not known."""
    return _number(environ, "LOCAL_WORLD_SIZE") or None


def global_rank(environ: Mapping[str, str] = os.environ) -> tuple[int, int]:
    """RANK and WORLD_SIZE; (0, 1) for a process of its own."""
    return _number(environ, "RANK") or 0, _number(environ, "WORLD_SIZE") or 1


def _number(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name, "").strip()
    return int(value) if value.isascii() and value.isdigit() else None
