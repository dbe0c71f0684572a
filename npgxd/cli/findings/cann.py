"""CANN as this shell has it: its compiler, its op roots, what others have installed there, and whether the daemon uses the same."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.cli.findings._finding import Finding, Grade
from npgxd.errors import ToolchainError
from npgxd.oplib.shared_root_place import AI_CORE, NotWritable, check_root, default_root
from npgxd.store.mounts import mount_of
from npgxd.toolchain.discovery import ToolchainSettings, discover
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npgxd.cli.document import Node
    from npgxd.toolchain.discovery import Toolchain

TOPIC = "CANN"
ROOT_TOPIC = "op root"
FEW = 3
"""Packages that one line names."""


def find(environ: Mapping[str, str]) -> tuple[Toolchain | None, list[Finding]]:
    """The CANN of this shell, and what was found."""
    try:
        found = discover(ToolchainSettings(), environ)
    except ToolchainError as error:
        return None, [Finding(Grade.NOTE, TOPIC, f"this shell has none: {error.message}", error.hint)]
    simulated = "simulated " if found.simulated else ""
    text = f"{simulated}{found.cann_version} in {found.home} for {found.soc}, compiler {found.op_compiler}"
    return found, [Finding(Grade.GOOD, TOPIC, text)]


def check_daemons(status: Node) -> Iterator[Finding]:
    """Whether the daemon has one, whatever this shell has."""
    if problem := status.node("toolchain").text("problem", ""):
        yield Finding(
            Grade.BAD,
            TOPIC,
            f"the daemon has none: {problem}",
            "what is put back is found by itself; for another one set [toolchain] in npgxd.toml, then systemctl restart npgxd",
        )


def check(found: Toolchain, status: Node) -> Iterator[Finding]:
    """Whether the compiler can run, and whether it is the daemon's."""
    mount = mount_of(found.op_compiler)
    if mount is not None and mount.noexec:
        yield Finding(
            Grade.BAD,
            TOPIC,
            f"{found.op_compiler} lies on {mount.point}, which is mounted noexec",
            f"mount -o remount,exec {mount.point}",
        )
    yield from _closed(found.op_compiler)
    theirs = status.node("toolchain")
    if not theirs:
        return
    if theirs.text("problem", ""):
        return  # check_daemons tells it
    if Path(os.path.realpath(theirs.text("home"))) != Path(os.path.realpath(found.home)):
        yield Finding(
            Grade.NOTE,
            TOPIC,
            f"the daemon compiles with {theirs.text('cann_version')} in {theirs.text('home')}, and this shell has {found.home}",
            "ranks get kernels only where both are equal in content; npgxctl status shows toolchain_mismatch where they are not",
        )
    elif theirs.text("soc") != found.soc:
        yield Finding(
            Grade.BAD,
            TOPIC,
            f"the daemon compiles for {theirs.text('soc')}, and this shell says {found.soc}",
            "correct [toolchain] soc, or NPGXD_SOC",
        )


def check_roots(found: Toolchain) -> Iterator[Finding]:
    """The op roots: what is there for every process, and whether kernels can be put there where that is needed."""
    for searched in found.roots:
        if not os.access(searched.path, os.R_OK | os.X_OK):
            yield Finding(Grade.BAD, ROOT_TOPIC, f"{searched.path} cannot be read", "its owner must let ranks and npgxd read it")
    root = default_root(found.environment)
    if not found.supports_install_path:
        try:
            check_root(root, found.family)
        except NotWritable as error:
            yield Finding(
                Grade.NOTE,
                ROOT_TOPIC,
                f"this user may not write to it: {error.message}",
                "the daemon's user must: npgxctl install-units",
            )
        else:
            yield Finding(
                Grade.GOOD,
                ROOT_TOPIC,
                f"{root} is shared by all processes (CANN before 9.1.0), and can be written to by this user",
            )
    others = _packages_of_others(root)
    if others:
        named = ", ".join(others[:FEW]) + (", ..." if len(others) > FEW else "")
        yield Finding(
            Grade.NOTE,
            ROOT_TOPIC,
            f"{counted(len(others), 'package')} of other installers in {root / AI_CORE} ({named}): "
            "every process loads them, and a kernel that is loaded first wins",
            f"where nobody needs them any more: {root / AI_CORE}/PACKAGE/scripts/uninstall.sh, one by one; never the uninstall.sh above them",
        )


def _packages_of_others(root: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in (root / AI_CORE).iterdir() if entry.name.startswith("static_kernel_"))
    except OSError:
        return []


def _closed(program: Path) -> Iterator[Finding]:
    for part in [*reversed(program.parents), program]:
        facts = part.stat()
        if not facts.st_mode & stat.S_IXOTH:
            yield Finding(
                Grade.NOTE,
                TOPIC,
                f"{part} is closed to users outside its group (gid {facts.st_gid}, mode {stat.S_IMODE(facts.st_mode):o})",
                "npgxd's user must be in that group: npgxctl install-units sees to it",
            )
            return
