"""``python -m tools.demo``: what ``make demo`` runs."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console

from npgxd.errors import NpgxError
from tools.demo.chaos import survive_all
from tools.demo.children import Children
from tools.demo.steps import tell_the_story

if TYPE_CHECKING:
    from collections.abc import Sequence

_MAX_TOLD = 20
_PLAIN_WIDTH = 120
"""Columns where the output is not a terminal."""

TRUE, UNTRUE, FAILED, INTERRUPTED = 0, 1, 70, 130


def batch_sizes(value: str) -> list[int]:
    """``1,2`` as numbers."""
    return [int(part) for part in value.split(",")]


def parser() -> argparse.ArgumentParser:
    """The command line."""
    commands = argparse.ArgumentParser(
        prog="python -m tools.demo",
        description="Show npgxd on a simulated CANN: a decoder's kernels, compiled once for all ranks.",
    )
    commands.add_argument(
        "--out", type=Path, metavar="DIR", help="keep everything in this new directory (default: a temporary one)"
    )
    commands.add_argument("--nproc", type=int, default=4, help="ranks")
    commands.add_argument("--batch-sizes", type=batch_sizes, default=[1, 2], help="decode batch sizes of the first two starts")
    commands.add_argument("--extra-batch", type=int, default=4, help="the batch size that the third start adds")
    commands.add_argument("--keep", action="store_true", help="keep the temporary directory")
    commands.add_argument("--chaos", action="store_true", help="then kill -9 each kind of process in the middle of a compile")
    return commands


def main(arguments: Sequence[str] | None = None) -> int:
    """0 if everything that was shown is true, 1 if something is not, 70 if the demo could not be shown."""
    options = parser().parse_args(arguments)
    console = Console(soft_wrap=True, width=None if sys.stdout.isatty() else _PLAIN_WIDTH)
    signal.signal(signal.SIGTERM, _interrupt)
    directory, keep = _directory(options)
    code = FAILED
    try:
        code = _run(options, directory, console)
    except NpgxError as error:
        print(f"demo failed: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\ninterrupted: every process of the demo was ended", file=sys.stderr)
        code = INTERRUPTED
    finally:
        if keep or code not in {TRUE, INTERRUPTED}:
            print(f"logs, reports and the node's state are in {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)
    return code


def _run(options: argparse.Namespace, directory: Path, console: Console) -> int:
    with Children(uuid.uuid4().hex) as children:
        problems = tell_the_story(
            directory,
            children,
            console,
            nproc=options.nproc,
            batch_sizes=options.batch_sizes,
            extra=options.extra_batch,
        )
        if options.chaos:
            problems += survive_all(directory / "chaos", children, console, batch_sizes=options.batch_sizes[:1])
        problems += [f"left behind: process {left.pid}, {left.command}" for left in children.settle()]
    for problem in problems[:_MAX_TOLD]:
        print(f"UNTRUE: {problem}", file=sys.stderr)
    if len(problems) > _MAX_TOLD:
        print(f"... and {len(problems) - _MAX_TOLD} more", file=sys.stderr)
    if problems:
        return UNTRUE
    print("Everything shown was checked; no process was left behind.")
    return TRUE


def _directory(options: argparse.Namespace) -> tuple[Path, bool]:
    """The demo's directory, and whether it is kept."""
    if options.out is None:
        return Path(tempfile.mkdtemp(prefix="npgxd-demo-")), options.keep
    out: Path = options.out.absolute()
    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out} is not empty; name a new directory")
    out.mkdir(parents=True, exist_ok=True)
    return out, True


def _interrupt(_number: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
