"""``npgxctl import``: records, and run packages if they are trusted, of output trees that exist already."""

from __future__ import annotations

import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.cli.admin_ask import Admin, add_options, tell
from npgxd.cli.commands import Command
from npgxd.cli.document import Node
from npgxd.cli.exits import IMPORT_TABLE, Exit
from npgxd.cli.page import Line, Tone
from npgxd.client.dump import read_dump
from npgxd.errors import ConfigError
from npgxd.store.plain import chunks, open_plain
from npgxd.wire import admin, limits
from npgxd.wire.codec import pack_records
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

_FOLDER = re.compile(r"[0-9]+_opcompile(_selected|_gathered)?")
_PACKAGE = re.compile(r"static_kernel_[A-Za-z0-9_-]{1,100}\.run")
_FRAMES = 4


@dataclass(frozen=True, slots=True)
class Tree:
    """What lies below a directory: folders of records, and run packages."""

    folders: tuple[Path, ...]
    packages: tuple[Path, ...]


def find(root: Path) -> Tree:
    """Every ``<pid>_opcompile*`` folder and plain file ``static_kernel_*.run`` below ``root``; no link is followed."""
    folders: list[Path] = []
    packages: list[Path] = []
    for directory, inner, files in os.walk(root, followlinks=False):
        here = Path(directory)
        if _FOLDER.fullmatch(here.name):
            folders.append(here)
            inner.clear()
            continue
        packages += [here / name for name in sorted(files) if _PACKAGE.fullmatch(name) and _is_plain(here / name)]
        inner.sort()
    return Tree(tuple(folders), tuple(packages))


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of ``npgxctl import``."""
    parser.add_argument(
        "directory", type=Path, metavar="DIR", help="where static_kernel_compile_outputs lies, or a directory above"
    )
    parser.add_argument(
        "--trust-toolchain",
        action="store_true",
        help="also run the run packages there and take their kernels: only if this very toolchain made them, which nothing in them proves",
    )
    add_options(parser)


def run(options: argparse.Namespace) -> int:
    """Send everything by value; 0 done, 1 some records were rejected."""
    if not options.directory.is_dir():
        raise ConfigError(f"{options.directory} is no directory", hint="name a directory with static_kernel_compile_outputs")
    tree = find(options.directory)
    unique: dict[bytes, str] = {}
    skipped: list[tuple[str, str]] = []
    for folder in tree.folders:
        records, rejected = read_dump(folder)
        for name, raw in records:
            unique.setdefault(raw, name)
        skipped += [(f"{folder.name}/{item.name}", item.reason) for item in rejected]
    if not unique:
        raise ConfigError(
            f"there are no records below {options.directory}",
            hint="they lie in <pid>_opcompile folders of static_kernel_compile_outputs",
        )
    upload = secrets.token_hex(16)
    with Admin(options.socket) as daemon:
        frames = pack_records((name, raw) for raw, name in unique.items())
        for part, start in enumerate(range(0, len(frames), _FRAMES)):
            daemon.ask(admin.ImportPart(upload, "records", part=part), frames[start : start + _FRAMES])
        for package in tree.packages if options.trust_toolchain else ():
            for part, pieces in enumerate(_pieces(package)):
                daemon.ask(admin.ImportPart(upload, "package", name=package.name, part=part), pieces)
        label = options.directory.resolve().name[: limits.MAX_NAME].encode("ascii", "replace").decode()
        document = daemon.ask(admin.ImportRun(upload, label, options.trust_toolchain))
    document["skipped"] = [{"name": name, "reason": reason} for name, reason in skipped]
    document["folders"] = len(tree.folders)
    tell(options, document, lambda: page(document, trusted=options.trust_toolchain, there=len(tree.packages)))
    return Exit.PROBLEMS if document["skipped"] or document.get("rejected") else Exit.OK


def _pieces(package: Path) -> Iterator[list[bytes]]:
    with open_plain(package) as fd:
        for piece in chunks(fd, package):
            yield [piece]


def _is_plain(path: Path) -> bool:
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except FileNotFoundError:  # it went meanwhile
        return False


def page(document: object, *, trusted: bool, there: int) -> list[Line]:
    """The answer as lines. ``there``: run packages that lie in the tree."""
    said = Node(document)
    text = f"{counted(said.count('unique'), 'different record')} of {counted(said.count('folders'), 'folder')}: "
    taken = counted(said.count("trusted"), "kernel")
    text += f"{said.count('present')} present already, {taken} taken as trusted, {said.count('queued')} queued"
    lines = [Line("imported", text, Tone.GOOD)]
    if said.count("queued"):
        lines.append(Line("", "queued records are compiled in the background; npgxctl status shows how far they are", indent=2))
    if there and not trusted:
        text = f"{counted(there, 'run package was', 'run packages were')} not looked at: see --trust-toolchain"
        lines.append(Line("packages", text, Tone.NOTE))
    lines += [Line("note", text, Tone.NOTE, indent=2) for text in said.names("notes")]
    for item in [*said.nodes("skipped"), *said.nodes("named")][:50]:
        lines.append(Line("rejected", f"{item.text('name')}: {item.text('reason')}", Tone.BAD, indent=2))
    return lines


COMMAND = Command(
    "import", "take the records of existing output trees, to compile them in the background", IMPORT_TABLE, configure, run
)
