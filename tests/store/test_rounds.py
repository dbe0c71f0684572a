from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.made import names, round_entry

if TYPE_CHECKING:
    from tests.store.made import House


def test_fc23_an_accepted_round_is_there_after_a_restart_and_gone_when_settled(house: House) -> None:
    entries = [round_entry(n) for n in (3, 1, 2)]
    for entry in entries:
        house.rounds.accept(entry)
    house.rounds.accept(entries[0])
    house.reopen()
    assert house.rounds.pending() == sorted(entries, key=lambda entry: entry.accepted_at)
    house.rounds.settle(entries[0].round)
    house.rounds.settle(entries[0].round)
    assert [entry.round for entry in house.rounds.pending()] == [entries[1].round, entries[2].round]


def test_a_round_is_for_the_daemon_alone(house: House) -> None:
    house.rounds.accept(round_entry())
    assert {stat.S_IMODE(path.stat().st_mode) for path in house.state.rounds.iterdir()} == {0o600}
    assert names(house.state.staging) == []


@pytest.mark.parametrize("damage", ["torn", "flipped", "empty", "garbage", "renamed", "odd", "directory", "link", "temporary"])
def test_a_damaged_journal_file_is_set_aside_and_the_others_go_on(
    house: House, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    house.rounds.accept(round_entry(1))
    house.rounds.accept(round_entry(2))
    path = house.state.rounds / f"{2:032x}.round"
    raw = path.read_bytes()
    if damage in {"torn", "flipped", "empty", "garbage"}:
        changed = {"torn": raw[:-5], "flipped": raw[:-3] + bytes([raw[-3] ^ 1]) + raw[-2:], "empty": b"", "garbage": b"\x81" * 99}
        path.write_bytes(changed[damage])
    elif damage == "renamed":
        path.rename(house.state.rounds / f"{3:032x}.round")
    else:
        path.unlink()
        odd = house.state.rounds / (".npgxd-0123" if damage == "temporary" else path.name if damage != "odd" else "README")
        {"directory": odd.mkdir, "link": lambda: odd.symlink_to("/etc/passwd")}.get(damage, lambda: odd.write_bytes(b"x"))()
    assert house.rounds.pending() == [round_entry(1)]
    assert len(names(house.state.rounds)) == 1
    assert len(list(house.state.quarantine.glob("*.reason"))) == 1
    assert "not a round" in caplog.text
    assert house.rounds.pending() == [round_entry(1)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(
    st.binary(max_size=100)
    | st.recursive(
        st.none() | st.integers(0, 9) | st.text(max_size=5), lambda x: st.lists(x) | st.dictionaries(st.text(max_size=9), x)
    ).map(msgpack.packb)
)
def test_no_bytes_in_a_journal_file_stop_a_start(house: House, raw: bytes) -> None:
    import hashlib

    path = house.state.rounds / f"{7:032x}.round"
    for whole in (raw, b"npgxd-round 1\n" + hashlib.sha256(raw).hexdigest().encode() + b"\n" + raw):
        path.write_bytes(whole)
        assert house.rounds.pending() == []
        assert not path.exists()
