from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npugraph_ex.inference import container
from npugraph_ex.inference.container import EntryDamaged, EntryOutdated, pack, unpack

SECTIONS = {"header": b'{"a":1}', "graph": b"def forward(self):\n", "empty": b"", "data": bytes(range(256)) * 3}


@given(st.dictionaries(st.text(min_size=1, max_size=20), st.binary(max_size=300), max_size=8))
def test_what_was_packed_is_unpacked_and_equal_sections_give_equal_bytes(sections):
    data = pack(sections)
    assert {name: bytes(view) for name, view in unpack(data).items()} == sections
    assert list(unpack(data)) == list(sections)
    assert pack(dict(sections)) == data


def test_sections_are_aligned_for_tensors():
    data = pack(SECTIONS)
    whole = memoryview(data)
    assert [len(view) for view in unpack(data).values()] == [7, 19, 0, 768]
    assert all(data.index(bytes(view)) % container.ALIGNMENT == 0 for view in unpack(data).values() if len(view) > 7)
    assert len(whole) % container.ALIGNMENT == 0


def test_a_flipped_bit_anywhere_is_noticed():
    data = pack(SECTIONS)
    chosen = random.Random(5)
    for place in {*range(96), *(chosen.randrange(len(data)) for _ in range(300))}:
        flipped = bytearray(data)
        flipped[place] ^= 1 << chosen.randrange(8)
        with pytest.raises((EntryDamaged, EntryOutdated)):
            unpack(bytes(flipped))


def test_a_truncated_or_longer_entry_is_noticed():
    data = pack(SECTIONS)
    for length in (0, 1, 8, 63, 64, 100, len(data) - 1):
        with pytest.raises(EntryDamaged):
            unpack(data[:length])
    with pytest.raises(EntryDamaged):
        unpack(data + b"\0")
    with pytest.raises(EntryDamaged):
        unpack(b"\x80\x04\x95" + data)  # a pickle, say


def test_another_format_version_is_told_apart_from_damage(monkeypatch):
    old = pack(SECTIONS)
    monkeypatch.setattr(container, "FORMAT", container.FORMAT + 1)
    with pytest.raises(EntryOutdated, match="format 1, and this npugraph_ex reads format 2"):
        unpack(old)
    assert unpack(pack(SECTIONS))


def test_a_directory_that_lies_is_noticed_even_under_a_right_digest(monkeypatch):
    for bad in ('{"a":1}', '[["a",0]]', '[["a",0,99999]]', '[["a",-1,1]]', "[[1,0,1]]", "[" + '["a",0,0],' * 64 + '["a",0,0]]'):
        monkeypatch.setattr(container.json, "dumps", lambda *_a, told=bad, **_k: told)
        data = pack({"a": b"1"})
        monkeypatch.undo()
        with pytest.raises(EntryDamaged):
            unpack(data)
