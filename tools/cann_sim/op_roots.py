"""Writing the op roots of a simulated home: implementation files, headers, tiling libraries and the op tables."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from tools.cann_sim.ops import BUILT_IN, VENDOR, VENDOR_NAME, Group, file_name

if TYPE_CHECKING:
    from collections.abc import Iterable

_TBE = Path("op_impl/ai_core/tbe")
_TILING = Path("op_tiling/lib/linux/x86_64")
_COMMON = "simulated_pipe.h"


def write_op_roots(opp: Path, *, version: str, families: Iterable[str]) -> None:
    """Fill ``opp`` with the built-in ops and those of the vendor ``acme``, which comes first in the search order."""
    families = tuple(families)
    _write_root(opp / "built-in", BUILT_IN, version, families)
    _write_root(opp / "vendors" / VENDOR_NAME, VENDOR, version, families)
    for group in VENDOR:
        for op_type in group.ops:
            _write_kernel_objects(opp / "vendors" / VENDOR_NAME / _TBE, op_type, version, families)
    (opp / "vendors" / "config.ini").write_text(f"load_priority={VENDOR_NAME}\n")
    (opp / "vendors" / VENDOR_NAME / "version.info").write_text("custom_opp_compiler_version=1.4.0\n")


def _write_root(root: Path, groups: tuple[Group, ...], version: str, families: tuple[str, ...]) -> None:
    tbe = root / _TBE
    common = tbe / "impl" / "ascendc" / "common"
    common.mkdir(parents=True)
    (tbe / _TILING).mkdir(parents=True)
    (common / _COMMON).write_text(f"// simulated: data movement shared by every op of CANN {version}\n#pragma once\n")
    for group in groups:
        header = common / group.header
        header.write_text(f'// simulated: shared by the ops that include it\n#pragma once\n#include "{_COMMON}"\n')
        (tbe / _TILING / group.library).write_bytes(_library(group.library, version))
        for op_type in group.ops:
            _write_op(tbe, op_type, file_name(op_type), group.header)
    for family in families:
        directory = tbe / "config" / family
        directory.mkdir(parents=True)
        (directory / f"aic-{family}-ops-info.json").write_text(_ops_info(groups))


@cache
def _ops_info(groups: tuple[Group, ...]) -> str:
    """The table of a root's ops; kept, since tests make hundreds of homes."""
    table = {
        op_type: {
            "opFile": {"value": file_name(op_type)},
            "opInterface": {"value": file_name(op_type)},
            "tilingLib": {"value": group.library},
            "dynamicShapeSupport": {"flag": "true"},
        }
        for group in groups
        for op_type in group.ops
    }
    return json.dumps(table, indent=2, sort_keys=True)


def _write_op(tbe: Path, op_type: str, name: str, header: str) -> None:
    (tbe / "impl" / f"{name}.py").write_text(
        f'"""{op_type}: simulated implementation."""\n\n\ndef {name}(*tensors, **attrs):\n    ...\n'
    )
    directory = tbe / "impl" / "ascendc" / name
    directory.mkdir()
    source = f'// {op_type}: simulated kernel\n#include "../common/{header}"\nextern "C" __global__ void {name}() {{}}\n'
    (directory / f"{name}.cpp").write_text(source)


def _write_kernel_objects(tbe: Path, op_type: str, version: str, families: tuple[str, ...]) -> None:
    """The compiled dynamic kernel that a vendor ships beside its source."""
    for family in families:
        directory = tbe / "kernel" / family / file_name(op_type)
        directory.mkdir(parents=True)
        (directory / f"{op_type}.o").write_bytes(_library(f"{op_type} for {family}", version))
        (directory / f"{op_type}.json").write_text(json.dumps({"kernelName": op_type, "simulated": True}, indent=2))


@cache
def _library(name: str, version: str) -> bytes:
    """Bytes that stand for a shared library; never loaded."""
    return b"\x7fELF simulated " + name.encode() + b"\n" + hashlib.shake_256(f"{name} {version}".encode()).digest(8192)
