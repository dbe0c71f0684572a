"""Runs a scenario under the recorder, then looks at every state that a power loss may have left."""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.store import disk
from tests.crash.model import Enumerated, Recorder, crashes, materialise

if TYPE_CHECKING:
    import pytest

    from tests.crash.scenarios import Scenario

SHOWN = 5


@dataclass(slots=True)
class Looked:
    """What came of a scenario: how its states were chosen, and what was wrong with which."""

    told: Enumerated = field(default_factory=Enumerated)
    wrong: list[str] = field(default_factory=list)
    strangers: list[str] = field(default_factory=list)


def look(scenario: Scenario, seed: str, patch: pytest.MonkeyPatch, *, per_moment: int) -> Looked:
    """Everything that is wrong, with the story of how it came about."""
    looked = Looked()
    memory = Path("/dev/shm")  # thousands of fsyncs that nobody needs there; any directory would do
    with tempfile.TemporaryDirectory(prefix="npgxd-crash-", dir=memory if os.access(memory, os.W_OK) else None) as name:
        place = Path(name)
        root = place / "real"
        root.mkdir()
        scenario.prepare(root)
        recorder = Recorder(root)
        with patch.context() as patched:
            patched.setattr(disk, "os", recorder)
            scenario.act(root, recorder.mark)
        looked.strangers = recorder.strangers()
        for number, crash in enumerate(crashes(recorder, per_moment=per_moment, seed=seed, told=looked.told)):
            found = place / f"{number}"
            found.mkdir()
            materialise(crash, found)
            try:
                problems = scenario.check(found, crash.marks)
            except Exception as error:  # noqa: BLE001 -- whatever it is, it is a finding, and it needs its story
                problems = [f"{type(error).__name__}: {error}"]
            if problems:
                looked.wrong.append(f"{crash.story}; acknowledged {sorted(crash.marks)}: {problems}")
            shutil.rmtree(found)
    return looked
