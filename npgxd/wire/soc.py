"""SoC names as ``aclrtGetSocName`` gives them, and the families that name CANN's directories (docs/cann.md)."""

from __future__ import annotations

import re
from typing import Final

from npgxd.errors import ToolchainError

_FAMILIES: Final[dict[str, tuple[str, ...]]] = {
    "ascend910b": ("Ascend910B1", "Ascend910B2", "Ascend910B3", "Ascend910B4", "Ascend910B4-1", "Ascend910B2C"),
    "ascend910_93": tuple(f"Ascend910_93{suffix}" for suffix in ("62", "72", "81", "82", "91", "92")),
    "ascend910": ("Ascend910A", "Ascend910B", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA"),
    "ascend310p": ("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7"),
}
_FAMILY_OF: Final = {soc: family for family, socs in _FAMILIES.items() for soc in socs}
_950: Final = re.compile(r"Ascend950[A-Za-z0-9_-]{0,32}")

SUPPORTED: Final = frozenset({"ascend910b", "ascend910_93"})
"""The families for which ``npugraph_ex`` has static kernels: Atlas A2 and A3."""


def soc_family(soc: str) -> str:
    """The family of the full SoC name ``soc``; ToolchainError for a name that is not known."""
    family = _FAMILY_OF.get(soc)
    if family is None and _950.fullmatch(soc):
        family = "ascend950"
    if family is None:
        meant = next((name for name in _FAMILY_OF if name.lower() == soc.lower()), "")
        known = f"use the full name that aclrtGetSocName gives; known: {', '.join(sorted(_FAMILY_OF))}, Ascend950*"
        raise ToolchainError(f"unknown SoC {soc[:64]!r}", hint=f"did you mean {meant}?" if meant else known, soc=soc[:64])
    return family


def is_supported(soc: str) -> bool:
    """Whether static kernels exist for this SoC; False also for an unknown name."""
    return _FAMILY_OF.get(soc) in SUPPORTED
