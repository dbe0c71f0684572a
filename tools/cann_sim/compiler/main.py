"""The command line of the simulated op_compiler."""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from . import session
from .home import Home, NotSourced
from .record import BadRecord, Record
from .socs import find_soc

if TYPE_CHECKING:
    from .versions import Features

_LONGEST_LOADING_S = 60.0
_LEVELS = ("debug", "info", "warning", "error", "null")


def main() -> int:
    """Run as ``op_compiler``; the home is the one this file lies in."""
    home = Home(Path(__file__).resolve().parents[3])
    options = _parser(home.features).parse_args()
    environ = dict(os.environ)
    try:
        home.require_environment(environ)
        soc = find_soc(options.soc_version)
    except (NotSourced, LookupError) as error:
        _refuse(str(error))
    params = Path(options.op_params_dir)
    if not params.is_dir():
        _refuse(f"op_params_dir {params} is not a directory")
    if params.samefile(Path.cwd()):
        _refuse(f"op_params_dir {params} must not be the working directory")
    if options.count:
        print(sum(1 for _ in params.glob("*.json")))
        return 0
    if options.job < 1:
        _refuse(f"job must be at least 1, not {options.job}")
    if options.super_kernel_options and not options.enable_super_kernel:
        _refuse("super_kernel_options needs enable_super_kernel")
    if options.enable_super_kernel and soc.family != "ascend910b":
        _refuse(f"super kernels are not supported on {soc.name}")
    if options.compile_mode and home.features.tune_mode_deprecated:
        print("[WARNING] -m is deprecated and will be removed", file=sys.stderr)
    records, bad = _read(params)
    request = session.Request(
        home=home,
        soc=soc,
        environ=environ,
        records=records,
        unreadable=bad,
        jobs=options.job,
        output=Path(options.output) if options.output else Path.cwd(),
        follow=options.follow_op_params_jit,
        flags=_flags(options),
        verbose=options.log not in (None, "null"),
    )
    return session.run(request, started=_started())


def _parser(features: Features) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="op_compiler",
        description=f"Compile static kernels from operator shape records. SIMULATED CANN {features.version}.",
        formatter_class=lambda prog: argparse.HelpFormatter(prog, max_help_position=36, width=110),
    )
    add = parser.add_argument
    add("-p", "--op_params_dir", required=True, metavar="DIR", help="directory of records; not the working directory")
    add("-v", "--soc_version", required=True, metavar="SOC", help="full SoC name, such as Ascend910B3")
    add("-j", "--job", type=int, default=16, metavar="N", help="worker processes, at least 1 (default 16)")
    add("-o", "--output", metavar="OUT", help="directory, or dir/name.run (default: the working directory)")
    add("-l", "--log", choices=_LEVELS, default="null", help="log level on the terminal (default null)")
    if features.follow_takes_value:
        add(
            "-f",
            "--follow_op_params_jit",
            nargs="?",
            const=True,
            default=False,
            type=_boolean,
            metavar="true",
            help="follow each record's deterministic flag instead of compiling both",
        )
    else:
        add("-f", "--follow_op_params_jit", action="store_true", help="follow each record's deterministic flag (takes no value)")
    add("--count", action="store_true", help="print the number of records in DIR and exit")
    add("--enable_super_kernel", action="store_true", help="compile for super kernels (A2 only)")
    add("--super_kernel_options", metavar="k=v:k=v", default="", help="options of super kernels")
    tune = "tune the kernels" + (" (deprecated)" if features.tune_mode_deprecated else "")
    add("-m", "--compile_mode", choices=("tune",), help=tune)
    return parser


def _boolean(text: str) -> bool:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    raise argparse.ArgumentTypeError(f"expected true or false, not {text!r}")


def _flags(options: argparse.Namespace) -> str:
    """What of the command line decides a kernel's bytes."""
    parts = sorted(options.super_kernel_options.split(":")) if options.super_kernel_options else []
    if options.enable_super_kernel:
        parts.insert(0, "super_kernel")
    if options.compile_mode:
        parts.insert(0, options.compile_mode)
    return " ".join(parts)


def _read(params: Path) -> tuple[dict[str, Record], list[str]]:
    """Records by file name, and a complaint for each file that is none."""
    records: dict[str, Record] = {}
    bad: list[str] = []
    for path in sorted(params.glob("*.json")):
        try:
            records[path.name] = Record.parse(path.read_bytes())
        except (OSError, BadRecord) as error:
            bad.append(f"{path.name}: {error}")
    return records, bad


def _started() -> float:
    """When this process was made (wall clock): loading the interpreter and reading records belong to the start-up."""
    ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    return time.time() - (age if 0.0 <= age < _LONGEST_LOADING_S else 0.0)


def _refuse(message: str) -> NoReturn:
    print(f"[ERROR] op_compiler: {message}", file=sys.stderr)
    raise SystemExit(1)
