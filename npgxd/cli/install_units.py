"""``npgxctl install-units``: put npgxd under systemd on this node, with the paths and groups that its CANN needs, or take it away again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npgxd.cli import units
from npgxd.cli.commands import Command
from npgxd.cli.exits import UNITS_TABLE, Exit
from npgxd.cli.page import Line, Tone, show
from npgxd.errors import ConfigError, ToolchainError

if TYPE_CHECKING:
    import argparse

    from npgxd.toolchain.discovery import Toolchain

SCHEMA = 1
ALL = ("npgxd.service", "npgxd.socket", "npgxd-admin.socket")


_TO_DO = {"written": "to write", "replaced": "to replace", "removed": "to remove"}
"""What a dry run says of what it does not do."""


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="say what would be done, and change nothing")
    parser.add_argument(
        "--remove", action="store_true", help="stop and disable npgxd, and take away what this command wrote; kernels stay"
    )
    parser.add_argument("--force", action="store_true", help="also replace or remove files that were changed by somebody")
    parser.add_argument("--program", type=Path, metavar="FILE", help="the npgxd to start (default: the one beside this npgxctl)")
    parser.add_argument(
        "--root", type=Path, default=Path("/"), metavar="DIR", help="write below this directory, and tell systemd nothing"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def _run(options: argparse.Namespace) -> int:
    if options.root == Path("/") and os.geteuid() != 0 and not options.dry_run:
        raise ConfigError("only root can install units", hint="run it with sudo, or see what it would do with --dry-run")
    toolchain, trouble = _toolchain()
    made = units.planned(_node(options, toolchain), _described(toolchain))
    told = _remove(options, made) if options.remove else _write(options, made)
    if not options.dry_run and options.root == Path("/"):
        _apply()
    if options.json:
        print(
            json.dumps({"schema": SCHEMA, "dry_run": options.dry_run, "files": told, "toolchain": trouble or "found"}, indent=2)
        )
    else:
        show([*(_line(entry, dry_run=options.dry_run) for entry in told), *_advice(options, trouble)])
    return Exit.PROBLEMS if any(entry["done"] == "kept" for entry in told) else Exit.OK


def _toolchain() -> tuple[Toolchain | None, str]:
    """The CANN that this shell has, which npgxd is to use; why there is none, in words."""
    from npgxd.config import load  # noqa: PLC0415 -- npgxctl status need not read it
    from npgxd.toolchain.discovery import discover  # noqa: PLC0415 -- as above

    try:
        return discover(load(None, user=False, environ=os.environ).toolchain.settings(), os.environ), ""
    except ToolchainError as error:
        return None, str(error)


def _node(options: argparse.Namespace, toolchain: Toolchain | None) -> units.Node:
    program = options.program.absolute() if options.program else units.program_beside(sys.executable)
    units.check_open(program)
    from npgxd.config import MetricsSection, load  # noqa: PLC0415 -- npgxctl status need not read it

    config = options.root / units.CONFIG
    read = config.exists() and not options.remove  # what cannot be read shall not keep npgxd on the node
    metrics = load(config, user=False, environ={}).metrics if read else MetricsSection()
    node = units.Node(program, textfile=metrics.textfile, listens=bool(metrics.listen))
    if toolchain is None:
        return node
    from npgxd.oplib.shared_root_place import default_root  # noqa: PLC0415 -- only here

    writes = () if toolchain.supports_install_path else (default_root(toolchain.environment).resolve(),)
    return replace(node, writes=writes, group=units.group_of(toolchain.op_compiler.resolve()))


def _described(toolchain: Toolchain | None) -> dict[str, object]:
    """``[toolchain]`` for a service, which has no set_env.sh."""
    if toolchain is None:
        return {}
    custom = toolchain.environment.get("ASCEND_CUSTOM_OPP_PATH", "")
    told: dict[str, object] = {"home": str(toolchain.home), "opp": str(toolchain.opp), "soc": toolchain.soc}
    return told | ({"custom_opp": [path for path in custom.split(":") if path]} if custom else {})


def _write(options: argparse.Namespace, made: dict[str, str]) -> list[dict[str, Any]]:
    told = []
    for place, text in made.items():
        path = options.root / place
        before = _read(path)
        changed = before is not None and not units.is_ours(before)
        if before == text or (place == units.CONFIG and before is not None):
            done = "unchanged"  # the configuration is the administrator's once it is there
        elif changed and not options.force:
            done = "kept"
        else:
            done = "written" if before is None else "replaced"
            if not options.dry_run:
                path.parent.mkdir(parents=True, exist_ok=True)
                _replace(path, text)
        told.append({"path": str(path), "done": done})
    stale = options.root / units.NODE_DROP_IN
    if units.NODE_DROP_IN not in made and units.is_ours(_read(stale) or ""):
        told.append({"path": str(stale), "done": "removed"})
        if not options.dry_run:
            stale.unlink()
    return told


def _remove(options: argparse.Namespace, made: dict[str, str]) -> list[dict[str, Any]]:
    installed = [unit for unit in ALL if (options.root / "etc/systemd/system" / unit).exists()]
    if installed and not options.dry_run and options.root == Path("/"):
        _systemctl("disable", "--now", *installed)
    told: list[dict[str, Any]] = []
    for place in dict.fromkeys((*made, units.NODE_DROP_IN, units.CONFIG)):
        path = options.root / place
        before = _read(path)
        if before is None:
            continue
        done = "removed" if options.force or units.is_ours(before) else "kept"
        if done == "removed" and not options.dry_run:
            path.unlink()
        told.append({"path": str(path), "done": done})
    return told


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return None


def _replace(path: Path, text: str) -> None:
    """Whole or not at all: systemd may read it at any moment."""
    beside = path.with_name(f".{path.name}.npgxctl")
    beside.write_text(text, encoding="utf-8")
    beside.chmod(0o644)
    beside.replace(path)


def _apply() -> None:
    for command in (
        ("systemd-sysusers", "npgxd.conf"),
        ("systemd-tmpfiles", "--create", "npgxd.conf"),
    ):
        if Path(f"/etc/{'sysusers.d' if command[0].endswith('users') else 'tmpfiles.d'}/npgxd.conf").exists():
            _command(*command)
    _systemctl("daemon-reload")


def _systemctl(*arguments: str) -> None:
    _command("systemctl", *arguments)


def _command(*argv: str) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise ConfigError(
            f"there is no {argv[0]} on this machine", hint="this command needs systemd; --root writes the files alone"
        ) from None
    if done.returncode:
        raise ConfigError(
            f"{' '.join(argv)}: {done.stderr.strip() or done.returncode}", hint="mend that, and run this command again"
        )


def _line(entry: dict[str, Any], *, dry_run: bool) -> Line:
    tones = {"kept": Tone.NOTE, "unchanged": Tone.PLAIN}
    done = _TO_DO.get(entry["done"], entry["done"]) if dry_run else entry["done"]
    why = "; somebody has changed it: --force replaces it" if entry["done"] == "kept" else ""
    return Line("", f"{entry['path']}{why}", tones.get(entry["done"], Tone.GOOD), mark=f"{done:<9}")


def _advice(options: argparse.Namespace, trouble: str) -> list[Line]:
    if options.remove:
        return [
            Line(
                "",
                "kernels stay in /var/lib/npgxd: npgxd, installed again, serves them; remove that directory if nobody is to",
            )
        ]
    lines = []
    if trouble:
        lines.append(Line("", f"no [toolchain] {'would be' if options.dry_run else 'was'} written: {trouble}", Tone.NOTE))
    lines.append(Line("", "next: usermod -aG npgxd USER for whoever starts ranks, then systemctl enable --now npgxd"))
    return lines


COMMAND = Command("install-units", "put npgxd under systemd on this node, or take it away again", UNITS_TABLE, _configure, _run)
