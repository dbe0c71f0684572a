"""Which files an op type resolves to in the effective op roots, and their digest."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

from .record import dumps

_INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
TBE = Path("op_impl/ai_core/tbe")
TILING = Path("op_tiling/lib/linux/x86_64")


class NoImplementation(LookupError):
    """No effective op root implements this op for this SoC family."""


def effective_roots(environ: dict[str, str]) -> list[Path]:
    """Op roots in search order: custom paths, vendors by their priority line, built-in (docs/cann.md)."""
    roots = [Path(entry) for entry in environ.get("ASCEND_CUSTOM_OPP_PATH", "").split(":") if entry]
    opp = Path(environ["ASCEND_OPP_PATH"])
    try:
        lines = (opp / "vendors/config.ini").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        key, _, names = line.partition("=")
        if key.strip() == "load_priority":
            roots.extend(opp / "vendors" / name.strip() for name in names.split(",") if name.strip())
    roots.append(opp / "built-in")
    return roots


class Implementations:
    """The op implementations of one environment, for one SoC family."""

    def __init__(self, environ: dict[str, str], family: str) -> None:
        self._family = family
        self._tables: list[tuple[Path, dict[str, Any]]] = []
        for root in effective_roots(environ):
            tbe = root / TBE
            try:
                table = json.loads((tbe / "config" / family / f"aic-{family}-ops-info.json").read_bytes())
            except FileNotFoundError:
                continue
            self._tables.append((tbe, table))
        self._digests: dict[str, str] = {}

    @property
    def supported(self) -> bool:
        """Whether any root has ops for this family."""
        return bool(self._tables)

    def files(self, op_type: str) -> tuple[Path, ...]:
        """Every file that decides the op's kernels, sorted; NoImplementation names the op."""
        tbe, entry = self._find(op_type)
        name = entry["opFile"]["value"]
        found: set[Path] = set()
        script = tbe / "impl" / f"{name}.py"
        if script.is_file():
            found.add(script)
        source = tbe / "impl" / "ascendc" / name / f"{name}.cpp"
        if source.is_file():
            _add_with_includes(source, found)
        if not found:
            raise NoImplementation(f"op {op_type}: {tbe} names opFile {name!r}, and no such implementation is there")
        library = entry.get("tilingLib", {}).get("value")
        if library:
            found.add(tbe / TILING / library)
        kernels = tbe / "kernel" / self._family / name
        if kernels.is_dir():
            found.update(path for path in kernels.iterdir() if path.suffix in (".o", ".json"))
        version = tbe.parents[2] / "version.info"
        if version.is_file():
            found.add(version)
        return tuple(sorted(found))

    def digest(self, op_type: str) -> str:
        """A digest over the op's table entry and the names and bytes of its files, relative to their root."""
        if op_type not in self._digests:
            tbe, entry = self._find(op_type)
            whole = hashlib.sha256(dumps(entry).encode())
            for path in self.files(op_type):
                try:
                    content = path.read_bytes()
                except FileNotFoundError:
                    raise NoImplementation(f"op {op_type}: {path} is missing") from None
                whole.update(f"\0{os.path.relpath(path, tbe)}\0{len(content)}\0".encode())
                whole.update(content)
            self._digests[op_type] = whole.hexdigest()
        return self._digests[op_type]

    def _find(self, op_type: str) -> tuple[Path, dict[str, Any]]:
        for tbe, table in self._tables:
            if op_type in table:
                return tbe, table[op_type]
        raise NoImplementation(f"op {op_type} is not implemented for {self._family} in any effective op root")


def _add_with_includes(source: Path, found: set[Path]) -> None:
    if source in found:
        return
    found.add(source)
    for name in _INCLUDE.findall(source.read_bytes()):
        included = Path(os.path.normpath(source.parent / name.decode()))
        if included.is_file():
            _add_with_includes(included, found)
