"""What cannot be looked at for want of descriptors, or of memory, is not damaged: it stays where it is, and is not made anew."""

from __future__ import annotations

import errno
import os
import sqlite3
from typing import TYPE_CHECKING

import pytest

from npgxd.errors import StoreError
from npgxd.oplib.pins import Pins
from npgxd.store.catalog import Catalog
from npgxd.store.migrate import complete
from npgxd.store.state import StateDirectory
from tests.store.made import digest, names, no_descriptors, refused, round_entry

if TYPE_CHECKING:
    from tests.store.made import House

REASONS = [errno.EMFILE, errno.ENFILE, errno.ENOMEM]


def test_a_kernel_stays_and_whoever_asks_for_it_is_told(house: House) -> None:
    read, unread = house.publish("read"), house.publish("unread")
    house.reopen()
    assert house.kernels.find(read.key) == read
    with no_descriptors():
        found = house.kernels.look_up([read.key, unread.key, digest("none")])
        assert found.kernels == {read.key: read}
        assert found.unread.keys() == {unread.key}
        assert "LimitNOFILE" in str(found.unread[unread.key])
        for ask in (house.kernels.find, lambda _: house.kernels.get(unread.id), lambda _: house.kernels.recheck(unread.id)):
            with pytest.raises(StoreError, match="Too many open files"):
                ask(unread.key)
    assert names(house.state.quarantine) == []
    assert house.kernels.find(unread.key) == unread


def test_a_kernel_that_was_served_before_stays(house: House) -> None:
    kernel = house.publish("a")
    assert house.kernels.find(kernel.key) == kernel
    house.kernels._recent.clear()
    with no_descriptors(), pytest.raises(StoreError, match="Too many open files"):
        house.kernels.find(kernel.key)
    assert house.kernels.find(kernel.key) == kernel


def test_a_kernel_that_is_published_again_stays(house: House) -> None:
    kernel, again = house.publish("a"), house.kernels.number(house.stage("a"))
    with no_descriptors(), pytest.raises(StoreError, match="Too many open files"):
        next(house.kernels.showing([again]))
    assert names(house.state.quarantine) == []
    assert house.kernels.find(kernel.key) == kernel


def test_a_kernel_that_the_catalog_does_not_list_stays(house: House) -> None:
    kernel = house.publish("a")
    house.catalog.drop_kernel(kernel.id)
    with refused("manifest.json", errno.ENOMEM), pytest.raises(StoreError, match="Cannot allocate memory"):
        house.kernels.reconcile()
    assert house.kernels.directory(kernel.id).is_dir()


@pytest.mark.parametrize("number", REASONS)
def test_an_accepted_round_is_there_at_the_next_start(house: House, number: int) -> None:
    house.rounds.accept(round_entry())
    with refused(".round", number):
        for look in (house.rounds.pending, house.rounds.damaged):
            with pytest.raises(StoreError, match=os.strerror(number)):
                look()
    assert house.rounds.pending() == [round_entry()]


def test_a_pin_holds(house: House) -> None:
    pins = Pins(house.state)
    pins.put("ab12", [digest("a")], 1.0)
    with refused("/pins/"):
        for look in (lambda: Pins(house.state), pins.damaged):
            with pytest.raises(StoreError, match="Too many open files"):
                look()
    assert Pins(house.state).keys() == {digest("a")}


@pytest.mark.parametrize("name", ["STORE_ID", "FORMAT"])
def test_a_state_directory_keeps_its_name_and_is_not_refused(house: House, name: str) -> None:
    before = house.state.store_id
    house.close()
    with refused(name, errno.ENFILE), pytest.raises(StoreError, match="Too many open files in system"):
        StateDirectory.open(house.path)
    assert house.open().state.store_id == before


def test_a_migration_that_has_begun_is_not_dropped(house: House) -> None:
    place = house.path / "migration"
    (place / "new").mkdir(parents=True)
    (place / "plan.json").write_text('{"to": 1, "gone": []}')
    (place / "new" / "thing").write_text("new")
    with refused("plan.json"), pytest.raises(StoreError, match="Too many open files"):
        complete(house.path, 1, house.state.disk)
    assert (place / "new" / "thing").exists()


@pytest.mark.parametrize("left", range(8))
def test_a_catalog_is_not_made_anew(house: House, left: int) -> None:
    house.catalog.count({"hits": 7})
    house.close()
    try:
        with no_descriptors(left):
            Catalog(house.state.catalog).close()
    except StoreError as error:
        assert error.no_means  # noqa: PT017 -- with enough of them left there is none
    assert names(house.state.quarantine) == []
    assert house.open().catalog.counters() == {"hits": 7}


class Forgetful:
    """A connection to SQLite of which one statement fails, as where the kernel has no memory for what is read."""

    def __init__(self, real: sqlite3.Connection, left: list[str], said: str) -> None:
        self._real, self._left, self._said = real, left, said

    def __getattr__(self, name: str) -> object:
        return getattr(self._real, name)

    def execute(self, question: str, *values: object) -> object:
        if self._left and question.startswith(self._left[0]):
            self._left.clear()
            if not self._said:
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorcode = sqlite3.SQLITE_IOERR_READ
                raise error
            return self._real.execute(f"SELECT '{self._said}'")
        return self._real.execute(question, *values)


@pytest.mark.parametrize(
    ("statement", "said"),
    [
        ("PRAGMA journal_mode", ""),
        ("PRAGMA user_version", ""),
        ("PRAGMA quick_check", "Tree 13 page 13: unable to get the page. error code=266"),
    ],
)
def test_a_catalog_that_could_not_be_read_once_is_not_made_anew(
    house: House, monkeypatch: pytest.MonkeyPatch, statement: str, said: str
) -> None:
    house.catalog.count({"hits": 7})
    house.close()
    connect, left = sqlite3.connect, [statement]
    monkeypatch.setattr(sqlite3, "connect", lambda *path, **how: Forgetful(connect(*path, **how), left, said))
    assert house.open().catalog.counters() == {"hits": 7}
    assert left == []
    assert names(house.state.quarantine) == []


def test_a_catalog_whose_log_cannot_be_opened_just_then_is_not_made_anew(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    house.catalog.count({"hits": 7})
    house.close()

    def refuse(*_path: object, **_how: object) -> object:
        error = sqlite3.OperationalError("unable to open database file")
        error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(sqlite3, "connect", refuse)
        with pytest.raises(StoreError, match="unable to open database file"):
            Catalog(house.state.catalog)
    assert house.open().catalog.counters() == {"hits": 7}
    house.close()
    (house.path / "catalog.sqlite-wal").mkdir()
    assert house.open().catalog.counters() == {}, "what is no file of SQLite's is damage"
    assert [name for name in names(house.state.quarantine) if name.endswith("-wal")]
