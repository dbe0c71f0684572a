"""The documents name what the code has: every configuration key, every option, every refusal, every entry point."""

from __future__ import annotations

import argparse
import re
import shlex
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest

from npgxd.cli.main import build_parser
from npgxd.config import SECTIONS, load
from npgxd.daemon.main import build_parser as build_daemon_parser
from npgxd.wire import admin
from npgxd.wire.parsing import REPLIES, REQUESTS
from npgxd.wire.states import Reason

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
    for path in (ROOT / "npgxd/daemon").rglob("*.py"):
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


PAGES = [ROOT / "README.md", ROOT / "README.zh-CN.md", *sorted((ROOT / "docs").glob("*.md"))]


def told_commands(page: Path) -> list[list[str]]:
    """Every npgxctl and npgxd command of a page: in its code lines, and between backticks."""
    lines = [line.partition("  #")[0] for line in re.findall(r"^    (\S.*)$", page.read_text(), flags=re.MULTILINE)]
    lines += [told.replace("\n", " ") for told in re.findall(r"`((?:npgxctl|npgxd) [^`]+)`", page.read_text())]
    words = [shlex.split(part) for line in lines for part in re.split(r"&&|;|\||&$", line) if "npgx" in part]
    return [each[each.index(name) :] for each in words for name in ("npgxctl", "npgxd") if name in each[:1]]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_that_a_document_tells_is_one_with_those_options(page: Path) -> None:
    (subparsers,) = [each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)]
    for name, *words in told_commands(page):
        parser = build_daemon_parser()
        if name == "npgxctl" and words[0].startswith("--"):
            parser = build_parser()
        elif name == "npgxctl" and words[0] != "COMMAND":
            assert words[0] in subparsers.choices, f"{page.name}: npgxctl {words[0]}"
            parser = subparsers.choices[words[0]]
        given = {word.strip("[]").partition("=")[0] for word in words if word.strip("[").startswith("--")} - {"--help"}
        unknown = given - set(parser._option_string_actions)
        assert not unknown, f"{page.name}: {name} {' '.join(words)}: {unknown}"


def test_both_readmes_tell_the_same_commands_and_name_the_same_pages() -> None:
    def facts(name: str) -> tuple[list[str], set[str]]:
        page = text(name)
        commands = [line.partition("  #")[0].rstrip() for line in re.findall(r"^    (\S.*)$", page, flags=re.MULTILINE)]
        return commands, set(re.findall(r"\]\(((?:docs/)?[\w-]+\.md)\)", page)) - {"README.md", "README.zh-CN.md"}

    assert facts("README.md") == facts("README.zh-CN.md")


def test_every_link_between_documents_leads_somewhere() -> None:
    for page in PAGES:
        for link in re.findall(r"\]\(([\w./-]+)(?:#[\w-]+)?\)", page.read_text()):
            assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_every_reason_that_a_process_can_be_told_is_explained() -> None:
    table = text("docs/operations.md").partition("## Every reason")[2].partition("\n## ")[0]
    assert [reason for reason in Reason if f"`{reason}`" not in table] == []
