"""That the model notices what it is for: each of these breaks one promise of the disk, and is to be found out."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.store.disk import Disk
from tests.crash.looking import look
from tests.crash.scenarios import SCENARIOS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def no_fsync_of(wanted: Callable[[Path], bool]) -> Callable[[Disk, Path], None]:
    honest = Disk.fsync_directory

    def skip(self: Disk, path: Path) -> None:
        if not wanted(path):
            honest(self, path)

    return skip


def not_durable(self: Disk, path: Path, data: bytes, mode: int = 0o644, **how: Any) -> None:
    HONEST(self, path, data, mode, **{**how, "durable": False})


HONEST = Disk.write_file
BREAKS: dict[str, tuple[str, str, Any]] = {
    "no fsync of any directory": ("publish", "fsync_directory", no_fsync_of(lambda _path: True)),
    "no fsync of a shelf": ("publish", "fsync_directory", no_fsync_of(lambda path: path.parent.name == "kernels")),
    "no fsync of kernels/": ("publish", "fsync_directory", no_fsync_of(lambda path: path.name == "kernels")),
    "no fsync of what was staged": ("publish", "fsync_tree", lambda _self, _path: None),
    "no fsync of a manifest": ("publish", "fsync_file", lambda _self, _path: None),
    "no fsync of rounds/": ("journal", "fsync_directory", no_fsync_of(lambda path: path.name == "rounds")),
    "no fsync of a round": ("journal", "write_file", not_durable),
    "no fsync above the state directory": ("creation", "fsync_directory", no_fsync_of(lambda path: path.name == "real")),
    "no fsync of packages/": ("package", "fsync_directory", no_fsync_of(lambda path: path.name == "packages")),
    "no fsync of what goes": ("removal", "fsync_directory", no_fsync_of(lambda path: path.name.startswith("dropped-"))),
    "no fsync beside pins/": ("removal", "fsync_directory", no_fsync_of(lambda path: path.name == "state")),
}


@pytest.mark.parametrize("what", sorted(BREAKS))
def test_a_broken_promise_of_the_disk_is_found_out(
    what: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL)
    scenario, method, broken = BREAKS[what]
    monkeypatch.setattr(Disk, method, broken)
    assert look(SCENARIOS[scenario](), what, monkeypatch, per_moment=12, until_wrong=True).wrong
