"""What a program imports stays: nobody is to search it for garbage, which takes a third of the time of one that imports torch and ends."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def uncollected() -> Iterator[None]:
    """No search while it is imported, and none through it ever after; whatever comes later is searched as always.

    ``gc.freeze()`` at a program's end does the same for the search at its exit, if it has imported something since.
    """
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()
        gc.freeze()
