"""Verifying the compile cache: every part of every entry, and the catalog against the files. Bit by bit, as the rest of ``verify``."""

from __future__ import annotations

import os
from functools import partial
from typing import TYPE_CHECKING, Final

from npgxd.errors import StoreError
from npgxd.oplib.sweeping import Step
from npgxd.store.artifact_file import read_facts, read_part

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from npgxd.oplib.checking import Findings
    from npgxd.store.artifacts import ArtifactStore

    Add = Callable[[Findings, str, str, str, str, Callable[[], object]], None]
_WHAT: Final = "compile cache"
ASIDE: Final = "set aside in the quarantine"


def check_artifacts(store: ArtifactStore, found: Findings, add: Add) -> Generator[Step, None, None]:
    """Look at every entry; ``add`` notes a problem with its remedy. What is published or removed meanwhile is no problem."""
    there = dict(store.files())
    for entry, path in sorted(there.items()):
        yield Step(_WHAT, found.artifacts, len(there))
        problem = yield from _problem(path, found)
        if not os.path.lexists(path):
            continue
        found.artifacts += 1
        row = store.rows.get(entry)
        if problem:
            add(found, "artifact_damaged", entry, problem, ASIDE, partial(store.set_aside, entry, problem))
        elif row is None:
            add(found, "artifact_unlisted", entry, "the catalog does not list it", "listed again", partial(store.adopt, path))
        else:
            facts = read_facts(path)
            if (row.digest, row.size, row.scope, row.key) != (facts.digest, facts.size, facts.scope, facts.key):
                told = "the catalog says other things of it than its file"
                add(found, "row_stale", entry, told, "listed anew", partial(store.adopt, path))
    for entry in sorted(store.rows.ids() - there.keys()):
        if not os.path.lexists(store.path(entry)):
            add(found, "row_stale", entry, "its file is gone", "dropped", partial(store.remove, [entry]))


def _problem(path: Path, found: Findings) -> Generator[Step, None, str]:
    """What is wrong with a file; empty if nothing is."""
    try:
        facts = read_facts(path)
        for part in range(len(facts.parts)):
            found.bytes += len(read_part(path, facts, part)[0])
            yield Step(_WHAT, found.artifacts, 0)
    except StoreError as error:
        if error.no_means:
            raise
        return error.message
    return ""
