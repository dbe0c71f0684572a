"""Making a simulated CANN home, and the handle that tests and demonstrations steer it by."""

from __future__ import annotations

import hashlib
import json
import os
import py_compile
import re
import shlex
import shutil
import sys
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib.util import cache_from_source
from pathlib import Path
from typing import Any

from tools.cann_sim.compiler.costs import FREE, Costs
from tools.cann_sim.compiler.home import RUN_LOG, SETTINGS
from tools.cann_sim.compiler.orders import Order
from tools.cann_sim.compiler.socs import Soc, find_soc
from tools.cann_sim.compiler.versions import features_of
from tools.cann_sim.op_roots import write_op_roots
from tools.cann_sim.ops import FAMILIES
from tools.cann_sim.runs import Run, read_runs

_MAX_SHEBANG = 100
_COMPILER = Path(__file__).parent / "compiler"
_INSTALLED_COMPILER = Path("tools/op_compiler/simulated_op_compiler")
_PACKAGES = ("runtime", "compiler", "opbase", "ops_math", "ops_nn", "ops_cv", "ops_transformer", "ops_legacy")


@dataclass(frozen=True, slots=True)
class SimulatedCann:
    """A simulated CANN: ``home`` is its ASCEND_HOME_PATH."""

    home: Path

    @property
    def opp(self) -> Path:
        """Its ASCEND_OPP_PATH."""
        return self.home / "opp"

    @property
    def op_compiler(self) -> Path:
        """Its compiler."""
        return self.home / "bin" / "op_compiler"

    @property
    def version(self) -> str:
        """The CANN version that it behaves as."""
        return str(self._settings()["version"])

    @property
    def soc(self) -> Soc:
        """The SoC that it was made for."""
        return find_soc(str(self._settings()["soc"]))

    @property
    def costs(self) -> Costs:
        """What compiles take at present."""
        return Costs(**self._settings()["costs"])

    def set_costs(self, costs: Costs) -> None:
        """Let later op_compiler runs take what ``costs`` says."""
        self._write_settings({**self._settings(), "costs": costs.to_json()})

    def env(self) -> dict[str, str]:
        """The variables that ``set_env.sh`` sets, to be laid over the caller's own."""
        modules = self.home / "python" / "site-packages"
        return {
            "ASCEND_HOME_PATH": str(self.home),
            "ASCEND_OPP_PATH": str(self.opp),
            "ASCEND_TOOLKIT_HOME": str(self.home),
            "NPGXD_SOC": self.soc.name,
            "PATH": _before(self.home / "bin", "PATH"),
            "PYTHONPATH": _before(modules, "PYTHONPATH"),
            "LD_LIBRARY_PATH": _before(self.home / "lib64", "LD_LIBRARY_PATH"),
        }

    def order(self, op_type: str, kind: str, *, times: int | None = None, contains: str = "") -> Order:
        """Order a failure for op types matching the pattern ``op_type``; ``contains`` must be in the record's compact JSON."""
        settings = self._settings()
        identity = max((order["id"] for order in settings["orders"]), default=settings["last_order"]) + 1
        order = Order(id=identity, op_type=op_type, kind=kind, times=times, contains=contains)
        self._write_settings({**settings, "orders": [*settings["orders"], order.to_json()], "last_order": identity})
        return order

    def orders(self) -> tuple[Order, ...]:
        """What is ordered at present, used up or not."""
        return tuple(Order(**order) for order in self._settings()["orders"])

    def cancel_orders(self) -> None:
        """Let everything succeed again."""
        self._write_settings({**self._settings(), "orders": []})

    def runs(self) -> tuple[Run, ...]:
        """Every compile run of op_compiler so far, in the order of their starts."""
        return read_runs(self.home / RUN_LOG)

    def _settings(self) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads((self.home / SETTINGS).read_bytes())
        return settings

    def _write_settings(self, settings: dict[str, Any]) -> None:
        temporary = self.home / f".{SETTINGS}.{os.getpid()}"
        temporary.write_text(json.dumps(settings, indent=2) + "\n")
        temporary.replace(self.home / SETTINGS)


def create(home: Path, *, version: str = "9.1.0", soc: str = "Ascend910B3", costs: Costs = FREE) -> SimulatedCann:
    """Make a simulated CANN under ``home`` (which must be new or empty); LookupError for a version or SoC it does not know."""
    features_of(version)
    family = find_soc(soc).family
    home = home.absolute()
    latest = home / "latest"
    latest.mkdir(parents=True)
    marker = f"SIMULATED CANN {version} for {soc}: made by tools.cann_sim, for development and tests only\n"
    (latest / "SIMULATED").write_text(marker)
    for package in _PACKAGES:
        directory = latest / "share" / "info" / package
        directory.mkdir(parents=True)
        (directory / "version.info").write_text(f"Version={version}\npackage_name={package}\nsimulated=true\n")
    write_op_roots(latest / "opp", version=version, families=dict.fromkeys((*FAMILIES, family)))
    (latest / "opp_latest").symlink_to("opp")
    (latest / "lib64").mkdir()
    _install_compiler(latest, version)
    settings = {"version": version, "soc": soc, "costs": costs.to_json(), "orders": [], "last_order": 0}
    (latest / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n")
    cann = SimulatedCann(latest)
    _write_set_env(home / "set_env.sh", cann, marker)
    return cann


def opened(home: Path) -> SimulatedCann:
    """The simulated CANN that ``create`` made at ``home``, given either that path or its ``latest``."""
    for candidate in (home / "latest", home):
        if (candidate / "SIMULATED").is_file():
            return SimulatedCann(candidate.absolute())
    raise LookupError(f"{home} is no simulated CANN home")


def _install_compiler(latest: Path, version: str) -> None:
    """Copy the compiler's source into the home, compiled beforehand so that runs start fast and write nothing there."""
    target = latest / _INSTALLED_COMPILER
    shutil.copytree(_COMPILER, target, ignore=shutil.ignore_patterns("__pycache__"))
    whole = hashlib.sha256()
    for source in sorted(target.rglob("*.py")):
        whole.update(source.read_bytes())
        compiled = Path(cache_from_source(str(source)))
        compiled.parent.mkdir(exist_ok=True)
        compiled.write_bytes(_compiled(source.relative_to(target)))
    for folder in ("bin", "python/site-packages/opc_tool"):
        (latest / folder).mkdir(parents=True)
    (latest / "python/site-packages/opc_tool/__init__.py").write_text('"""Simulated."""\n')
    launcher = latest / "bin" / "op_compiler"
    launcher.write_text(
        f"{_shebang(sys.executable)}\n"
        f"# op_compiler of SIMULATED CANN {version}, build {whole.hexdigest()}\n"
        "import os.path\nimport sys\n\n"
        f'sys.path.insert(0, os.path.join(os.path.dirname(os.path.realpath(__file__)), "..", "{_INSTALLED_COMPILER.parent}"))\n'
        f"from {_INSTALLED_COMPILER.name}.main import main\n\n"
        "sys.exit(main())\n"
    )
    launcher.chmod(0o755)
    opc = latest / "bin" / "opc"
    opc.write_text('#!/bin/sh\necho "opc of SIMULATED CANN: op_compiler starts it" >&2\nexit 1\n')
    opc.chmod(0o755)


@cache
def _compiled(module: Path) -> bytes:
    """A module of the compiler as Python keeps it, wherever it will lie; kept, since tests make hundreds of homes."""
    with tempfile.TemporaryDirectory(prefix="npgxd-cann-") as place:
        target = Path(place, module.name)
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(_COMPILER / module), str(target), str(module), doraise=True, invalidation_mode=mode)
        return target.read_bytes()


def _shebang(interpreter: str) -> str:
    """The first lines of a script for ``interpreter``: by way of sh where the kernel could not read it (blanks, or too long)."""
    if len(interpreter) < _MAX_SHEBANG and not any(char.isspace() for char in interpreter):
        return f"#!{interpreter} -ISB"
    quoted = '"' + re.sub(r'([\\"$`])', r"\\\1", interpreter) + '"'
    return f"#!/bin/sh\n'''exec' {quoted} -ISB \"$0\" \"$@\"\n' '''"


def _write_set_env(path: Path, cann: SimulatedCann, marker: str) -> None:
    path.write_text(
        f"# {marker}"
        f"export ASCEND_HOME_PATH={shlex.quote(str(cann.home))}\n"
        'export ASCEND_TOOLKIT_HOME="$ASCEND_HOME_PATH"\n'
        'export ASCEND_OPP_PATH="$ASCEND_HOME_PATH/opp"\n'
        f"export NPGXD_SOC={cann.soc.name}\n"
        'export PATH="$ASCEND_HOME_PATH/bin:$PATH"\n'
        'export PYTHONPATH="$ASCEND_HOME_PATH/python/site-packages${PYTHONPATH:+:$PYTHONPATH}"\n'
        'export LD_LIBRARY_PATH="$ASCEND_HOME_PATH/lib64${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"\n'
    )


def _before(path: Path, variable: str) -> str:
    """``path`` in front of what ``variable`` holds now."""
    current = os.environ.get(variable, "")
    return f"{path}:{current}" if current else str(path)
