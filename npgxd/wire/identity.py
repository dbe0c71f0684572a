"""Which CANN a process sees: its package versions and one digest over the operator implementations in effect.

Every rank computes this for its hello and the daemon for itself, with the same code, so that "equal" means the same on both
sides. Promise: ``identity`` never fails and never guesses; what cannot be told stays empty, and an empty field is not
compared. Where the toolchain lies does not count, only what it holds: a rank's container may have it under another path.
Standard library only.
"""

# Paths are plain strings here: thousands are handled, and a Path for each would cost more than the work itself.
# ruff: noqa: PTH112, PTH118, PTH208

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from npgxd.wire.memo_files import forget_former
from npgxd.wire.messages import CoreCounts, Difference, ToolchainIdentity
from npgxd.wire.stat_memo import StatMemo

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

RootKind = Literal["custom", "vendor", "built-in"]

IMPLEMENTATIONS: Final = "op_impl/ai_core"
"""Where a root keeps what decides an AI Core kernel: op tables, implementations, kernel objects, tiling libraries."""
VERSION_FILE: Final = "version.info"

_MAX_VERSION_BYTES: Final = 64 * 1024
_MAX_PACKAGES: Final = 200
_MAX_DIFFERENCES: Final = 64
_MAX_WORD: Final = 255
_VERSION: Final = re.compile(r"^[ \t]*version[ \t]*=[ \t]*(.*?)[ \t\r]*$", re.IGNORECASE | re.MULTILINE)
_PRIORITY: Final = "load_priority"


@dataclass(frozen=True, slots=True)
class OpRoot:
    """One place that operator implementations come from. ``name`` is the vendor's, where it has one."""

    kind: RootKind
    path: Path
    name: str = ""


def opp_path(environ: Mapping[str, str]) -> Path | None:
    """The directory of op packages: ``ASCEND_OPP_PATH``, else ``opp`` or ``opp_latest`` in ``ASCEND_HOME_PATH``; else None."""
    if told := environ.get("ASCEND_OPP_PATH"):
        return Path(told)
    if home := environ.get("ASCEND_HOME_PATH"):
        for name in ("opp", "opp_latest"):
            if os.path.isdir(os.path.join(home, name)):
                return Path(home, name)
    return None


def environment_roots(environ: Mapping[str, str]) -> tuple[OpRoot, ...]:
    """The op roots that are there, in CANN's search order (docs/cann.md): custom paths, vendors by priority, built-in."""
    roots = [OpRoot("custom", Path(entry)) for entry in environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if entry]
    opp = opp_path(environ)
    if opp is not None:
        roots += [OpRoot("vendor", opp / "vendors" / name, name) for name in vendor_priority(opp)]
        roots.append(OpRoot("built-in", opp / "built-in"))
    there = {os.path.realpath(root.path): root for root in reversed(roots) if os.path.isdir(root.path)}
    return tuple(reversed(there.values()))  # a root that is named twice counts where it comes first


def vendor_priority(opp: Path) -> tuple[str, ...]:
    """The vendors in the priority line of ``vendors/config.ini``, first first; what is not one directory's name is left out."""
    text = _text(opp / "vendors" / "config.ini")
    names: list[str] = []
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals and key.strip() == _PRIORITY:
            names += [name.strip() for name in value.split(",")]
    return tuple(dict.fromkeys(name for name in names if name and "/" not in name and name not in {".", ".."}))


def version_files(home: Path) -> dict[str, Path]:
    """Every package's version file in a CANN home, by package: ``share/info/<package>/``, or ``<package>/`` in older layouts."""
    found: dict[str, Path] = {}
    for directory in (home / "share" / "info", home):
        try:
            names = sorted(os.listdir(directory))
        except OSError:
            continue
        for name in names:
            path = directory / name / VERSION_FILE
            if name not in found and path.is_file():
                found[name] = path
    if (home / VERSION_FILE).is_file():
        found.setdefault("cann", home / VERSION_FILE)
    return found


def package_versions(home: Path) -> dict[str, str]:
    """The version of every package of a CANN home; empty for a package whose file does not say."""
    versions: dict[str, str] = {}
    for name, path in sorted(version_files(home).items())[:_MAX_PACKAGES]:
        match = _VERSION.search(_text(path))
        versions[_word(name)] = _word(match.group(1)) if match else ""
    return versions


def roots_digest(roots: Iterable[OpRoot], memo: Path | None) -> str:
    """One digest over the implementations in ``roots``, in their order; empty if there are none, or if some cannot be read."""
    store = StatMemo(memo)
    try:
        return digest_of_roots(roots, store)
    except (OSError, ValueError, RecursionError):
        return ""
    finally:
        store.save()
        if memo is not None:
            forget_former(str(memo))


def digest_of_roots(roots: Iterable[OpRoot], memo: StatMemo) -> str:
    """As ``roots_digest``, with a memo that is already open; OSError if something cannot be read."""
    parts: list[str] = []
    for root in roots:
        made = [memo.tree(str(root.path / name)) for name in (IMPLEMENTATIONS, VERSION_FILE)]
        if any(made):
            parts.append(" ".join(made))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() if parts else ""


def default_memo(environ: Mapping[str, str]) -> Path | None:
    """Where a user's processes share the memo: ``$XDG_CACHE_HOME/npgxd``, else ``~/.cache/npgxd``; None if no home is known."""
    base = environ.get("XDG_CACHE_HOME", "")
    if not base.startswith("/"):
        home = environ.get("HOME", "")
        if not home.startswith("/"):
            return None
        base = f"{home}/.cache"
    return Path(base, "npgxd", "toolchain")


def identity(
    environ: Mapping[str, str],
    *,
    soc: str = "",
    cores: CoreCounts | None = None,
    memo: Path | None = None,
    digest: Callable[[tuple[OpRoot, ...], Path | None], str] = roots_digest,
) -> ToolchainIdentity:
    """What this process sees of its CANN; never fails. ``memo`` defaults to the user's (``default_memo``).

    Without any ``ASCEND_*`` path in ``environ`` there is no CANN here, and versions and roots stay empty.
    """
    soc = _word(soc or environ.get("NPGXD_SOC", ""))
    if not any(environ.get(name) for name in ("ASCEND_HOME_PATH", "ASCEND_OPP_PATH", "ASCEND_CUSTOM_OPP_PATH")):
        return ToolchainIdentity(soc=soc, cores=cores)
    versions: dict[str, str] = {}
    roots = ""
    try:
        if home := environ.get("ASCEND_HOME_PATH"):
            versions = package_versions(Path(home))
        roots = digest(environment_roots(environ), memo or default_memo(environ))
    except (OSError, ValueError):  # a path with a NUL, a directory that went away: then it cannot be told
        pass
    return ToolchainIdentity(soc=soc, cores=cores, versions=versions, roots=roots)


def compare(rank: ToolchainIdentity, daemon: ToolchainIdentity) -> tuple[Difference, ...]:
    """In what the two differ, of what the rank could tell; at most 64 things, the most telling first."""
    found: list[Difference] = []
    if rank.soc and rank.soc != daemon.soc:
        found.append(Difference("soc", rank.soc, daemon.soc or "unknown"))
    if rank.cores is not None and daemon.cores is not None and rank.cores != daemon.cores:
        found.append(Difference("core counts", _cores(rank.cores), _cores(daemon.cores)))
    if rank.versions:
        for name in sorted({*rank.versions, *daemon.versions}):
            ours, theirs = rank.versions.get(name), daemon.versions.get(name)
            if ours != theirs:
                found.append(Difference(f"version of {name}"[:_MAX_WORD], _told(ours), _told(theirs)))
    if rank.roots and rank.roots != daemon.roots:
        found.append(Difference("operator implementations", rank.roots[:16], daemon.roots[:16] or "unknown"))
    return tuple(found[:_MAX_DIFFERENCES])


def _told(version: str | None) -> str:
    return "not installed" if version is None else version or "not stated"


def _cores(cores: CoreCounts) -> str:
    return f"{cores.vector} vector, {cores.cube} cube"


def _text(path: Path) -> str:
    """The beginning of a small text file; empty if it is not there, not a plain file, or cannot be read."""
    try:
        if not path.is_file():
            return ""
        with path.open("rb") as opened:
            return opened.read(_MAX_VERSION_BYTES).decode(errors="replace")
    except (OSError, ValueError):
        return ""


def _word(text: str) -> str:
    """``text`` as a message can carry it: printable, and at most 255 characters."""
    return "".join(char for char in text if char.isprintable())[:_MAX_WORD]
