"""Compiling the simulated libraries, once for each state of their sources, and linking them into a simulated CANN home."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Final

from filelock import FileLock

from tools.cann_sim.native.wheel import Wheel, find_wheel

if TYPE_CHECKING:
    from tools.cann_sim.home import SimulatedCann

_SOURCE: Final = Path(__file__).parent / "source"
_CACHE: Final = Path(__file__).parents[3] / "build" / "cann_sim_native"
_FLAGS: Final = (
    *("-std=c++20", "-O2", "-fPIC", "-Wall", "-Wextra"),
    "-Wno-maybe-uninitialized",  # GCC 12 is wrong about std::variant
)
_WITH_PATH: Final = "with_path.cpp"
"""The one source whose functions only some CANN versions have."""
_ALIASES: Final = (
    *("libhccl", "libge_runner", "libgraph", "libacl_op_compiler", "libacl_tdt_channel", "libopapi", "libnnopbase"),
    *("libascend_dump", "libhcomm", "libfmk_parser", "libascend_protobuf"),
)
"""Libraries that the wheel needs by name, or opens; all of their code is in libascendcl."""


class BuildFailed(RuntimeError):
    """A tool is missing, or a source does not compile; the message has the tool's own words."""


def build(cann: SimulatedCann, wheel: Wheel | None = None) -> Path:
    """Put the libraries into ``cann``'s ``lib64``, for ``wheel`` (default: the installed torch_npu); that directory.

    Objects are compiled once for a state of the sources, the compiler and the wheel, and kept under ``build/``; processes that
    build at the same time wait for one another.

    Raises:
        LookupError: torch_npu is not installed.
        BuildFailed: there is no compiler, or it fails.
    """
    wheel = wheel or find_wheel()
    compiled = objects(wheel)
    target = cann.home / "lib64"
    constants = _compile_text(_constants(cann), target / "constants.cpp")
    chosen = [path for path in sorted(compiled.glob("*.o")) if path.stem != _WITH_PATH or _has_with_path(cann.version)]
    _link(target / "libascendcl.so", [*chosen, constants])
    for name in _ALIASES:
        _link(target / f"{name}.so", [target / "libascendcl.so"], "-Wl,--no-as-needed", "-Wl,-rpath,$ORIGIN")
    for part in ("runtime", "compiler"):
        (cann.home / part).mkdir(exist_ok=True)
        if not (cann.home / part / "lib64").is_symlink():
            (cann.home / part / "lib64").symlink_to("../lib64")
    return target


def objects(wheel: Wheel) -> Path:
    """A directory with an object for every source, and one for what the wheel needs besides; raises as ``build`` does.

    This is what takes time, and needs no home: it can be done beforehand.
    """
    for tool, package in (("g++", "g++"), ("nm", "binutils")):
        if shutil.which(tool) is None:
            raise BuildFailed(f"{tool} is not on PATH: the simulated libascendcl is C++; install {package} (apt-get install g++)")
    directory = _CACHE / _state(wheel)
    directory.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{directory}.lock"):
        if not directory.is_dir():
            staging = directory.with_name(f"{directory.name}.{os.getpid()}")
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir()
            _compile_all(wheel, staging)
            staging.rename(directory)
    return directory


def _compile_all(wheel: Wheel, directory: Path) -> None:
    others = directory / "others.cpp"
    others.write_text(_others(wheel))
    sources = [*sorted(_SOURCE.glob("*.cpp")), others]
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        for _ in pool.map(lambda source: _compile(source, directory / f"{source.name}.o", wheel.headers), sources):
            pass


def _compile(source: Path, target: Path, headers: Path | None = None) -> Path:
    include = ["-isystem", str(headers)] if headers else []
    _run("g++", *_FLAGS, "-I", str(_SOURCE), *include, "-c", str(source), "-o", str(target))
    return target


def _compile_text(text: str, source: Path) -> Path:
    source.write_text(text)
    return _compile(source, source.with_suffix(".o"))


def _link(target: Path, inputs: list[Path], *options: str) -> None:
    new = target.with_suffix(".new")
    _run("g++", "-shared", *options, *(str(path) for path in inputs), f"-Wl,-soname,{target.name}", "-o", str(new))
    new.replace(target)


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise BuildFailed(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def _state(wheel: Wheel) -> str:
    """Everything that decides the objects."""
    version = subprocess.run(["g++", "--version"], capture_output=True, check=True).stdout
    whole = hashlib.sha256(version + repr(_FLAGS).encode())
    for path in (*sorted(_SOURCE.iterdir()), Path(__file__), wheel.root / "version.py"):
        whole.update(path.name.encode() + b"\0" + path.read_bytes())
    return whole.hexdigest()[:20]


def _constants(cann: SimulatedCann) -> str:
    """The home's own facts (source/version.h)."""
    soc = cann.soc
    return f"""// SIMULATED CANN: what this home is.
#include "version.h"

namespace sim {{
const char* const kVersion = "{cann.version}";
const char* const kSoc = "{soc.name}";
const char* const kFamily = "{soc.family}";
const int64_t kCubeCores = {soc.cube_cores};
const int64_t kVectorCores = {soc.vector_cores};
}}  // namespace sim
"""


def _others(wheel: Wheel) -> str:
    """Weak definitions, so that the sources' own win: operators that are refused by name, and functions that do nothing."""
    refused = "\n".join(
        f'extern "C" [[gnu::weak]] int {name}GetWorkspaceSize() {{ return sim::not_computed("{name}"); }}\n'
        f'extern "C" [[gnu::weak]] int {name}() {{ return sim::not_computed("{name}"); }}'
        for name in wheel.operators()
    )
    nothing = "\n".join(f'extern "C" [[gnu::weak]] long {name}() {{ return 0; }}' for name in wheel.needed_symbols())
    return f'#include "refusing.h"\n\n{refused}\n\n{nothing}\n'


def _has_with_path(version: str) -> bool:
    """aclnnReselectStaticKernelWithPath came with 9.1.0; neither 9.0.x nor the 9.1.0 betas have it."""
    numbers, _, beta = version.partition("-")
    return tuple(int(part) for part in numbers.split(".")) >= (9, 1, 0) and not beta
