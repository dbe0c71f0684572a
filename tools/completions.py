"""Make the completion scripts of npgxctl anew: ``python -m tools.completions`` (needs shtab, a development dependency)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.cli.completion import SHELLS
from npgxd.cli.main import build_parser

if TYPE_CHECKING:
    from collections.abc import Iterator

_PLACES: Final = {"PATH": "FILE", "FILE": "FILE", "DIR": "DIRECTORY"}
"""metavar -> shtab's name for what completes it."""
PLACE: Final = Path(__file__).parents[1] / "npgxd/cli/completions"


def made(shell: str) -> str:
    """The script for one shell, as the parser is now."""
    import shtab  # noqa: PLC0415 -- only who makes them needs it

    parser = build_parser()
    for action in _actions(parser):
        place = _PLACES.get(str(action.metavar))
        if place is not None:  # an attribute of its own is where shtab looks
            action.complete = getattr(shtab, place)  # type: ignore[attr-defined]
    text: str = shtab.complete(parser, shell=shell)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Of the parser and of those of its commands."""
    for action in parser._actions:  # noqa: SLF001 -- argparse has no other way to see them
        yield action
        if isinstance(action, argparse._SubParsersAction):  # noqa: SLF001 -- as above
            for each in action.choices.values():
                yield from _actions(each)


def main() -> None:
    """Write them where the package has them."""
    PLACE.mkdir(exist_ok=True)
    for shell in SHELLS:
        (PLACE / f"npgxctl.{shell}").write_text(made(shell), encoding="utf-8")
        print(PLACE / f"npgxctl.{shell}")


if __name__ == "__main__":
    main()
