"""Make the completion scripts of npgxctl anew: ``python -m tools.completions`` (needs shtab, a development dependency)."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from npgxd.cli.completion import SHELLS
from npgxd.cli.main import build_parser

PLACE: Final = Path(__file__).parents[1] / "npgxd/cli/completions"


def made(shell: str) -> str:
    """The script for one shell, as the parser is now."""
    import shtab  # noqa: PLC0415 -- only who makes them needs it

    text: str = shtab.complete(build_parser(), shell=shell)
    return "\n".join(line.rstrip() for line in text.splitlines()).rstrip() + "\n"


def main() -> None:
    """Write them where the package has them."""
    PLACE.mkdir(exist_ok=True)
    for shell in SHELLS:
        (PLACE / f"npgxctl.{shell}").write_text(made(shell), encoding="utf-8")
        print(PLACE / f"npgxctl.{shell}")


if __name__ == "__main__":
    main()
