from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npgxd.errors import StoreError
from npgxd.store.index import IndexEntry, PackagedEntry, build_index, check_op_type, check_stem, parse_entry, parse_index
from npgxd.store.manifest import KernelManifest, Making, ManifestEntry, Member, Origin, parse_manifest
from tests.store.made import digest, making, origin

texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20)
any_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
whole = st.integers(0, 2**63 - 1)
op_types = st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,20}", fullmatch=True)
stems = st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_+-]{0,30}", fullmatch=True)
PATIENT = settings(max_examples=60, deadline=None)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)


@st.composite
def entries(draw: st.DrawFn) -> IndexEntry:
    keys = tuple(draw(st.lists(texts, min_size=1, max_size=3)))
    extra = {"newField": draw(whole), "binDesc": {"newInner": [draw(any_text)]}} if draw(st.booleans()) else None
    return IndexEntry(
        simplified_keys=keys,
        core_type=draw(st.integers(0, 4)),
        block_dim=draw(whole),
        kernel_name=draw(texts),
        workspace=tuple(draw(st.lists(st.integers(-(2**63) + 1, 2**63 - 1), max_size=20))),
        multi_kernel_type=draw(st.none() | whole),
        single=len(keys) == 1 and draw(st.booleans()),
        extra="" if extra is None else json.dumps(extra, sort_keys=True, separators=(",", ":")),
    )


@st.composite
def manifests(draw: st.DrawFn) -> KernelManifest:
    names = draw(st.lists(stems, min_size=1, max_size=3, unique=True))
    digests = st.from_regex(r"[0-9a-f]{64}", fullmatch=True)
    return KernelManifest(
        origin=Origin(
            key=draw(digests),
            op_type=draw(op_types),
            record=draw(any_text),
            record_digest=draw(digests),
            fingerprint=draw(digests),
            soc=draw(any_text),
            family=draw(stems),
            cann_version=draw(any_text),
            options=tuple(draw(st.lists(st.tuples(any_text, any_text), max_size=3))),
            flags=draw(any_text),
        ),
        members=tuple(Member(f"{name}{suffix}", draw(digests), draw(whole)) for name in names for suffix in (".json", ".o")),
        entries=tuple(ManifestEntry(name, draw(entries())) for name in names),
        making=Making(draw(digests), draw(st.floats(0, 1e9)), draw(st.floats(0, 1e12)), draw(any_text), draw(whole)),
    )


@PATIENT
@given(st.lists(st.tuples(op_types, entries()), max_size=6))
def test_an_index_reads_back_as_it_was_built(rows: list[tuple[str, IndexEntry]]) -> None:
    packaged = [PackagedEntry(op, f"pkg/ascend910b/{op}/k{place}.o", facts) for place, (op, facts) in enumerate(rows)]
    raw = build_index(packaged)
    assert sorted(map(repr, parse_index(raw))) == sorted(map(repr, packaged))
    assert build_index(reversed(packaged)) == raw
    assert raw == json.dumps(json.loads(raw), sort_keys=True, indent=1, ensure_ascii=False).encode(), "canonical JSON"


@PATIENT
@given(manifests())
def test_a_manifest_reads_back_as_it_was_written(manifest: KernelManifest) -> None:
    assert parse_manifest(manifest.to_json()) == manifest
    assert parse_manifest(manifest.to_json()).id == manifest.id


@PATIENT
@given(st.binary(max_size=200) | json_values.map(lambda value: json.dumps(value).encode()))
def test_whatever_the_bytes_an_index_or_a_manifest_is_read_or_refused(raw: bytes) -> None:
    for parse in (parse_index, parse_manifest):
        with contextlib.suppress(StoreError):
            parse(raw)


@PATIENT
@given(manifests(), st.data())
def test_a_manifest_with_one_field_of_another_kind_is_refused_or_another_kernel(
    manifest: KernelManifest, data: st.DataObject
) -> None:
    document = json.loads(manifest.to_json())
    place = data.draw(st.sampled_from(["origin", "making", "members", "entries"]))
    target = document[place][0] if isinstance(document[place], list) else document[place]
    name = data.draw(st.sampled_from(sorted(target)))
    before = target[name]
    target[name] = data.draw(json_values)
    try:
        changed = parse_manifest(json.dumps(document).encode())
    except StoreError:
        return
    assert isinstance(changed.to_json(), bytes)
    assert target[name] == before or place == "making" or changed.id != manifest.id or changed == manifest


def described(**facts: Any) -> dict[str, Any]:
    entry = {
        "simplifiedKey": "k",
        "coreType": 1,
        "binPath": "p/a/Op/x.o",
        "binDesc": {"blockDim": 20, "kernelName": "x", "workspace": []},
        **facts,
    }
    return {name: value for name, value in entry.items() if value is not ...}


@pytest.mark.parametrize(
    "facts",
    [
        {"simplifiedKey": ...},
        {"simplifiedKey": []},
        {"simplifiedKey": ["a", 1]},
        {"simplifiedKey": ""},
        {"simplifiedKey": "\ud800"},
        {"coreType": 5},
        {"coreType": True},
        {"coreType": "1"},
        {"binPath": ...},
        {"binPath": 1},
        {"binPath": "a\0.o"},
        {"binDesc": ...},
        {"binDesc": {"blockDim": -1, "kernelName": "x", "workspace": []}},
        {"binDesc": {"blockDim": 1, "kernelName": "", "workspace": []}},
        {"binDesc": {"blockDim": 1, "kernelName": "x", "workspace": [0] * 21}},
        {"binDesc": {"blockDim": 1, "kernelName": "x", "workspace": [1.5]}},
        {"multiKernelType": "x"},
        {"unknown": "x" * 100_000},
    ],
)
def test_an_entry_that_the_runtime_could_not_use_is_refused(facts: dict[str, Any]) -> None:
    parse_index(json.dumps({"Op": {"staticList": [described()]}}).encode())
    with pytest.raises(StoreError):
        parse_index(json.dumps({"Op": {"staticList": [described(**facts)]}}).encode())


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"[]",
        b"{",
        b'{"Op": []}',
        b'{"Op": {}}',
        b'{"../Op": {"staticList": []}}',
        b'{"A":{"staticList":[]},"A":{"staticList":[]}}',
        b'{"A": NaN}',
        b"[" * 100_000,
    ],
)
def test_a_torn_index_is_refused(raw: bytes) -> None:
    with pytest.raises(StoreError):
        parse_index(raw)


def test_what_a_newer_cann_adds_to_an_entry_travels_along() -> None:
    entry = described(newField={"a": 1})
    entry["binDesc"]["newInner"] = 7
    facts = parse_entry("Op", entry)
    assert facts.to_json("p/a/Op/x.o") == entry


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x.o", ".hidden", "a b", "x" * 201, "ü", "-x", 5])
def test_a_name_that_would_be_a_trap_as_a_file_is_refused(name: str) -> None:
    with pytest.raises(StoreError):
        check_stem(name)
    with pytest.raises(StoreError):
        check_op_type(name)


def made() -> KernelManifest:
    facts = IndexEntry(("key",), 1, 20, "name", ())
    members = (Member("a.json", digest("json"), 4), Member("a.o", digest("o"), 5))
    return KernelManifest(origin("x"), members, (ManifestEntry("a", facts),), making())


def test_an_id_tells_results_apart_and_not_how_they_were_made() -> None:
    kernel = made()
    assert dataclasses.replace(kernel, making=Making(digest("other"), 9.0, 9.0, "other.run", 9)).id == kernel.id
    other_bytes = (kernel.members[0], Member("a.o", digest("other"), 5))
    assert dataclasses.replace(kernel, members=other_bytes).id != kernel.id
    assert dataclasses.replace(kernel, origin=origin("x", fingerprint=digest("newer toolchain"))).id != kernel.id
    assert dataclasses.replace(kernel, origin=origin("y")).id != kernel.id


@pytest.mark.parametrize(
    ("place", "name", "value"),
    [
        ("origin", "op_type", "../../etc"),
        ("origin", "family", "a/b"),
        ("origin", "record", "\ud800"),
        ("origin", "key", "short"),
        ("making", "cost_s", float("nan")),
        ("making", "cost_s", 10**400),
        ("making", "sequence", -1),
        ("making", "sequence", True),
    ],
)
def test_a_manifest_that_names_a_path_or_no_number_is_refused(place: str, name: str, value: object) -> None:
    document = json.loads(made().to_json())
    document[place][name] = value
    with pytest.raises(StoreError):
        parse_manifest(json.dumps(document).encode())


def test_a_manifest_whose_members_are_not_its_entries_files_is_refused() -> None:
    document = json.loads(made().to_json())
    document["members"].append({"name": "../../x.o", "sha256": digest("x"), "size": 1})
    with pytest.raises(StoreError, match="members"):
        parse_manifest(json.dumps(document).encode())
    with pytest.raises(StoreError, match="schema 2"):
        parse_manifest(json.dumps({**json.loads(made().to_json()), "schema": 2}).encode())
