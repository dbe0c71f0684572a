"""``static_kernel_wait``: whether a graph's first call waits for its kernels, for how long, or not at all."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from npgxd.client.notice import warn_once
from npgxd.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

VARIABLE: Final = "NPGXD_WAIT"
ALLOWED: Final = "'block', 'background' or a number of seconds"


class WaitMode(StrEnum):
    """The three ways."""

    BLOCK = "block"  # until the kernels are there, while progress arrives: the documented behaviour
    DEADLINE = "deadline"  # so long at most; then the graph has dynamic kernels for the process's life
    BACKGROUND = "background"  # not at all: the graph changes to its kernels when they are ready


class Wait(NamedTuple):
    """One of the three ways, and the deadline in seconds of the second."""

    mode: WaitMode = WaitMode.BLOCK
    deadline_s: float | None = None

    @classmethod
    def parse(cls, value: object) -> Wait:
        """From an option's value, or a variable's text; ConfigError says what is allowed."""
        if isinstance(value, str) and value.strip() in (WaitMode.BLOCK, WaitMode.BACKGROUND):
            return cls(WaitMode(value.strip()))
        try:
            seconds = float(value) if isinstance(value, (str, int, float)) and not isinstance(value, bool) else math.nan
        except (ValueError, OverflowError):
            seconds = math.nan
        if not 0 <= seconds < math.inf:
            raise ConfigError(f"{value!r} is not valid: it must be {ALLOWED}", hint="Seconds are 0 or more")
        return cls(WaitMode.DEADLINE, seconds)


def wait_of(option: Wait, environ: Mapping[str, str]) -> Wait:
    """``option``, unless NPGXD_WAIT says otherwise; a variable that says nothing valid is warned of once and does not count."""
    given = environ.get(VARIABLE, "")
    if not given:
        return option
    try:
        return Wait.parse(given)
    except ConfigError as error:
        warn_once(VARIABLE, f"{VARIABLE}={error}; it does not count")
        return option
