"""With a shared root the client loads from its own default root, and only if that is the daemon's."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from npgxd.client.default_root import MARKER, RootDiffers, check_root, default_root
from npgxd.wire import messages as m
from npgxd.wire.states import ClientState, Reason, Strategy

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npgxd.client import Client
    from tests.client.fake_daemon import FakeDaemon

RECORDS = [("Add_1.json", b'{"op_type": "Add"}')]
ROOT = "0123456789abcdef" * 2


@pytest.fixture
def opp(tmp_path: Path, environ: dict[str, str]) -> Path:
    """This process's root, with the daemon's marker."""
    path = tmp_path / "opp"
    (path / MARKER).parent.mkdir(parents=True)
    (path / MARKER).write_text(f"{ROOT}\n")
    environ["ASCEND_OPP_PATH"] = str(path)
    return path


def served(fake: Callable[..., FakeDaemon]) -> FakeDaemon:
    daemon = fake()
    daemon.result = replace(daemon.result, strategy=Strategy.SHARED_ROOT, root=ROOT)
    return daemon


def test_the_set_is_leased_and_the_own_root_is_to_be_reselected(
    fake: Callable[..., FakeDaemon], client: Client, opp: Path
) -> None:
    daemon = served(fake)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.strategy, outcome.view, outcome.root) == (
        ClientState.INSTALLED,
        Strategy.SHARED_ROOT,
        None,
        opp,
    )
    assert len(daemon.leased) == 1


@pytest.mark.parametrize("what", ["another", "none", "a link"])
def test_another_root_than_the_daemons_is_told_and_not_said_to_be_loaded(
    fake: Callable[..., FakeDaemon], client: Client, opp: Path, what: str
) -> None:
    daemon = served(fake)
    marker = opp / MARKER
    if what == "another":
        marker.write_text("f" * 32)
    else:
        marker.rename(opp / "elsewhere")
    if what == "a link":
        marker.symlink_to(opp / "elsewhere")
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.reason) == (ClientState.DEGRADED, Reason.STORE_NOT_VISIBLE)
    assert str(opp) in outcome.detail
    assert outcome.root is None
    assert not daemon.leased
    assert not daemon.asked(m.Leased)


def test_a_process_without_cann_has_nothing_to_load(fake: Callable[..., FakeDaemon], client: Client) -> None:
    served(fake)
    outcome = client.static_kernels(RECORDS, graph="model")
    assert (outcome.state, outcome.view, outcome.root) == (ClientState.INSTALLED, None, None)


def test_the_default_root_is_the_runtimes(tmp_path: Path) -> None:
    told = {"ASCEND_HOME_PATH": str(tmp_path), "ASCEND_OPP_PATH": str(tmp_path / "opp")}
    assert default_root(told) == tmp_path / "opp"
    (tmp_path / "opp_latest").mkdir()
    assert default_root(told) == tmp_path / "opp_latest"
    assert default_root({}) is None
    with pytest.raises(RootDiffers, match="is not in"):
        check_root(tmp_path, ROOT)
