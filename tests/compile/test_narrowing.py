from __future__ import annotations

import math
import random

import pytest

from npgxd.compile.narrowing import Seen, narrow


def test_what_was_at_work_is_suspected_and_the_rest_goes_free() -> None:
    split = narrow({"done": Seen.FINISHED, "a": Seen.WORKING, "b": Seen.WORKING, "c": Seen.WORKING, "later": Seen.UNTOUCHED})
    assert split.free == ("done", "later")
    assert split.parts == (("a", "b"), ("c",))


def test_between_two_kernels_those_that_had_not_begun_are_suspected() -> None:
    split = narrow({"done": Seen.FINISHED, "a": Seen.UNTOUCHED, "b": Seen.UNTOUCHED})
    assert (split.free, split.parts) == (("done",), (("a",), ("b",)))


@pytest.mark.parametrize("seen", [Seen.FINISHED, Seen.UNTOUCHED])
def test_without_evidence_nobody_is_suspected(seen: Seen) -> None:
    assert narrow({"a": seen, "b": seen}).parts == ()


@pytest.mark.parametrize("size", [2, 16, 431])
def test_one_culprit_is_found_in_about_log2_runs_and_everybody_else_is_compiled(size: int) -> None:
    rng = random.Random(size)
    processes = 16
    culprit, waiting, runs, compiled = rng.randrange(size), [list(range(size))], 0, set()
    while waiting:
        batch = waiting.pop(0)
        runs += 1
        if culprit not in batch:
            compiled |= set(batch)
            continue
        if len(batch) == 1:
            continue
        at = batch.index(culprit)
        seen = {
            str(one): Seen.FINISHED if n < at - processes else Seen.WORKING if n <= at else Seen.UNTOUCHED
            for n, one in enumerate(batch)
        }
        split = narrow(seen)
        waiting += [[int(key) for key in part] for part in (split.free, *split.parts) if part]
    assert compiled == set(range(size)) - {culprit}
    assert runs <= 2 * math.ceil(math.log2(min(size, processes + 1))) + 6
