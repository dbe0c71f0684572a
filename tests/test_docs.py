"""The documents name what the code has: every configuration key, every option, every refusal, every entry point."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from npgxd.config import SECTIONS, load
from npgxd.wire import admin
from npgxd.wire.parsing import REPLIES, REQUESTS

ROOT = Path(__file__).parents[1]


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_every_configuration_key_is_documented_with_its_default() -> None:
    page = text("docs/configuration.md")
    for section, kind in SECTIONS.items():
        assert f"## [{section}]" in page
        for item in fields(kind):
            assert f"| `{item.name}` |" in page
            if isinstance(item.default, (int, float)):
                assert f"| `{item.name}` | {item.default} |" in page


def test_the_annotated_configuration_is_valid_also_with_every_example_taken(tmp_path: Path) -> None:
    source = text("systemd/npgxd.toml")
    for version in (source, re.sub(r"^# (\w+ = )", r"\1", source, flags=re.MULTILINE)):
        path = tmp_path / "npgxd.toml"
        path.write_text(version)
        assert load(path, user=False, environ={}).source == str(path)


def test_every_option_of_the_backend_is_documented() -> None:
    options = pytest.importorskip("npugraph_ex.options")
    page = text("docs/options.md")
    assert [name for name in options.SPECS if f"`{name}`" not in page] == []


def test_every_message_is_documented() -> None:
    page = text("docs/protocol.md")
    assert [op for op in [*REQUESTS, *REPLIES] if f"`{op}`" not in page and op != "refusal"] == []


def test_every_refusal_in_the_code_is_documented() -> None:
    page = text("docs/protocol.md")
    used = set()
    for path in (ROOT / "npgxd/daemon").glob("*.py"):
        used |= set(re.findall(r"Refus(?:ed|al)\(\s*\"([A-Z_]+)\"", path.read_text()))
    assert used
    assert [code for code in sorted(used) if f"`{code}`" not in page] == []


def test_readme_links_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_the_commands_of_the_readme_exist() -> None:
    project = tomllib.loads(text("pyproject.toml"))["project"]
    assert set(project["scripts"]) == {"npgxd", "npgxctl"}
    makefile = text("Makefile")
    for target in ("demo", "test", "check"):
        assert f"\n{target}:" in makefile
        assert f"make {target}" in text("README.md")


def test_every_message_for_administrators_is_documented() -> None:
    page = text("docs/protocol.md").partition("## Administration")[2]
    assert [op for op in [*admin.REQUESTS, *admin.REPLIES] if f"`{op}`" not in page] == []


def test_every_test_that_a_document_names_exists() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for path, name in re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page.read_text()):
            assert (ROOT / path).is_file(), f"{page.name} names {path}"
            assert not name or f"def {name}(" in (ROOT / path).read_text(), f"{page.name} names {path}::{name}"
