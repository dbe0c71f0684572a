"""``python -m tools.cann_sim``: make a simulated CANN, order failures, see its runs, read an op-library root."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from tools.cann_sim.compiler.costs import Costs
from tools.cann_sim.compiler.orders import KINDS
from tools.cann_sim.compiler.versions import FEATURES
from tools.cann_sim.home import create, opened
from tools.cann_sim.reader import Reader, Torn


def main(arguments: list[str] | None = None) -> int:
    """Run one command; the exit status."""
    options = _parser().parse_args(arguments)
    try:
        return int(options.run(options))
    except (LookupError, ValueError, OSError) as error:
        print(f"cann_sim: {error}", file=sys.stderr)
        return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.cann_sim", description="A SIMULATED CANN, for development and tests.")
    commands = parser.add_subparsers(required=True, metavar="command")

    command = commands.add_parser("create", help="make a simulated CANN home")
    command.add_argument("home", type=Path)
    command.add_argument("--version", default="9.1.0", choices=tuple(FEATURES))
    command.add_argument("--soc", default="Ascend910B3")
    _add_costs(command, Costs(startup_s=1.0, per_op_s=0.5))
    command.set_defaults(run=_create)

    command = commands.add_parser("native", help="build libraries under which the installed torch_npu runs on a CPU (needs g++)")
    command.add_argument("home", type=Path, nargs="?", help="into this home; without one, compile only, which is what takes time")
    command.set_defaults(run=_native)

    command = commands.add_parser("set-costs", help="change what later compiles take")
    command.add_argument("home", type=Path)
    _add_costs(command, None)
    command.set_defaults(run=_set_costs)

    command = commands.add_parser(
        "order",
        help="order a failure, list what is ordered, or cancel all",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="kinds:\n" + "\n".join(f"  {kind:<26} {meaning}" for kind, meaning in KINDS.items()),
    )
    command.add_argument("home", type=Path)
    command.add_argument("op_type", nargs="?", help="op type, or a pattern such as 'MatMul*' or '*'")
    command.add_argument("kind", nargs="?", choices=tuple(KINDS), metavar="kind")
    command.add_argument("--times", type=int, help="how often (default: always)")
    command.add_argument("--contains", default="", help="only for records whose compact JSON has this text")
    command.add_argument("--cancel", action="store_true", help="cancel every order")
    command.set_defaults(run=_order)

    command = commands.add_parser("runs", help="list the compiles that happened")
    command.add_argument("home", type=Path)
    command.set_defaults(run=_runs)

    command = commands.add_parser("read", help="load an op-library root as the runtime does")
    command.add_argument("root", type=Path, nargs="+", help="roots, in the order of loading")
    command.add_argument("--soc", required=True)
    command.add_argument("--records", type=Path, help="directory of records that the roots should serve exactly")
    command.set_defaults(run=_read)
    return parser


def _add_costs(command: argparse.ArgumentParser, default: Costs | None) -> None:
    for option, meaning, kind in (
        ("startup_s", "seconds from op_compiler's start to its first op", float),
        ("per_op_s", "seconds for a small vector op", float),
        ("scale", "multiplies every cost; 0 makes compiles free", float),
        ("object_bytes", "size of a kernel's .o", int),
    ):
        command.add_argument(f"--{option.replace('_', '-')}", type=kind, default=getattr(default, option, None), help=meaning)


def _create(options: argparse.Namespace) -> int:
    costs = Costs(options.startup_s, options.per_op_s, options.scale, options.object_bytes)
    cann = create(options.home, version=options.version, soc=options.soc, costs=costs)
    print(f"SIMULATED CANN {options.version} for {options.soc} in {cann.home}: not a real toolkit, its kernels run nowhere")
    print(f"  source {cann.home.parent / 'set_env.sh'}")
    return 0


def _native(options: argparse.Namespace) -> int:
    from tools.cann_sim.native import BuildFailed, build, find_wheel, objects  # noqa: PLC0415 -- only this command needs it

    try:
        if options.home is None:
            print(f"objects of the SIMULATED libascendcl are in {objects(find_wheel())}")
            return 0
        cann = opened(options.home)
        print(f"SIMULATED libascendcl of CANN {cann.version} in {build(cann)}: it computes on the CPU")
    except BuildFailed as error:
        print(f"cann_sim: {error}", file=sys.stderr)
        return 1
    return 0


def _set_costs(options: argparse.Namespace) -> int:
    cann = opened(options.home)
    names = ("startup_s", "per_op_s", "scale", "object_bytes")
    cann.set_costs(replace(cann.costs, **{name: getattr(options, name) for name in names if getattr(options, name) is not None}))
    print(f"simulated costs: {cann.costs}")
    return 0


def _order(options: argparse.Namespace) -> int:
    cann = opened(options.home)
    if options.cancel:
        cann.cancel_orders()
    elif options.op_type and options.kind:
        cann.order(options.op_type, options.kind, times=options.times, contains=options.contains)
    elif options.op_type:
        raise ValueError("order needs an op type and a kind; see --help for the kinds")
    for order in cann.orders():
        print(f"{order.id}: {order.kind} for {order.op_type}" + (f", {order.times} times" if order.times is not None else ""))
    return 0


def _runs(options: argparse.Namespace) -> int:
    for run in opened(options.home).runs():
        status = "not ended" if run.status is None else f"exit {run.status}"
        print(
            f"pid {run.pid}: {len(run.ops)} records, {len(run.compiled)} kernels, {status}, {run.seconds or 0:.2f} s (simulated)"
        )
    return 0


def _read(options: argparse.Namespace) -> int:
    reader = Reader(options.soc)
    torn: list[Torn] = []
    for root in options.root:
        report = reader.load(root)
        torn.extend(report.torn)
        print(f"{root}: {report.loaded} kernels loaded, {len(report.shadowed)} shadowed")
    torn.extend(reader.verify())
    for tear in torn:
        print(f"TORN {tear.path}: {tear.reason}")
    if options.records is None:
        return 1 if torn else 0
    check = reader.check(path.read_bytes() for path in sorted(options.records.glob("*.json")))
    for what, items in (
        ("missing", check.missing),
        ("mismatched", check.mismatched),
        ("extra", [kernel.name for kernel in check.extra]),
    ):
        for item in items:
            print(f"{what} {item}")
    print("exact" if check.exact and not torn else "not exact")
    return 0 if check.exact and not torn else 1
