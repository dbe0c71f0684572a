"""One act on a state directory, as a process that strace can look at: ``python -m tests.crash.one_act STATE ACT``.

It prints ``acknowledged`` once the act has returned, and ends with 3 and the error's text where it was refused.
"""

# ruff: noqa: T201 -- it talks to the test that runs it
from __future__ import annotations

import os
import sys
from pathlib import Path

from npgxd.errors import StoreError
from tests.store.made import House, round_entry

REFUSED = 3


def main(state: str, act: str) -> int:
    house = House(Path(state), Path(state).parent / "scratch")
    try:
        if act == "accept":
            house.rounds.accept(round_entry())
        elif act == "publish":
            house.publish("a", b"A")
    except StoreError as error:
        print(error, file=sys.stderr)
        return REFUSED
    print("acknowledged", flush=True)
    os._exit(0)  # what SQLite tidies up at the end is no part of the act


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
