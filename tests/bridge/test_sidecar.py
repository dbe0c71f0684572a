from __future__ import annotations

import pytest

from npgxd.bridge.sidecar import Sidecar, SidecarDamaged, digest_of, pack, unpack

ENTRY = b"what the bundled code wrote\n\0\1"
SIDECAR = Sidecar.of(ENTRY, {"versions": {"torch": "2.13.0"}, "names": ["é\n"]})


def test_a_sidecar_and_its_entry_come_back_as_they_were():
    assert Sidecar.parse(SIDECAR.encoded()) == SIDECAR
    assert unpack(pack(SIDECAR, ENTRY)) == (SIDECAR, ENTRY)
    assert (SIDECAR.digest, SIDECAR.size) == (digest_of(ENTRY), len(ENTRY))
    assert SIDECAR.encoded().count(b"\n") == 2


def test_whatever_byte_is_changed_or_missing_is_noticed():
    whole = pack(SIDECAR, ENTRY)
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            with pytest.raises(SidecarDamaged):
                unpack(damaged)


def test_a_sidecar_of_another_format_says_nothing():
    later = SIDECAR.encoded().replace(b"npgxd-sidecar 1", b"npgxd-sidecar 2", 1)
    with pytest.raises(SidecarDamaged, match="another format"):
        Sidecar.parse(later)
    with pytest.raises(SidecarDamaged, match="something follows"):
        Sidecar.parse(SIDECAR.encoded() + b"more")
