"""Acts of a store that come to where they can only wait for the disk: who calls them decides whether it waits itself.

Such an act is a generator.  What it yields touches nothing but the disk, so that any thread may do it, and is done, whole, before the
generator is asked for more: the order of all acts is the generator's, whoever does them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import closing
from typing import TypeVar

T = TypeVar("T")
Waits = Generator[Callable[[], None], None, T]
"""Yields what is to be done before it goes on, and comes to a result; StoreError where the disk fails."""


def at_once(acts: Waits[T]) -> T:
    """Do all of it here, and wait."""
    with closing(acts):
        while True:
            try:
                wait = next(acts)
            except StopIteration as end:
                result: T = end.value
                return result
            wait()
