"""Making a run package: shell header, checksum block, compressed tar (docs/cann.md, the run package)."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os
import shlex
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .versions import Features

_PAYLOAD = Path(__file__).parent / "payload"
_TITLE = "STATIC KERNEL RUN PACKAGE"


@dataclass(frozen=True)
class Contents:
    """What goes into a package: its name, the tree ``<family>/<Op>/...`` that was built, and its index."""

    name: str
    family: str
    built: Path
    index: dict[str, Any]
    installer: str = ""
    """Empty, or the ordered failure of the installer: ``installer_fails`` or ``installer_does_nothing``."""


def package_bytes(contents: Contents, features: Features) -> bytes:
    """The whole package."""
    return _header(contents, features, _archive(contents, features))


def damaged(package: bytes, orders: frozenset[str]) -> bytes:
    """The package with the damage that was ordered."""
    if "corrupt_package" in orders:
        at = len(package) - len(package) // 8 - 1
        package = package[:at] + bytes([package[at] ^ 0xFF]) + package[at + 1 :]
    if "truncated_package" in orders:
        package = package[: -max(64, len(package) // 10)]
    return package


def _header(contents: Contents, features: Features, payload: bytes) -> bytes:
    template = (_PAYLOAD / "header.sh").read_text()
    facts = {
        "@NAME@": contents.name,
        "@TITLE@": _TITLE,
        "@VERSION@": features.version,
        "@INSTALL_PATH@": "yes" if features.install_path else "no",
        "@SHA256@": hashlib.sha256(payload).hexdigest(),
        "@SIZE@": str(len(payload)),
        "@SKIP@": str(template.count("\n")),
    }
    for mark, value in facts.items():
        template = template.replace(mark, value)
    return template.encode() + payload


def _archive(contents: Contents, features: Features) -> bytes:
    buffer = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=buffer, mode="wb", compresslevel=1, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w") as tar,
    ):
        folders: set[str] = set()

        def add(name: str, content: bytes, mode: int = 0o640) -> None:
            for parent in reversed(Path(name).parents[:-1]):
                if str(parent) not in folders:
                    folders.add(str(parent))
                    info = tarfile.TarInfo(str(parent))
                    info.type, info.mode = tarfile.DIRTYPE, 0o770
                    tar.addfile(info)
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), mode
            tar.addfile(info, io.BytesIO(content))

        top = contents.name
        for directory, _, names in sorted(os.walk(contents.built)):
            for name in sorted(names):
                path = Path(directory) / name
                add(f"{top}/{path.relative_to(contents.built)}", path.read_bytes())
        index = json.dumps(contents.index, indent=2, sort_keys=True)
        add(f"{top}/config/{contents.family}/binary_info_config.json", index.encode())
        add(f"{top}/scripts/installer.py", (_PAYLOAD / "installer.py").read_bytes())
        add(f"{top}/scripts/install.sh", _install_script(contents, features).encode(), 0o750)
        add(f"{top}/uninstall.sh", _uninstall_script("uninstall", f"/{top}", "scripts").encode(), 0o750)
        add("uninstall.sh", _uninstall_script("uninstall-all", "", "*/scripts").encode(), 0o750)
        add("version.info", f"Version={features.version}\nsimulated=true\n".encode())
    return buffer.getvalue()


def _install_script(contents: Contents, features: Features) -> str:
    lines = ["#!/bin/sh", "# Installs this package into $1. SIMULATED CANN.", "set -e"]
    if contents.installer == "installer_does_nothing":
        return "\n".join([*lines, 'echo "[INFO] static kernel package installed"', "exit 0", ""])
    flags = " --lock" if features.lock_file else ""
    if contents.installer == "installer_fails":
        flags += " --fail-halfway"
    lines.append(f'exec {_python()} -I -S -B "$(dirname "$0")/installer.py" install "$1" --family {contents.family}{flags}')
    return "\n".join([*lines, ""])


def _uninstall_script(command: str, up: str, scripts: str) -> str:
    what = "this package" if command == "uninstall" else "every static kernel package of this root, whoever installed it"
    return "\n".join(
        [
            "#!/bin/sh",
            f"# Removes {what}. SIMULATED CANN.",
            'here=$(cd "$(dirname "$0")" && pwd)',
            f'for script in "$here"/{scripts}/installer.py; do',
            f'  [ -f "$script" ] && exec {_python()} -I -S -B "$script" {command} "$here"',
            "done",
            'echo "[ERROR] nothing to uninstall in $here" >&2' if up else 'rm -rf "${here%/ai_core}"',
            "exit 1" if up else "exit 0",
            "",
        ]
    )


def _python() -> str:
    return shlex.quote(sys.executable)
