"""What a source file pulls in: quoted includes of C++, and imports of Python, as far as they lead to files of the same root.

Read by pattern, not by a compiler: too much found costs a needless miss at worst, and only files that exist count. Includes
that a macro composes, and modules imported by a computed name, are beyond it.
"""

# Paths are plain strings here: thousands are handled, and a Path for each would cost more than the work itself.
# ruff: noqa: PTH118, PTH120, PTH122

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_INCLUDE: Final = re.compile(rb'^[ \t]*#[ \t]*include(?:_next)?[ \t]*["<]([^">\n]{1,1024})[">]', re.MULTILINE)
_IMPORT: Final = re.compile(rb"^[ \t]*import[ \t]+([^\n#;]{1,4096})", re.MULTILINE)
_FROM: Final = re.compile(
    rb"^[ \t]*from[ \t]+(\.*)[ \t]*([\w.]*)[ \t]+import[ \t]+(\([^)]{0,16384}\)|[^\n#;]{1,4096})", re.MULTILINE
)
_COMMENT: Final = re.compile(rb"#[^\n]*")
_NAME: Final = re.compile(rb"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*")
_CPP: Final = frozenset({".c", ".cc", ".cpp", ".cxx", ".cce", ".h", ".hh", ".hpp", ".hxx", ".inc", ".inl", ".asc", ".tpp"})

Found = tuple[tuple[str, str], ...]
"""(kind, what) pairs: ("include", "../common/x.h"), ("import", "..util.platform")."""


def pulls_in(path: str, content: Callable[[], bytes]) -> Found:
    """What the source ``path`` includes or imports; nothing for a file that is no source. ``content`` is asked where needed."""
    suffix = os.path.splitext(path)[1].lower()
    if suffix in _CPP:
        names = _INCLUDE.findall(content().replace(b"\\\n", b""))
        return tuple(("include", name.decode(errors="surrogateescape").strip()) for name in dict.fromkeys(names))
    if suffix == ".py":
        return tuple(("import", name) for name in dict.fromkeys(_imports(content().replace(b"\\\n", b" "))))
    return ()


def candidates(
    kind: str, what: str, source: str, include_roots: tuple[str, ...], import_roots: tuple[str, ...]
) -> list[list[str]]:
    """The paths to try, one list for each file that may be meant; in each list the first that exists is the one."""
    here = os.path.dirname(source)
    if "\0" in what:
        return []
    if kind == "include":
        return [[os.path.normpath(os.path.join(base, what)) for base in dict.fromkeys((here, *include_roots))]]
    dots = len(what) - len(what.lstrip("."))
    parts = [part for part in what.split(".") if part]
    bases: tuple[str, ...] = (here, *import_roots)
    if dots:
        base = here
        for _ in range(dots - 1):
            base = os.path.dirname(base)
        bases = (base,)
    wanted = []
    for count in range(1, len(parts) + 1):
        tail = "/".join(parts[:count])
        wanted.append([f"{base}/{tail}{end}" for base in dict.fromkeys(bases) for end in (".py", "/__init__.py")])
    return wanted


def _imports(text: bytes) -> Iterator[str]:
    for listed in _IMPORT.findall(text):
        for item in listed.split(b","):
            if match := _NAME.match(item.strip()):
                yield match.group().decode()
    for dots, module, listed in _FROM.findall(text):
        start = dots.decode() + module.decode(errors="replace")
        if module:
            yield start
        for item in _COMMENT.sub(b"", listed).strip(b"() \t\n").split(b","):
            if match := _NAME.match(item.strip()):
                yield f"{start}.{match.group().decode()}" if module else start + match.group().decode()
