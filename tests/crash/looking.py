"""Runs a scenario under the recorder, then looks at every state that a power loss may have left."""

from __future__ import annotations

import contextlib
import gc
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.store import disk
from tests.crash.model import Crash, Enumerated, crashes, materialise
from tests.crash.recording import Killed, Recorder, path_of
from tests.memory import room_in_memory

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pytest

    from tests.crash.scenarios import Scenario

SHOWN = 5
MOST_ACTS = 2000


@dataclass(slots=True)
class Looked:
    """What came of a scenario: how its states were chosen, and what was wrong with which."""

    told: Enumerated = field(default_factory=Enumerated)
    wrong: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)


def look(scenario: Scenario, seed: str, patch: pytest.MonkeyPatch, *, per_moment: int, until_wrong: bool = False) -> Looked:
    """Every moment of one life: everything that is wrong, with the story of how it came about.

    With ``until_wrong`` the first thing that is wrong is enough.
    """
    looked = Looked()
    with memory_directory() as place:
        recorder = _prepared(scenario, place)
        with patch.context() as patched:
            patched.setattr(disk, "os", recorder)
            scenario.act(recorder.root, recorder.mark)
        looked.strangers = recorder.strangers()
        found = crashes(recorder, per_moment=per_moment, seed=seed, told=looked.told)
        _look_at_all(looked, scenario, place, found, until_wrong=until_wrong)
    return looked


def look_at_two_lives(
    scenario: Scenario, seed: str, patch: pytest.MonkeyPatch, *, per_moment: int, stride: int, until_wrong: bool = False
) -> Looked:
    """The first life is killed at each ``stride``-th act, the next does it all again, and then the power fails.

    What the first one did not force to the disk is still not there, unless the second has seen to it.  With ``until_wrong`` the first
    thing that is wrong is enough.
    """
    looked = Looked()
    for kill_at in range(1, MOST_ACTS, stride):
        with memory_directory() as place:
            recorder = _prepared(scenario, place)
            recorder.lives = kill_at
            with patch.context() as patched:
                patched.setattr(disk, "os", recorder)
                try:
                    scenario.act(recorder.root, recorder.mark)
                except Killed:
                    _let_go_of_locks(recorder.root)
                else:
                    return looked
                since, recorder.lives = len(recorder.events), float("inf")
                scenario.act(recorder.root, recorder.mark)
            found = crashes(recorder, per_moment=per_moment, seed=f"{seed} {kill_at}", told=looked.told, since=since)
            _look_at_all(looked, scenario, place, found, f"killed before act {kill_at}, then ", until_wrong=until_wrong)
        if until_wrong and looked.wrong:
            return looked
    raise AssertionError(f"more than {MOST_ACTS} acts")


def memory_directory() -> tempfile.TemporaryDirectory[str]:
    """A new directory, in memory if there is a place for it."""
    return tempfile.TemporaryDirectory(prefix="npgxd-crash-", dir=room_in_memory())


def _prepared(scenario: Scenario, place: str) -> Recorder:
    root = Path(place, "real")
    root.mkdir()
    scenario.prepare(root)
    return Recorder(root)


def _look_at_all(
    looked: Looked, scenario: Scenario, place: str, found: Iterable[Crash], before: str = "", *, until_wrong: bool
) -> None:
    for number, crash in enumerate(found):
        root = Path(place, f"{number}")
        root.mkdir()
        materialise(crash, root)
        try:
            problems = scenario.check(root, crash.marks)
        except Exception as error:  # noqa: BLE001 -- whatever it is, it is a finding, and it needs its story
            problems = [f"{type(error).__name__}: {error}"]
        if problems:
            looked.wrong.append(f"{before}{crash.story}; acknowledged {sorted(crash.marks)}: {problems}")
            if until_wrong:
                return
        shutil.rmtree(root)


def _let_go_of_locks(root: Path) -> None:
    """As the end of a process does."""
    gc.collect()
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            if path_of(int(link.name)) == f"{root}/state/instance.lock":
                os.close(int(link.name))
