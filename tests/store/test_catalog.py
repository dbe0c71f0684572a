from __future__ import annotations

import os
import sqlite3
import stat
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import StoreError
from npgxd.store.catalog import Catalog, KernelRow
from tests.store.made import digest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.store.made import House


def row(name: str, **facts: object) -> KernelRow:
    told = {
        "key": digest(name),
        "id": digest(f"kernel {name}"),
        "op_type": "Add",
        "size": 10,
        "package": digest("p"),
        "cost_s": 1.0,
        "made_at": 1.0,
    }
    return KernelRow(**{**told, **facts})  # type: ignore[arg-type]


def test_431_keys_of_many_are_looked_up_at_once(house: House) -> None:
    rows = [row(f"op{n}") for n in range(2000)]
    house.catalog.add_kernels(rows)
    wanted = rows[::4][:431]
    asked = [one.key for one in wanted] + [digest("unknown")]
    assert house.catalog.kernel_ids(asked) == {one.key: one.id for one in wanted}
    assert house.catalog.kernel_ids([]) == {}
    assert house.catalog.kernel_ids([one.key for one in rows]) == {one.key: one.id for one in rows}


def test_the_catalog_is_durable_private_and_in_wal_mode(house: House) -> None:
    house.catalog.add_kernels([row("a")])
    for name in ("", "-wal", "-shm"):
        assert stat.S_IMODE((house.path / f"catalog.sqlite{name}").stat().st_mode) == 0o600
    db = house.catalog._db
    assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert db.execute("PRAGMA synchronous").fetchone() == (2,)


def test_of_several_kernels_for_a_key_the_one_listed_last_answers(house: House) -> None:
    first, second = row("a", id=digest("1")), row("a", id=digest("2"))
    house.catalog.add_kernels([first])
    house.catalog.add_kernels([second])
    assert house.catalog.kernel_ids([digest("a")]) == {digest("a"): second.id}
    house.catalog.add_kernels([first])
    assert house.catalog.kernel_ids([digest("a")]) == {digest("a"): first.id}
    house.catalog.drop_kernel(first.id)
    assert house.catalog.kernel_ids([digest("a")]) == {digest("a"): second.id}


def test_a_sequence_is_never_given_twice(house: House) -> None:
    assert house.catalog.next_sequence() == 1
    house.catalog.add_kernels([row("a", sequence=41), row("b", sequence=41)])
    assert house.catalog.next_sequence() == 43
    house.catalog.drop_kernel(row("a").id)
    house.catalog.drop_kernel(row("b").id)
    house.reopen()
    assert house.catalog.next_sequence() == 43


def test_history_survives_a_restart(house: House) -> None:
    house.catalog.count({"hits": 3, "compiled": 1})
    house.catalog.count({"hits": 2})
    house.reopen()
    assert house.catalog.counters() == {"hits": 5, "compiled": 1}


def test_what_is_only_a_history_does_not_wait_for_the_disk_and_all_else_does(house: House) -> None:
    level = "PRAGMA synchronous"
    with house.catalog.transaction(durable=False) as db:
        assert db.execute(level).fetchone() == (1,)
    assert db.execute(level).fetchone() == (2,)
    with house.catalog.transaction() as db:
        assert db.execute(level).fetchone() == (2,)
    with pytest.raises(StoreError), house.catalog.transaction(durable=False) as db:
        db.execute("INSERT INTO nothing VALUES (1)")
    assert db.execute(level).fetchone() == (2,)
    said: list[str] = []
    db.set_trace_callback(said.append)
    house.kernels.uses.touch([digest("a")])
    house.kernels.uses.flush()
    house.catalog.count({"hits": 1}, durable=False)
    assert [line for line in said if level in line or line == "COMMIT"] == [f"{level}=NORMAL", "COMMIT", f"{level}=FULL"] * 2


def remove(house: House) -> None:
    house.state.catalog.unlink()


def garbage(house: House) -> None:
    house.state.catalog.write_bytes(b"this is not a database" * 100)


def truncate(house: House) -> None:
    raw = house.state.catalog.read_bytes()
    house.state.catalog.write_bytes(raw[: len(raw) // 2 + 100])


def scribble(house: House) -> None:
    raw = bytearray(house.state.catalog.read_bytes())
    for page in range(4096, len(raw), 4096):
        raw[page : page + 64] = os.urandom(64)
    house.state.catalog.write_bytes(raw)


def newer(house: House) -> None:
    db = sqlite3.connect(house.state.catalog)
    db.execute("PRAGMA user_version=99")
    db.close()


def empty(house: House) -> None:
    house.state.catalog.write_bytes(b"")


@pytest.mark.parametrize("damage", [remove, garbage, truncate, scribble, newer, empty])
def test_a_catalog_that_is_missing_or_damaged_is_made_anew_from_the_kernels(house: House, damage) -> None:
    wanted = {digest(f"op{n}"): house.publish(f"op{n}").id for n in range(12)}
    house.close()
    damage(house)
    house.open()
    assert house.catalog.was_rebuilt
    assert house.catalog.kernel_ids(list(wanted)) == wanted
    assert {key: found.id for key, found in house.kernels.find_many(list(wanted)).items()} == wanted
    kept = list(house.state.quarantine.glob("catalog.sqlite-*"))
    assert bool(kept) == (damage not in {remove, empty})
    house.reopen()
    assert not house.catalog.was_rebuilt
    assert house.catalog.kernel_count() == 12


def test_a_rebuild_leaves_out_what_is_no_kernel(house: House) -> None:
    manifest = house.publish("a")
    directory = house.kernels.directory(manifest.id)
    (directory / "manifest.json").write_text("{}")
    house.close()
    house.state.catalog.unlink()
    house.open()
    assert house.catalog.kernel_count() == 0


def test_a_catalog_that_another_process_holds_is_not_thrown_away(house: House, tmp_path: Path) -> None:
    path = tmp_path / "busy.sqlite"
    Catalog(path).close()
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("PRAGMA journal_mode=DELETE")
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreError, match="locked"):
        Catalog(path, busy_s=0.01)
    other.close()
    assert path.exists()


def test_a_catalog_that_cannot_be_written_says_so(house: House) -> None:
    house.catalog._db.execute("PRAGMA query_only=1")
    with pytest.raises(StoreError, match="cannot write the catalog"):
        house.catalog.count({"hits": 1})
    house.catalog._db.execute("PRAGMA query_only=0")
    house.catalog.count({"hits": 1})
    assert house.catalog.counters() == {"hits": 1}


def test_half_a_change_is_no_change(house: House) -> None:
    with pytest.raises(StoreError):
        house.catalog.add_kernels([row("a"), row("b", size=None)])
    assert house.catalog.kernel_count() == 0
