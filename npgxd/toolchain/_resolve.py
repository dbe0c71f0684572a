"""Which files an op type resolves to, in the effective op roots and in their order (docs/cann.md, "Versions").

The first root whose op table names the op has it. From there count: the op's entry in the table, its implementation
(``impl/<file>.py``, ``impl/ascendc/<file>/``, also under ``dynamic/`` and in a vendor's ``<name>_impl/``) with all that it
includes or imports inside the root, the compiled kernels in ``kernel/<family>/<file>/``, its tiling library (every one of the
root where the table names none), and the root's own ``version.info``. An op whose implementation lies nowhere that is known
counts everything in its root; one that no root names counts everything.
"""

# Paths are plain strings here: thousands are handled, and a Path for each would cost more than the work itself.
# ruff: noqa: PTH119, PTH122

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from npgxd.toolchain._sources import Found, candidates, pulls_in
from npgxd.wire.identity import IMPLEMENTATIONS, VERSION_FILE, OpRoot

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npgxd.toolchain._glance import Look

_TBE: Final = f"{IMPLEMENTATIONS}/tbe"
_TILING: Final = ("op_tiling", "op_host")
_SCRIPTS: Final = (".py", ".cpp", ".cc", ".cce", ".h", ".hpp")
_PLACES: Final = ("", "/dynamic", "/ascendc", "/dynamic/ascendc")
_WORD_START: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_MAX_FILES: Final = 50_000
_MAX_TABLES: Final = 64


@dataclass(frozen=True, slots=True)
class Resolution:
    """Where an op comes from; ``root`` is None if none names it. ``entry``: its line in the op table; ``files``: names, digests.

    Names are relative to the root, so that the same files at another place are the same.
    """

    root: OpRoot | None
    entry: object
    files: tuple[tuple[str, str], ...]
    missing: tuple[str, ...] = ()


class Resolver:
    """Resolves op types for one SoC family; remembers tables and sources by their digests."""

    def __init__(self, family: str) -> None:
        self._family = family
        self._tables: dict[str, dict[str, Any]] = {}
        self._pulled: dict[str, Found] = {}

    def resolve(self, op_type: str, roots: Iterable[OpRoot], look: Look) -> Resolution:
        """Everything that ``op_type`` resolves to in ``roots``."""
        roots = tuple(roots)
        for root in roots:
            entry = self._entry(op_type, root, look)
            if entry is not None:
                return self._of_root(op_type, root, entry, look)
        found = {f"{at}/{name}": digest for at, root in enumerate(roots) for name, digest in _everything(root, look).items()}
        return Resolution(None, None, tuple(sorted(found.items())))

    def forget(self) -> None:
        """Drop what is remembered of tables and sources, if it has grown beyond what one CANN can hold."""
        if len(self._tables) > _MAX_TABLES:
            self._tables.clear()
        if len(self._pulled) > _MAX_FILES:
            self._pulled.clear()

    def _entry(self, op_type: str, root: OpRoot, look: Look) -> object:
        """The op's entry in the root's tables: of several, the first by name."""
        directory = f"{root.path}/{_TBE}/config/{self._family}"
        for name in look.names(directory):
            if name.startswith(f"aic-{self._family}-ops-info") and name.endswith(".json"):
                path = f"{directory}/{name}"
                digest = look.content(path)
                if digest is None:
                    continue
                if digest not in self._tables:
                    self._tables[digest] = _table(look.read(path))
                if op_type in self._tables[digest]:
                    entry: object = self._tables[digest][op_type]
                    return {} if entry is None else entry
        return None

    def _of_root(self, op_type: str, root: OpRoot, entry: object, look: Look) -> Resolution:
        base = str(root.path)
        tbe = f"{base}/{_TBE}"
        stems = dict.fromkeys((_told(entry, "opFile") or file_name(op_type), _told(entry, "opInterface") or file_name(op_type)))
        starts = [path for stem in stems for path in self._implementation(tbe, stem, look)]
        kernels = [path for stem in stems if _is_name(stem) for path in look.files(f"{tbe}/kernel/{self._family}/{stem}")]
        if not starts and not kernels:
            return Resolution(root, entry, tuple(sorted(_everything(root, look).items())))
        libraries, missing = _libraries(tbe, _told(entry, "tilingLib"), look)
        settings = [f"{tbe}/kernel/config/{self._family}/{stem}.json" for stem in stems if _is_name(stem)]
        paths = {*self._with_what_they_pull_in(starts, tbe, look), *kernels, *settings, *libraries, f"{base}/{VERSION_FILE}"}
        found = {os.path.relpath(path, base): digest for path in sorted(paths) if (digest := look.content(path)) is not None}
        return Resolution(root, entry, tuple(sorted(found.items())), tuple(missing))

    def _implementation(self, tbe: str, stem: str, look: Look) -> list[str]:
        """The files that implement the op, without what they pull in."""
        if not _is_name(stem):
            return []
        found: list[str] = []
        for place in _implementation_places(tbe, look):
            found += [path for end in _SCRIPTS if look.content(path := f"{place}/{stem}{end}") is not None]
            found += look.files(f"{place}/{stem}")
        return found

    def _with_what_they_pull_in(self, starts: Iterable[str], tbe: str, look: Look) -> dict[str, None]:
        places = _implementation_places(tbe, look)
        include_roots = (*places, *(f"{place}/common" for place in places), tbe)
        import_roots = (*places, tbe)
        found: dict[str, None] = {}
        waiting = list(starts)
        while waiting and len(found) < _MAX_FILES:
            path = waiting.pop()
            if path in found:
                continue
            found[path] = None
            for kind, what in self._pulls_in(path, look):
                for choices in candidates(kind, what, path, include_roots, import_roots):
                    chosen = next((choice for choice in choices if look.content(choice) is not None), None)
                    if chosen is not None and chosen not in found:
                        waiting.append(chosen)
        return found

    def _pulls_in(self, path: str, look: Look) -> Found:
        digest = look.content(path) or ""
        key = digest + os.path.splitext(path)[1]
        if key not in self._pulled:
            self._pulled[key] = pulls_in(path, lambda: look.read(path))
        return self._pulled[key]


def file_name(op_type: str) -> str:
    """The stem that CANN takes where a table names no file: ``MatMulV2`` -> ``mat_mul_v2``."""
    return _WORD_START.sub("_", op_type).lower()


def _implementation_places(tbe: str, look: Look) -> list[str]:
    """``impl`` and every ``<vendor>_impl``, with their sub-directories that hold implementations."""
    names = [name for name in look.names(tbe) if name == "impl" or name.endswith("_impl")]
    return [f"{tbe}/{name}{place}" for name in names for place in _PLACES]


def _libraries(tbe: str, declared: str, look: Look) -> tuple[list[str], list[str]]:
    """The tiling libraries: those called ``declared``, else all; and what is declared and not there."""
    found = [path for name in _TILING for path in look.files(f"{tbe}/{name}")]
    if not declared:
        return found, []
    named = [path for path in found if os.path.basename(path) == os.path.basename(declared)]
    return named, [] if named else [declared]


def _everything(root: OpRoot, look: Look) -> dict[str, str]:
    """All of the root's implementations, by one digest."""
    trees = {name: look.tree(f"{root.path}/{name}") for name in (IMPLEMENTATIONS, VERSION_FILE)}
    return {name: digest for name, digest in trees.items() if digest}


def _is_name(stem: str) -> bool:
    """Whether a table's word can be a file's name, and not a path."""
    return bool(stem) and "/" not in stem and "\0" not in stem and stem not in {".", ".."}


def _table(raw: bytes) -> dict[str, Any]:
    """An op table; one that cannot be read names no op."""
    try:
        table = json.loads(raw)
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _told(entry: object, name: str) -> str:
    """``{"<name>": {"value": "<told>"}}``, or ``{"<name>": "<told>"}``."""
    value = entry.get(name) if isinstance(entry, dict) else None
    if isinstance(value, dict):
        value = value.get("value")
    return value if isinstance(value, str) else ""
