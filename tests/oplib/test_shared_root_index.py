"""The total index taken apart and put together again: nothing of others is lost, whatever they write."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npgxd.errors import StoreError
from npgxd.oplib.shared_root_index import TotalIndex, canonical

OURS = "npgxd_0123456789abcdef/ascend910b/Add/x.o"
names = st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=6)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | names,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)
entries = (
    st.fixed_dictionaries(
        {"simplifiedKey": names | st.lists(names, min_size=1, max_size=2)},
        optional={"binPath": st.sampled_from(["p/x.o", OURS]), "x": values},
    )
    | values
)
indexes = st.dictionaries(
    names, st.fixed_dictionaries({"staticList": st.lists(entries, max_size=3)}, optional={"more": values}) | values, max_size=4
)


def without_ours(index: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, listed in index.items():
        if isinstance(listed, dict) and isinstance(listed.get("staticList"), list):
            theirs = [e for e in listed["staticList"] if not (isinstance(e, dict) and e.get("binPath") == OURS)]
            if theirs or len(listed) > 1 or not listed["staticList"]:
                kept[name] = {**listed, "staticList": theirs}
        else:
            kept[name] = listed
    return kept


@given(indexes, st.sampled_from([None, 1]), st.booleans())
def test_without_ours_it_is_what_others_made_of_it(index: dict[str, Any], indent: int | None, ascii_only: bool) -> None:
    parsed = TotalIndex.parse(json.dumps(index, indent=indent, ensure_ascii=ascii_only).encode())
    assert json.loads(parsed.with_ours({})) == without_ours(index)
    assert json.loads(parsed.text()) == index or any(e.ours for e in parsed.entries())


@given(indexes)
def test_what_is_put_in_is_there_and_comes_out_again(index: dict[str, Any]) -> None:
    mine = json.dumps({"simplifiedKey": "k", "binPath": OURS})
    parsed = TotalIndex.parse(json.dumps(index).encode())
    again = TotalIndex.parse(parsed.with_ours({"Add": [mine]}))
    if isinstance(index.get("Add"), dict) and "staticList" not in index["Add"]:
        return
    assert [canonical(entry.raw) for found in again.ours().values() for entry in found] == [canonical(mine)]
    assert json.loads(again.with_ours({})) == without_ours(index) or "Add" in index


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"a": 1',
        b'{"a": 1} x',
        b'{"a": 1, "a": 2}',
        b'{"a" 1}',
        b'{"a": 1 "b": 2}',
        b"\xff",
        b"\xef\xbb\xbf{}",
        b"[" * 99999,
    ],
)
def test_what_is_not_one_whole_object_is_refused(raw: bytes) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        TotalIndex.parse(raw)


def entry(key: str, path: str = "p/x.o", **more: Any) -> dict[str, Any]:
    return {"simplifiedKey": key, "binPath": path, **more}


def index_of(*listed: dict[str, Any]) -> TotalIndex:
    return TotalIndex.parse(json.dumps({"Add": {"staticList": listed}}).encode())


def test_what_somebody_did_to_an_older_index_is_done_to_this_one() -> None:
    base = index_of(entry("stays"), entry("goes"), entry("replaced", n=1))
    written = index_of(entry("stays"), entry("replaced", n=2), entry("new"))
    present = index_of(entry("stays"), entry("goes"), entry("replaced", n=1), entry("meanwhile"), entry("ours", OURS))
    merged = present.with_changes(base, written)
    assert [(e.keys[0], json.loads(e.raw).get("n")) for e in merged.entries()] == [
        ("stays", None),
        ("meanwhile", None),
        ("ours", None),
        ("replaced", 2),
        ("new", None),
    ]
    assert merged.with_changes(base, written) == merged, "being told twice changes nothing"
