"""The man pages: those of the parsers and of the configuration as they are, and man reads them without a word."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest

from npgxd.cli.commands import all_commands
from npgxd.config import SECTIONS

MAN = Path(__file__).parents[2] / "man"
PAGES = ("npgxctl.1", "npgxd.8", "npgxd.toml.5")


def text(name: str) -> str:
    return (MAN / name).read_text().replace("\\-", "-")


def test_every_command_and_every_key_has_its_place() -> None:
    assert [
        command.name for command in all_commands() if f"COMMAND \\fI\\,'npgxctl {command.name}'" not in text("npgxctl.1")
    ] == []
    for name, kind in SECTIONS.items():
        part = text("npgxd.toml.5").partition(f".SH [{name}]\n")[2].partition("\n.SH ")[0]
        assert [item.name for item in fields(kind) if f"\\fB{item.name}\\fR" not in part] == []


def test_the_pages_are_those_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("argparse_manpage")
    from tools.man_pages import pages

    monkeypatch.setenv("COLUMNS", "80")
    made = pages()
    assert set(made) == set(PAGES)
    for name in PAGES:
        assert (MAN / name).read_text() == made[name], "make them anew: python -m tools.man_pages"


@pytest.mark.skipif(shutil.which("groff") is None, reason="NOT TESTED: what groff says of the pages: there is no groff")
@pytest.mark.parametrize("name", PAGES)
def test_groff_has_no_complaint(name: str) -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tutf8", "-ww", "-z", str(MAN / name)], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
