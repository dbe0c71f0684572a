"""The commands of npgxctl: one module each, listed here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable


@dataclass(frozen=True, slots=True)
class Command:
    """One command: how it is called, what its options are, and what it does. ``run`` returns the exit code, or raises NpgxError."""

    name: str
    summary: str
    epilog: str
    configure: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], int]


def all_commands() -> tuple[Command, ...]:
    """Every command, in the order in which the help shows them."""
    from npgxd.cli import (  # noqa: PLC0415 -- these modules need Command from here
        cache,
        completion,
        config,
        doctor,
        ending,
        explain,
        gc,
        import_,
        install_units,
        jobs,
        logs,
        metrics,
        pin,
        retry,
        status,
        top,
        trace,
        verify,
    )

    return (
        status.COMMAND,
        top.COMMAND,
        jobs.COMMAND,
        explain.COMMAND,
        logs.COMMAND,
        retry.COMMAND,
        doctor.COMMAND,
        cache.COMMAND,
        verify.COMMAND,
        gc.COMMAND,
        pin.PIN,
        pin.UNPIN,
        pin.PINS,
        import_.COMMAND,
        metrics.COMMAND,
        trace.COMMAND,
        config.COMMAND,
        install_units.COMMAND,
        completion.COMMAND,
        ending.DRAIN,
        ending.SHUTDOWN,
    )
