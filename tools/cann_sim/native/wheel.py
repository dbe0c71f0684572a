"""The installed torch_npu wheel: where it is, its headers, and what its libraries want of CANN's. It is never imported."""

from __future__ import annotations

import mmap
import re
import subprocess
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

_ACLNN: Final = re.compile(rb"(?<![A-Za-z0-9_])(aclnn[A-Z][A-Za-z0-9]*)GetWorkspaceSize(?![A-Za-z0-9_])")
_CANN: Final = re.compile(r"(?:acl|rt(?=[A-Z])|Hccl|Msprof|_Z\w*N2ge|_Z\w*N4gert)\w*")
"""C functions of CANN, and members of its C++ namespaces ge and gert."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """``root`` is the directory of the package torch_npu."""

    root: Path

    @property
    def headers(self) -> Path:
        """CANN's public headers, as the wheel has them."""
        return self.root / "include" / "third_party" / "acl" / "inc"

    def libraries(self) -> list[Path]:
        """Every shared library in the wheel."""
        return sorted(self.root.rglob("*.so"))

    def needed_symbols(self) -> tuple[str, ...]:
        """What must exist for the wheel to be loaded: symbols of CANN that some library lacks and none defines."""
        lacking: set[str] = set()
        defined: set[str] = set()
        for library in self.libraries():
            lacking |= _symbols(library, "--undefined-only")
            defined |= _symbols(library, "--defined-only")
        return tuple(sorted(name for name in lacking - defined if _CANN.fullmatch(name)))

    def operators(self) -> tuple[str, ...]:
        """The aclnn operators that the wheel may look up by name at run time."""
        path = self.root / "lib" / "libtorch_npu.so"
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return tuple(sorted({found.decode() for found in _ACLNN.findall(content)}))


def find_wheel() -> Wheel:
    """The torch_npu that this interpreter would import; LookupError where there is none with CANN's headers in it."""
    spec = find_spec("torch_npu")
    if spec is None or spec.origin is None:
        raise LookupError("torch_npu is not installed for this interpreter; pip install the npu dependency group first")
    wheel = Wheel(Path(spec.origin).parent)
    if not (wheel.headers / "acl" / "acl.h").is_file():
        raise LookupError(f"{wheel.root} has no {wheel.headers.relative_to(wheel.root)}/acl/acl.h; torch_npu 2.13 wheels have it")
    return wheel


def _symbols(library: Path, which: str) -> set[str]:
    lines = subprocess.run(["nm", "-D", which, str(library)], capture_output=True, text=True, check=True).stdout.splitlines()
    return {line.split()[-1].partition("@")[0] for line in lines if line.strip()}
