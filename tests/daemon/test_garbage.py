"""Garbage in cycles, in a process of its own: nothing of it stays, and what the daemon consists of is not gone through again and again."""

from __future__ import annotations

import subprocess
import sys

BEGIN = """
import gc, weakref
from npgxd.daemon import garbage
from npgxd.daemon.garbage import Garbage

class Thing:
    pass

def cycle():
    thing = Thing()
    thing.itself = thing
    return weakref.ref(thing)

def make_some():
    return [[] for _ in range(9000)]  # some of each search's are kept

searched = []
gc.callbacks.append(lambda phase, facts: phase == "stop" and facts["generation"] == 2 and searched.append(facts))
one = Garbage()
one.begin(0.0)
kept = []
"""


def run(program: str) -> None:
    done = subprocess.run([sys.executable, "-c", BEGIN + program], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_python_does_not_search_everything_by_itself_and_an_idle_moment_is_asked_for() -> None:
    run("""
while not one.overdue:
    assert not searched
    was = one.due
    kept.append(make_some())
    assert one.due or not was
""")


def test_garbage_among_what_is_new_goes_at_an_idle_moment_and_in_a_daemon_that_has_none() -> None:
    run("""
for idle in (True, False):
    lost = cycle()
    one.collect(1.0, idle=idle)
    assert lost() is None
""")


def test_what_was_put_aside_and_became_garbage_later_goes_when_what_is_kept_has_grown_or_after_a_while() -> None:
    run("""
for grow in (True, False):
    things = [Thing() for _ in range(1000)]
    one.collect(2.0, idle=True)
    for thing in things:
        thing.itself = thing
    lost = weakref.ref(things[0])
    del things, thing
    one.collect(3.0, idle=True)
    assert lost() is not None, "it was put aside"
    if grow:
        kept += [[] for _ in range(3 * gc.get_freeze_count())]
        one.collect(4.0, idle=False)
    else:
        one.collect(4.0 + garbage.WHOLE_S, idle=True)
    assert lost() is None
""")


def test_a_search_goes_through_what_is_new_alone() -> None:
    run("""
kept += [[] for _ in range(100_000)]
one.collect(1.0, idle=True)
assert len(gc.get_objects()) < 5000
kept += [[] for _ in range(100)]
one.collect(2.0, idle=True)
assert len(gc.get_objects()) < 5000
""")
