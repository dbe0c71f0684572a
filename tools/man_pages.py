"""Make the man pages anew: ``python -m tools.man_pages`` (needs argparse-manpage, a development dependency).

npgxctl(1) and npgxd(8) come from the parsers, npgxd.toml(5) from the sections of the configuration; so none of them can lag behind.
"""

from __future__ import annotations

import os
import re
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd import __version__
from npgxd.cli import exits
from npgxd.cli.main import build_parser
from npgxd.config import SECTIONS, needs_restart
from npgxd.daemon import main as daemon

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

PLACE: Final = Path(__file__).parents[1] / "man"
DATE: Final = "2026"
"""Not today's: a page changes when its commands do, not every day."""
SEE: Final = {
    "npgxctl.1": ("npgxd(8)", "npgxd.toml(5)", "journalctl(1)"),
    "npgxd.8": ("npgxctl(1)", "npgxd.toml(5)", "systemctl(1)"),
    "npgxd.toml.5": ("npgxd(8)", "npgxctl(1)"),
}
DAEMON_FILES: Final = {
    "/etc/npgxd/npgxd.toml": "the configuration, with its drop-ins in npgxd.toml.d",
    "/var/lib/npgxd": "kernels, views, the compile cache and the journal of rounds",
    "/run/npgxd/npgxd.sock": "where ranks and npgxctl ask",
    "/run/npgxd/admin.sock": "where root and the daemon's own user administer it",
}
DAEMON_SIGNALS: Final = {
    "SIGTERM, SIGINT": "let running compiles finish, then end; a second one ends at once",
    "SIGHUP": "read the configuration again",
}


def pages() -> dict[str, str]:
    """Every page by its file name."""
    os.environ["COLUMNS"] = "80"  # argparse wraps a usage to it
    summary = "see and control the npgxd daemon of this node"
    made = {
        "npgxctl.1": _of_parser(build_parser(), 1, summary) + _verbatim("EXIT STATUS", _table(exits.__doc__ or "")),
        "npgxd.8": _of_parser(daemon.build_parser(), 8, "the node's owner of CANN static kernels")
        + _list("SIGNALS", DAEMON_SIGNALS)
        + _list("FILES", DAEMON_FILES)
        + _section("EXIT STATUS", re.sub(r"\s+", " ", (daemon.__doc__ or "").partition("Exit codes: ")[2]).strip()),
        "npgxd.toml.5": "\n".join(_configuration()) + "\n",
    }
    return {name: text + _section("SEE ALSO", ", ".join(SEE[name])) for name, text in made.items()}


def _of_parser(parser: argparse.ArgumentParser, section: int, summary: str) -> str:
    from argparse_manpage.manpage import Manpage  # noqa: PLC0415 -- only who makes them needs it

    facts = {
        "manual_section": section,
        "project_name": "npgxd",
        "version": __version__,
        "date": DATE,
        "manual_title": "npgxd",
        "description": summary,
    }
    text = re.sub(r"^\.SH\n(?=\S)", ".SH ", str(Manpage(parser, _data=facts)), flags=re.MULTILINE)
    return "\n".join(line.rstrip() for line in text.splitlines()) + "\n"


def _configuration() -> Iterator[str]:
    yield f'.TH NPGXD.TOML "5" "{DATE}" "npgxd {__version__}" "npgxd"'
    yield ".SH NAME\nnpgxd.toml \\- the configuration of npgxd"
    yield ".SH SYNOPSIS\n/etc/npgxd/npgxd.toml, /etc/npgxd/npgxd.toml.d/*.toml, ~/.config/npgxd/npgxd.toml"
    yield ".SH DESCRIPTION"
    yield "One TOML file; over it come its drop\\-ins, in the order of their names, and the environment: NPGXD_<SECTION>_<KEY>."
    yield "Every key is optional; an unknown one is an error. npgxd \\-\\-check\\-config looks without starting anything."
    yield "SIGHUP applies a changed file, but for the keys that need a restart."
    for name, kind in SECTIONS.items():
        yield f".SH [{name}]"
        for item in fields(kind):
            default = "" if item.default in {None, ""} else f" Default: {_toml(item.default)}."
            restart = " A change needs a restart." if needs_restart(f"{name}.{item.name}") else ""
            yield f".TP\n\\fB{_escaped(item.name)}\\fR\n{_escaped(str(item.metadata['meaning']))}.{_escaped(default)}{restart}"


def _toml(value: object) -> str:
    return "[]" if value == () else str(value)


def _table(text: str) -> list[str]:
    """The lines of a table in a docstring, without its rules."""
    rules = [number for number, line in enumerate(text.splitlines()) if line.startswith("====")]
    return [line for line in text.splitlines()[rules[0] : rules[-1]] if not line.startswith("====")]


def _verbatim(title: str, lines: list[str]) -> str:
    return f".SH {title}\n.nf\n" + "".join(f"{_escaped(line.replace('``', ''))}\n" for line in lines) + ".fi\n"


def _list(title: str, items: dict[str, str]) -> str:
    return f".SH {title}\n" + "".join(f".TP\n{_escaped(name)}\n{_escaped(text)}\n" for name, text in items.items())


def _section(title: str, text: str) -> str:
    return f".SH {title}\n{_escaped(text)}\n"


def _escaped(text: str) -> str:
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text


def main() -> None:
    """Write them where the package has them."""
    PLACE.mkdir(exist_ok=True)
    for name, text in pages().items():
        (PLACE / name).write_text(text, encoding="utf-8")
        print(PLACE / name)


if __name__ == "__main__":
    main()
