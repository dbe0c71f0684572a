"""What leaves a job: its run package and its verified kernels, copied into staging and on the disk before the result is told."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from npgxd.compile.job import MadeKernel, MadePackage
from npgxd.errors import StoreError
from npgxd.store.disk import DISK
from npgxd.store.manifest import Making, ManifestEntry, Origin
from npgxd.store.staging import MadeFile, stage_kernel

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npgxd.compile.complog import LogWatch
    from npgxd.compile.job import JobItem, JobSpec
    from npgxd.compile.verify import Verdict, VerifiedKernel

_PACKAGE = "package.run"
_MAX_PACKAGE = 4 * 1024 * 1024 * 1024


class Staging:
    """One job's part of the staging directory: ``<staging>/<job id>/``."""

    def __init__(self, spec: JobSpec, package: Path) -> None:
        """Take the package, before anything in it has run: its digest is that of the bytes that op_compiler wrote."""
        self._spec = spec
        self._root = spec.staging_dir / spec.job_id
        DISK.make_directory(self._root, 0o700)
        digest, _ = DISK.copy_file(package, self._root / _PACKAGE, beneath=package.parent, most=_MAX_PACKAGE)
        DISK.fsync_directory(self._root)
        self.made = MadePackage(digest, package.name, self._relative(self._root / _PACKAGE))

    def kernels(self, verdict: Verdict, watch: LogWatch, share_s: float, between: Callable[[], None]) -> tuple[MadeKernel, ...]:
        """Stage every verified kernel; ``between`` is called before each, and may end it all."""
        made: list[MadeKernel] = []
        for item in self._spec.items:
            if (found := verdict.kernels.get(item.key)) is not None:
                between()
                cost = sum(watch.cost_of(kernel.object.stem, share_s) for kernel in found)
                made.append(MadeKernel(item.key, self._relative(self._stage(item, found, cost)), cost))
        DISK.fsync_tree(self._root)  # all at once: a commit of the file system for each file would cost many times more
        return tuple(made)

    def _stage(self, item: JobItem, found: tuple[VerifiedKernel, ...], cost_s: float) -> Path:
        spec = self._spec
        target = self._root / item.key
        origin = Origin(
            key=item.key,
            op_type=item.op_type,
            record=item.canonical.decode(),
            record_digest=item.record_digest,
            fingerprint=item.fingerprint,
            soc=spec.toolchain.soc,
            family=spec.toolchain.family,
            cann_version=spec.toolchain.cann_version,
            options=spec.super_kernel,
            flags="follow" if spec.flags.follow_op_params_jit else "",
        )
        making = Making(
            package=self.made.digest,
            package_name=self.made.name,
            cost_s=cost_s,
            made_at=time.time(),
            trusted=bool(spec.package),
        )
        files = [
            MadeFile(ManifestEntry(kernel.object.stem, kernel.entry.facts), kernel.object, kernel.description, kernel.beneath)
            for kernel in found
        ]
        manifest = stage_kernel(target, origin, making, files, durable=False)
        verified = {kernel.object.name: kernel.sha256 for kernel in found}
        if any(verified.get(member.name, member.sha256) != member.sha256 for member in manifest.members):
            raise StoreError(f"a kernel of {item.op_type} changed after it was verified", hint="look for what else writes there")
        return target

    def _relative(self, path: Path) -> str:
        return path.relative_to(self._spec.staging_dir).as_posix()

    @staticmethod
    def discard(spec: JobSpec) -> None:
        """Nothing of this job is to be published."""
        DISK.remove_tree(spec.staging_dir / spec.job_id)
