"""Loading an op-library root as the CANN runtime does, and saying what was wrong with it.

The rules are those of docs/cann.md, "How the runtime reads it": only the index and the kernels' ``.json`` and ``.o`` are read;
loading is incremental, never shrinks, and the first loaded kernel wins; a missing or torn index means no static kernels; ``.o``
files are opened at first use; the extension is taken at the first ``.o`` of the whole path.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tools.cann_sim.compiler.record import BadRecord, Record, dumps
from tools.cann_sim.compiler.socs import find_soc

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_MAX_PATH = 4096


@dataclass(frozen=True, slots=True)
class Torn:
    """Something that a reader saw and that should never be seen."""

    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel as the runtime knows it after loading an index."""

    op_type: str
    keys: tuple[str, ...]
    path: Path
    """Its ``.o``, not opened yet."""
    facts: Mapping[str, Any]
    """Its own json."""

    @property
    def name(self) -> str:
        """The stem of its files."""
        return self.path.name.removesuffix(".o")

    def open(self) -> bytes:
        """Its object, as at first use; OSError when it is gone, ValueError when its bytes are not those of its json."""
        content = self.path.read_bytes()
        actual = hashlib.sha256(content).hexdigest()
        if actual != self.facts["sha256"]:
            raise ValueError(f"sha256 is {actual}, its json says {self.facts['sha256']}")
        return content


@dataclass(frozen=True, slots=True)
class LoadReport:
    """What one load did. ``shadowed``: kernels not taken, since their key was loaded already."""

    root: Path
    selected: Mapping[str, Kernel]
    shadowed: tuple[Kernel, ...]
    torn: tuple[Torn, ...]

    @property
    def loaded(self) -> int:
        """How many kernels this load added."""
        return len({kernel.path for kernel in self.selected.values()})


@dataclass(frozen=True, slots=True)
class Check:
    """Whether what is loaded is exactly what some records asked for."""

    missing: tuple[str, ...]
    """Records that select no kernel: op type and digest."""
    mismatched: tuple[str, ...]
    """Records that select a kernel which was compiled for another record."""
    extra: tuple[Kernel, ...]
    """Kernels that no record selects."""
    torn: tuple[Torn, ...]

    @property
    def exact(self) -> bool:
        """Nothing missing, nothing else, nothing torn."""
        return not (self.missing or self.mismatched or self.extra or self.torn)


@dataclass(slots=True)
class Reader:
    """One process's view of its static kernels.

    ``selected`` maps each simplifiedKey to the kernel that serves it; ``torn`` collects what loads met and should not have.
    """

    soc: str
    family: str = ""
    selected: dict[str, Kernel] = field(default_factory=dict)
    torn: list[Torn] = field(default_factory=list)

    def load(self, root: Path) -> LoadReport:
        """Load ``root/static_kernel/ai_core``, as ``aclnnReselectStaticKernelWithPath`` does. Never raises for what is there."""
        report = self._load(root)
        self.torn.extend(report.torn)
        return report

    def load_default(self, environ: Mapping[str, str]) -> LoadReport:
        """Load the default root, as every new process and ``aclnnReselectStaticKernel`` do; to find nothing there is no tear."""
        root = default_root(environ)
        if not (root / "static_kernel").exists():
            return LoadReport(root, {}, (), ())
        return self.load(root)

    def _load(self, root: Path) -> LoadReport:
        ai_core = root / "static_kernel" / "ai_core"
        index_path = ai_core / "config" / (self.family or find_soc(self.soc).family) / "binary_info_config.json"
        new: dict[str, Kernel] = {}
        shadowed: list[Kernel] = []
        torn: list[Torn] = []
        try:
            entries = _entries(json.loads(index_path.read_bytes()))
        except FileNotFoundError:
            return LoadReport(root, {}, (), (Torn(index_path, "the index is missing"),))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            return LoadReport(root, {}, (), (Torn(index_path, f"the index is torn: {error!r}"),))
        for op_type, keys, bin_path in entries:
            kernel = _load_kernel(op_type, keys, ai_core / bin_path)
            if isinstance(kernel, Torn):
                torn.append(kernel)
                continue
            free = [key for key in keys if key not in self.selected and key not in new]
            new.update(dict.fromkeys(free, kernel))
            if not free:
                shadowed.append(kernel)
        self.selected.update(new)
        return LoadReport(root, new, tuple(shadowed), tuple(torn))

    def select(self, described: dict[str, Any]) -> Kernel | None:
        """The kernel that would run for this record: same key, and equal core counts. None: the dynamic kernel runs."""
        return self._select(Record(described))

    def selects(self, described: dict[str, Any]) -> bool:
        """Whether a static kernel would run for this record."""
        return self.select(described) is not None

    def verify(self) -> tuple[Torn, ...]:
        """Open every loaded kernel, as first uses would; what is gone or has other bytes than its json says."""
        torn: list[Torn] = []
        for kernel in self._kernels():
            try:
                kernel.open()
            except (OSError, ValueError) as error:
                torn.append(Torn(kernel.path, str(error)))
        return tuple(torn)

    def check(self, records: Iterable[bytes | dict[str, Any]]) -> Check:
        """Compare what is loaded with what ``records`` ask for."""
        missing: list[str] = []
        mismatched: list[str] = []
        used: set[Path] = set()
        for item in records:
            record = Record.parse(item) if isinstance(item, bytes) else Record(item)
            kernel = self._select(record)
            if kernel is None:
                missing.append(f"{record.op_type} {record.digest}")
                continue
            used.add(kernel.path)
            if not _compiled_for(kernel, record):
                mismatched.append(f"{record.op_type} {record.digest}: {kernel.name}")
        extra = tuple(kernel for kernel in self._kernels() if kernel.path not in used)
        return Check(tuple(missing), tuple(mismatched), extra, (*self.torn, *self.verify()))

    def _kernels(self) -> tuple[Kernel, ...]:
        return tuple({kernel.path: kernel for kernel in self.selected.values()}.values())

    def _select(self, record: Record) -> Kernel | None:
        kernel = self.selected.get(record.simplified_key(deterministic=record.deterministic))
        if kernel is None or kernel.facts["platformInfo"] != record.platform(find_soc(self.soc)):
            return None
        return kernel


def default_root(environ: Mapping[str, str]) -> Path:
    """``$ASCEND_HOME_PATH/opp_latest`` if it resolves, else ``$ASCEND_OPP_PATH``."""
    latest = Path(environ.get("ASCEND_HOME_PATH", "")) / "opp_latest"
    if environ.get("ASCEND_HOME_PATH") and latest.exists():
        return latest
    return Path(environ["ASCEND_OPP_PATH"])


def _entries(index: Any) -> list[tuple[str, tuple[str, ...], str]]:
    """Op type, keys and binPath of every entry; raises for anything that is not an index."""
    found: list[tuple[str, tuple[str, ...], str]] = []
    for op_type, listed in index.items():
        for entry in listed["staticList"]:
            keys = entry["simplifiedKey"]
            found.append((op_type, (keys,) if isinstance(keys, str) else tuple(keys), str(entry["binPath"])))
    return found


def _load_kernel(op_type: str, keys: tuple[str, ...], path: Path) -> Kernel | Torn:
    """Open the kernel's json, found as the runtime finds it."""
    for spelling in (str(path.absolute()), os.path.realpath(path)):
        if len(spelling) >= _MAX_PATH:
            return Torn(path, f"the path has {len(spelling)} bytes; the runtime takes fewer than {_MAX_PATH}")
        stem, _, rest = spelling.partition(".o")
        if rest:
            return Torn(path, f"the runtime cuts this path at its first '.o' and looks for {stem}.json")
    try:
        facts = json.loads(path.with_suffix(".json").read_bytes())
        str(facts["sha256"])
        dict(facts["platformInfo"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        return Torn(path.with_suffix(".json"), f"the kernel's json cannot be read: {error!r}")
    return Kernel(op_type, keys, path, facts)


def _compiled_for(kernel: Kernel, record: Record) -> bool:
    """Whether the simulated compiler made ``kernel`` for this very call (a thing that no real kernel tells)."""
    try:
        made_for = kernel.facts["simulated"]["compiledFor"]
    except (KeyError, TypeError):
        return True
    meaning = dumps(record.meaning(deterministic=record.deterministic))
    return bool(made_for == hashlib.sha256(meaning.encode()).hexdigest())


__all__ = ["BadRecord", "Check", "Kernel", "LoadReport", "Reader", "Torn", "default_root"]
