"""What people see of the compile cache, from documents as the daemon gives them."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from npgxd.cli import cache, status
from npgxd.cli.exits import Exit
from npgxd.cli.main import main
from npgxd.cli.page import Line, show

KEY = "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "everyone": False,
    "summary": {"entries": 2, "bytes": 705_000, "hits": 5, "misses": 1, "building": 1, "waiting": 3, "quarantined": 1},
    "entries": [
        {"key": KEY, "label": "Model.decode", "size": 5000, "made_at": 40.0, "state": "proven", "meta": {"torch": "2.13"}},
        {"key": KEY, "label": "M\x1b[2J", "size": 700_000, "made_at": 90.0, "state": "bad", "bad_reason": "it asserts"},
    ],
    "entries_total": 5,
    "not_cacheable": [
        {"key": KEY, "label": "Model.train", "code": "RNG", "reason": "dropout", "at": 70.0},
        {"key": KEY, "label": "Model.old", "code": "", "reason": "could not be loaded", "at": 70.0},
    ],
    "building": [{"key": KEY, "label": "Model.prompt", "pid": 7, "elapsed_s": 61.0, "waiting": 3}],
    "notes": [{"key": KEY, "label": "Model.decode", "outcome": "MISFIT", "reason": "SCALE is 2, and was 1", "at": 95.0}],
}


def plain(lines: list[Line]) -> list[str]:
    out = io.StringIO()
    show(lines, out)
    return out.getvalue().splitlines()


def test_the_list_tells_entries_builds_and_what_cannot_be_cached():
    assert plain(cache.page(DOCUMENT, now=100.0)) == [
        "artifacts  2 entries, 705.0 kB; 5 hits, 1 miss so far; 1 being built, 3 processes waiting; 1 set aside as bad",
        "  Model.decode proven  ca978112ca1b  5.0 kB, made 1 min ago",
        "  M\\x1b[2J bad  ca978112ca1b  700.0 kB, made 10 s ago",
        "  and 3 more entries; name a label or a key",
        "  Model.prompt building  ca978112ca1b  by pid 7 for 1 min, 3 waiting",
        "  Model.train not cacheable  ca978112ca1b  RNG: dropout (30 s ago)",
        "  Model.old built anew  ca978112ca1b  could not be loaded (30 s ago)",
    ]


def test_one_entry_is_shown_with_all_that_is_known_and_why_says_what_changed():
    shown = plain(cache.entry_page(DOCUMENT, now=100.0))
    assert f"  key      {KEY}" in shown
    assert "  torch    2.13" in shown
    assert "  reported it asserts" in shown
    assert "Model.decode MISFIT  SCALE is 2, and was 1 (5 s ago, key ca978112ca1b)" in plain(cache.why_page(DOCUMENT, now=100.0))


@pytest.mark.parametrize("page", [cache.page, cache.entry_page, cache.why_page])
@pytest.mark.parametrize("document", [{}, {"summary": 5, "entries": "x", "notes": [None], "not_cacheable": [[]], "building": {}}])
def test_a_document_that_lacks_anything_is_shown_as_far_as_it_goes(page, document):
    assert plain(page(document, now=0.0))


@pytest.mark.parametrize(
    ("words", "answer", "code"),
    [
        (["cache"], DOCUMENT, Exit.OK),
        (["cache", "ls", "x"], {}, Exit.OK),
        (["cache", "show", "Model"], DOCUMENT, Exit.OK),
        (["cache", "show", "x"], {}, Exit.PROBLEMS),
        (["cache", "why", "Model"], DOCUMENT, Exit.OK),
        (["cache", "why", "x"], {"entries": DOCUMENT["entries"]}, Exit.PROBLEMS),
        (["cache", "rm", "nope"], {}, 78),
        (["cache", "rm", "abc"], {}, 78),
    ],
)
def test_each_act_has_its_code(words, answer, code, monkeypatch, capsys):
    monkeypatch.setattr(cache, "cache_document", lambda _socket, _match: answer)
    assert main(words) == code


@pytest.mark.parametrize(
    "words", [["cache", "--json"], ["cache", "--json", "ls"], ["cache", "ls", "--json"], ["cache", "show", "x", "--json"]]
)
def test_json_is_the_document(words, monkeypatch, capsys):
    monkeypatch.setattr(cache, "cache_document", lambda _socket, _match: DOCUMENT)
    assert main(words) == Exit.OK
    assert json.loads(capsys.readouterr().out) == DOCUMENT


def test_status_has_one_line_about_it(document):
    assert not any(line.startswith("artifacts") for line in plain(status.page(document, now=0.0)))
    lines = plain(status.page({**document, "artifacts": DOCUMENT["summary"]}, now=0.0))
    assert [line for line in lines if line.startswith("artifacts")] == plain(
        [cache.summary_line(status.Node(DOCUMENT["summary"]))]
    )
