"""From records to needs: what ranks ask for alike is kept once, and never across users, options, names or fingerprints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npgxd.daemon.keeping.keyer import MISSING_S, REFRESH_S
from npgxd.daemon.telling.status import StatusPage
from npgxd.wire.messages import CompileOptions
from tests.compile.conftest import until
from tools.cann_sim import records

if TYPE_CHECKING:
    import pytest

RAW = [(f"{size}.json", records.encode(records.matmul(size, 32, 64))) for size in (16, 32)]


def needs(parts, uid: int = 0, raw: list[tuple[str, bytes]] = RAW, **options: str):
    parsed, rejected = parts.keyer.parse(raw)
    assert not rejected
    return parts.keyer.needs(parsed, CompileOptions(super_kernel=options), uid)


def test_ranks_of_one_user_that_ask_for_the_same_share_their_needs(parts) -> None:
    first, second = needs(parts), needs(parts)
    assert all(one is other for one, other in zip(first, second, strict=True))
    rounds = [parts.submit(parts.session(), 16, 32) for _ in range(2)]
    (one, other) = (list(taken.needs.values()) for taken in rounds)
    assert all(mine is theirs for mine, theirs in zip(one, other, strict=True))


def test_needs_are_not_shared_where_anything_differs(parts, monkeypatch: pytest.MonkeyPatch) -> None:
    (mine, _) = needs(parts)
    (other_user, _) = needs(parts, uid=1)
    assert (other_user.uid, other_user.key) == (1, mine.key)
    (other_options, _) = needs(parts, enable="1")
    assert other_options.key != mine.key
    assert other_options.options.super_kernel == {"enable": "1"}
    (other_name,) = needs(parts, raw=[("another.json", RAW[0][1])])
    assert (other_name.record.name, other_name.key) == ("another.json", mine.key)
    monkeypatch.setattr(parts.keyer, "fingerprint", lambda _op_type: "f" * 64)
    (moved, _) = needs(parts)
    assert moved.fingerprint == "f" * 64
    assert moved.key != mine.key


def test_the_needs_that_are_remembered_are_bounded(parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npgxd.daemon.keeping.keyer.MAX_NEEDS", 3)
    for uid in range(5):
        needs(parts, uid=uid)
    assert len(parts.keyer._needs) == 3
    large = records.matmul(16, 32, 64)
    large["inputs"][0]["const_data"] = "1" * 5000
    (one,), (other,) = (needs(parts, raw=[("large.json", records.encode(large))]) for _ in range(2))
    assert one == other
    assert one is not other, "one record of any size could be kept as often"
    assert [need.uid for need in needs(parts, uid=0)] == [0, 0]


def test_a_cann_that_is_gone_or_was_put_back_is_noticed_by_whoever_asks_for_the_status_with_no_rank(parts) -> None:
    """A probe that waits for it would else wait for a rank, which waits for the probe."""
    page = StatusPage(parts.config, "0" * 32, parts.stores, parts.keyer, parts.sessions, parts.coordinator, parts.dispatcher)
    home, now = parts.cann.home, iter(range(int(2 * REFRESH_S) + 1, 10**6, int(MISSING_S) + 1))
    away = home.rename(home.with_name("away"))
    assert "does not exist. put it back" in page.document(next(now))["toolchain"]["problem"]
    away.rename(home)
    until(lambda: page.document(next(now))["toolchain"]["problem"] == "", "it is found")
