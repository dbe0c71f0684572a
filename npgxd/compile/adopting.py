"""A job without a compiler: the kernels come out of a run package that an administrator trusts, and are verified as any other.

Only the step that makes the package differs.  What comes out is marked as trusted in its manifest.
"""

from __future__ import annotations

from pathlib import Path

from npgxd.compile.directory import JobDirectory
from npgxd.compile.run import CompileRun
from npgxd.store.disk import DISK


class AdoptRun(CompileRun):
    """One job whose spec names a package that is there already."""

    def _compile(self, argv: list[str]) -> Path:  # noqa: ARG002 -- op_compiler is not run
        given = Path(self._spec.package)
        package = JobDirectory(self._spec.job_dir).out / self._spec.package_name
        DISK.copy_file(given, package, beneath=given.parent, durable=False)
        return package
