"""npgxd as an administrator installs it: a wheel in an environment of its own, and a wheel of a later version over that."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from conftest_node import PATIENCE_S, REPOSITORY

from npgxd import __version__

if TYPE_CHECKING:
    from systemd_machine import Machine

OLDER, NEWER = f"{__version__}.post1", f"{__version__}.post2"
HOME = Path("/srv/npgxd")
"""The environment, as the machine sees it."""
PACKAGES = HOME / f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
_BUILT_FROM = ("pyproject.toml", "README.md", "LICENSE", "npgxd", "npugraph_ex", "systemd", "man")


def why_not() -> str:
    """Why no wheel can be built here; empty if one can."""
    try:
        import hatchling  # noqa: F401
    except ImportError:
        return "hatchling, which builds the wheel, is not installed"
    return ""


def wheel(directory: Path, version: str) -> Path:
    """A wheel of this tree that has another version; nothing else is changed."""
    tree = directory / version
    tree.mkdir(parents=True)
    for name in _BUILT_FROM:
        source = REPOSITORY / name
        if source.is_dir():
            shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(source, tree / name)
    stated = tree / "npgxd/__init__.py"
    text, times = re.subn(r'^__version__ = ".*"$', f'__version__ = "{version}"', stated.read_text(), flags=re.MULTILINE)
    assert times == 1
    stated.write_text(text)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(directory)],
        cwd=tree,
        check=True,
        capture_output=True,
        timeout=PATIENCE_S,
    )
    (made,) = directory.glob(f"npgxd-{version}-*.whl")
    return made


def make_environment(machine: Machine) -> None:
    """An environment of npgxd's own in the machine; what npgxd needs comes from that of the tests, since there is no package index."""
    machine.run(sys.executable, "-m", "venv", "--without-pip", str(HOME))
    lent = [path for path in sys.path if path.endswith("site-packages")]
    (machine.srv / PACKAGES.relative_to("/srv") / "lent.pth").write_text("".join(f"{path}\n" for path in lent))


def install(machine: Machine, built: Path) -> None:
    """``pip install --upgrade`` of a wheel that lies in the machine's /srv."""
    inside = Path("/srv") / built.relative_to(machine.srv)
    pip = (sys.executable, "-m", "pip", "--python", str(HOME / "bin/python"), "--isolated", "--no-cache-dir")
    machine.run(*pip, "install", "--quiet", "--upgrade", "--no-index", "--no-deps", "--no-warn-conflicts", str(inside))
