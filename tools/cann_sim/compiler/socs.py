"""The SoCs that the simulation knows: family and full core counts (docs/cann.md, the run package)."""

from __future__ import annotations

from typing import NamedTuple


class Soc(NamedTuple):
    """One SoC: the family that names its directories, and how many cores of each kind a whole chip has."""

    name: str
    family: str
    vector_cores: int
    cube_cores: int


def _socs() -> dict[str, Soc]:
    cores_of_family = {"ascend910": (32, 32), "ascend310p": (8, 8), "ascend950": (64, 32)}
    table: dict[str, Soc] = {}
    for name, vector, cube in (
        ("Ascend910B1", 48, 24),
        ("Ascend910B2", 48, 24),
        ("Ascend910B2C", 48, 24),
        ("Ascend910B3", 40, 20),
        ("Ascend910B4", 40, 20),
        ("Ascend910B4-1", 40, 20),
    ):
        table[name] = Soc(name, "ascend910b", vector, cube)
    for suffix, vector, cube in (("62", 40, 20), ("72", 40, 20), ("81", 48, 24), ("82", 48, 24), ("91", 48, 24), ("92", 48, 24)):
        table[f"Ascend910_93{suffix}"] = Soc(f"Ascend910_93{suffix}", "ascend910_93", vector, cube)
    for family, names in (
        ("ascend910", ("Ascend910A", "Ascend910B", "Ascend910ProA", "Ascend910ProB", "Ascend910PremiumA")),
        ("ascend310p", ("Ascend310P1", "Ascend310P3", "Ascend310P5", "Ascend310P7")),
    ):
        for name in names:
            table[name] = Soc(name, family, *cores_of_family[family])
    return table


SOCS = _socs()


def find_soc(name: str) -> Soc:
    """The SoC called ``name``; LookupError lists what is known. Every ``Ascend950...`` is of one family."""
    if name in SOCS:
        return SOCS[name]
    if name.startswith("Ascend950"):
        return Soc(name, "ascend950", 64, 32)
    raise LookupError(f"unknown soc_version {name!r}; known: {', '.join(sorted(SOCS))}, Ascend950*")
