"""One job's directory: where its parts lie, who owns it while it runs, and how long its logs are kept.

Nothing in here is published state: what a job made leaves through staging, and the rest may be lost at any time.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.errors import CompileError
from npgxd.store.disk import DISK
from npgxd.store.plain import tree_bytes

if TYPE_CHECKING:
    from collections.abc import Collection

OWNER = "owner.json"
SPEC = "job.msgpack"
SUMMARY = "summary.json"


@dataclass(frozen=True, slots=True)
class Identity:
    """A process that no later one can be taken for, within one boot: its pid and its start in clock ticks."""

    pid: int
    started: int


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose processes a job's are: enough to find, and to end, them after worker and daemon have died."""

    job: str
    token: str
    boot: str
    leaders: tuple[Identity, ...]

    def to_json(self) -> bytes:
        """The content of owner.json."""
        return json.dumps(asdict(self), indent=1).encode()

    @classmethod
    def parse(cls, raw: bytes) -> Owner | None:
        """What owner.json says; None if it is not one (it was being written when the power went)."""
        try:
            facts = json.loads(raw)
            leaders = tuple(Identity(int(leader["pid"]), int(leader["started"])) for leader in facts["leaders"])
            return cls(str(facts["job"]), str(facts["token"]), str(facts["boot"]), leaders)
        except (ValueError, TypeError, KeyError):
            return None


@dataclass(frozen=True, slots=True)
class JobDirectory:
    """``jobs/<job id>``: mode 0700, made by the daemon, used by one worker."""

    root: Path

    @property
    def records(self) -> Path:
        """op_compiler's ``-p``; never the working directory, which op_compiler does not bear."""
        return self.root / "records"

    @property
    def work(self) -> Path:
        """The working directory of everything that runs."""
        return self.root / "work"

    @property
    def out(self) -> Path:
        """op_compiler's ``-o``."""
        return self.root / "out"

    @property
    def home(self) -> Path:
        """``HOME``: CANN logs into it without bound."""
        return self.root / "home"

    @property
    def temporary(self) -> Path:
        """``TMPDIR``."""
        return self.root / "tmp"

    @property
    def install(self) -> Path:
        """The root into which the run package is installed, to be looked at."""
        return self.root / "install"

    @property
    def compile_log(self) -> Path:
        """The failed kernels' logs that are kept."""
        return self.root / "compile_log"

    @property
    def worker_log(self) -> Path:
        """What the worker itself had to say; empty if all is well."""
        return self.root / "worker.log"

    def output(self, program: str) -> tuple[Path, Path]:
        """The log files of a program's stdout and stderr."""
        return self.root / f"{program}.out", self.root / f"{program}.err"

    def create(self) -> None:
        """Make the job's root; CompileError if a job of this id was there."""
        try:
            self.root.mkdir(mode=0o700)
        except FileExistsError:
            raise CompileError(f"job directory {self.root} is there already", hint="job ids must not repeat") from None

    def make_scratch(self) -> None:
        """Make the directories that a run needs."""
        for path in self._scratch():
            path.mkdir(mode=0o700)

    def remove_scratch(self) -> None:
        """Remove everything but the logs."""
        for path in (*self._scratch(), self.root / SPEC):
            DISK.remove_tree(path)

    def claim(self, owner: Owner) -> None:
        """Write down whose processes run here, before and whenever another leader is started."""
        temporary = self.root / f".{OWNER}"
        temporary.write_bytes(owner.to_json())
        temporary.replace(self.root / OWNER)

    def owner(self) -> Owner | None:
        """Who claimed this directory and has not disclaimed it."""
        try:
            return Owner.parse((self.root / OWNER).read_bytes())
        except OSError:
            return None

    def is_claimed(self) -> bool:
        """Whether processes of this job may run."""
        return (self.root / OWNER).exists()

    def disclaim(self) -> None:
        """Nothing of this job runs any more."""
        with contextlib.suppress(FileNotFoundError):
            (self.root / OWNER).unlink()

    def remove(self) -> None:
        """Remove the whole directory."""
        DISK.remove_tree(self.root)

    def _scratch(self) -> tuple[Path, ...]:
        return self.records, self.work, self.out, self.home, self.temporary, self.install


@dataclass(frozen=True, slots=True)
class Pruned:
    """What ``prune_jobs`` removed, and what is left."""

    removed: int
    kept: int
    kept_bytes: int


def prune_jobs(jobs_dir: Path, keep: int, max_bytes: int, *, running: Collection[str] = ()) -> Pruned:
    """Keep the newest ``keep`` ended jobs' directories, and of those at most ``max_bytes``; remove the others.

    Directories of ``running`` jobs (their ids), and of jobs whose processes may still run, are neither removed nor counted.
    """
    ended = [
        path
        for path in (Path(entry) for entry in os.scandir(jobs_dir))
        if path.name not in running and path.is_dir() and not path.is_symlink() and not JobDirectory(path).is_claimed()
    ]
    kept = kept_bytes = removed = 0
    for path in sorted(ended, key=lambda path: (path.stat().st_mtime_ns, path.name), reverse=True):
        size = tree_bytes(path)
        if kept < keep and kept_bytes + size <= max_bytes:
            kept += 1
            kept_bytes += size
        else:
            DISK.remove_tree(path)
            removed += 1
    return Pruned(removed, kept, kept_bytes)
