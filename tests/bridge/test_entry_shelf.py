from __future__ import annotations

import os

import pytest

from npgxd.bridge.entry_shelf import BROKEN, FILE, KEPT, STALE, EntryShelf, Kept, Unusable
from npgxd.bridge.sidecar import Sidecar


def kept(text):
    entry = text.encode()
    return Kept.of(entry, Sidecar.of(entry, {"text": text}))


@pytest.fixture
def shelf(tmp_path):
    """A function's directory, with something of somebody else's in it."""
    shelf = EntryShelf(tmp_path / "model" / "step" / FILE)
    shelf.path.parent.mkdir(parents=True, mode=0o700)
    (shelf.path.parent / "neighbour").write_text("theirs")
    (shelf.path.parent / "outputs").mkdir()
    yield shelf
    assert (shelf.path.parent / "neighbour").read_text() == "theirs"
    assert (shelf.path.parent / "outputs").is_dir()


def names(shelf):
    return {path.name for path in shelf.path.parent.iterdir()}


def test_what_was_put_is_current_and_nobody_elses_to_read(shelf):
    assert shelf.current() is None
    shelf.put(kept("one"))
    assert shelf.current() == kept("one")
    assert {path.stat().st_mode & 0o777 for path in shelf.path.parent.glob(FILE + "*")} == {0o600}


def test_no_moment_of_a_replacement_shows_one_entry_with_the_others_sidecar(shelf):
    shelf.put(kept("one"))
    sidecar = kept("two").sidecar
    (shelf.path.parent / f"{FILE}.{sidecar.digest[:16]}.json").write_bytes(sidecar.encoded())  # the other writer is half way
    assert shelf.current() == kept("one")
    shelf.put(kept("two"))
    assert shelf.current() == kept("two")


@pytest.mark.parametrize("damage", ["truncated", "empty", "other bytes", "no sidecar", "torn sidecar", "mode"])
def test_what_is_broken_is_set_aside_alone(shelf, damage):
    shelf.put(kept("one"))
    (sidecar,) = shelf.path.parent.glob("*.json")
    match damage:
        case "truncated":
            os.truncate(shelf.path, 2)
        case "empty":
            os.truncate(shelf.path, 0)
        case "other bytes":
            shelf.path.write_bytes(b"two")
        case "no sidecar":
            sidecar.unlink()
        case "torn sidecar":
            os.truncate(sidecar, 20)
        case "mode":
            shelf.path.chmod(0o644)
    there = shelf.path.read_bytes()
    with pytest.raises(Unusable):
        shelf.current()
    (aside,) = shelf.path.parent.glob(f"*.{BROKEN}")
    assert aside.read_bytes() == there
    assert shelf.current() is None


def test_a_link_is_not_followed_and_what_it_leads_to_stays(shelf, tmp_path):
    elsewhere = EntryShelf(tmp_path / "elsewhere" / FILE)
    elsewhere.put(kept("planted"))
    shelf.path.symlink_to(elsewhere.path)
    with pytest.raises(Unusable):
        shelf.current()
    assert elsewhere.current() == kept("planted")
    assert shelf.current() is None


def test_where_everybody_may_write_nothing_is_read_and_nothing_saved(shelf):
    shelf.put(kept("one"))
    shelf.path.parent.chmod(0o777)
    with pytest.raises(Unusable, match="others may write"):
        shelf.current()
    assert shelf.path.exists()
    shelf.path.parent.chmod(0o700)


def test_a_stale_entry_is_found_again_when_it_fits_again(shelf):
    shelf.put(kept("one"))
    assert shelf.set_aside(kept("one"), STALE) in names(shelf)
    shelf.put(kept("two"))
    assert list(shelf.earlier()) == [kept("one")]
    shelf.put(kept("one"))
    assert (shelf.current(), list(shelf.earlier())) == (kept("one"), [])


def test_an_entry_that_another_process_has_put_meanwhile_is_not_set_aside(shelf):
    shelf.put(kept("one"))
    shelf.put(kept("two"))
    shelf.set_aside(kept("one"), STALE)
    assert shelf.current() == kept("two")


def test_what_is_set_aside_is_bounded(shelf):
    for number in range(3 * KEPT):
        shelf.put(kept(str(number)))
        shelf.set_aside(kept(str(number)), STALE)
    assert len(list(shelf.earlier())) == KEPT
    assert kept(str(3 * KEPT - 1)) in shelf.earlier()
    assert len(list(shelf.path.parent.glob("*.json"))) <= 2 * KEPT
