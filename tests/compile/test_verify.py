"""What a package is believed, and what not: a real package, installed, then tampered with."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.compile.command import record_name
from npgxd.compile.verify import Verdict, verify
from npgxd.errors import CompileError
from npgxd.store.index import INDEX_NAME
from tools.cann_sim.records import elementwise, matmul

if TYPE_CHECKING:
    from pathlib import Path

    from npgxd.compile import JobSpec
    from tests.compile.conftest import Bench


class Installed:
    """A package of two kernels, Add and MatMulV2, as the vendor's installer leaves it."""

    def __init__(self, root: Path, bench: Bench) -> None:
        self.spec: JobSpec = bench.spec([elementwise("Add", (4, 64)), matmul(16, 64, 128)])
        self.add, self.matmul = (item.key for item in self.spec.items)
        for name in ("records", "work", "out", "install"):
            (root / name).mkdir(parents=True)
        for position, item in enumerate(self.spec.items):
            (root / "records" / record_name(position, item)).write_bytes(item.canonical)
        environment = {**os.environ, **bench.cann.env()}
        command = [bench.cann.op_compiler, "-p", root / "records", "-v", "Ascend910B3", "-o", root / "out", "-f", "true"]
        subprocess.run(command, cwd=root / "work", env=environment, check=True, capture_output=True)
        (package,) = (root / "out").glob("*.run")
        subprocess.run([package, f"--install-path={root / 'install'}", "-q"], env=environment, check=True)
        self.ai_core = root / "install/static_kernel/ai_core"
        self.package = self.ai_core / package.stem
        self.index = self.package / "config/ascend910b" / INDEX_NAME

    def kernel(self, op_type: str, suffix: str) -> Path:
        (path,) = (self.package / "ascend910b" / op_type).glob(f"*{suffix}")
        return path

    def edit(self, op_type: str, **changes: Any) -> None:
        """Change the index entry of an op type."""
        index = json.loads(self.index.read_bytes())
        index[op_type]["staticList"][0].update(changes)
        self.index.write_text(json.dumps(index))

    def edit_json(self, op_type: str, **changes: Any) -> None:
        """Change a kernel's own json."""
        path = self.kernel(op_type, ".json")
        path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))

    def verdict(self) -> Verdict:
        return verify(self.ai_core, self.spec)

    def problem_of_add(self) -> str:
        """Why Add is refused; MatMulV2 must not be touched by that."""
        verdict = self.verdict()
        assert list(verdict.kernels) == [self.matmul]
        assert list(verdict.refused) == [self.add]
        return verdict.refused[self.add]


@pytest.fixture
def installed(tmp_path: Path, bench: Bench) -> Installed:
    return Installed(tmp_path / "package", bench)


def test_an_untouched_package_is_believed(installed: Installed) -> None:
    verdict = installed.verdict()
    assert set(verdict.kernels) == {installed.add, installed.matmul}
    assert (verdict.refused, verdict.notes) == ({}, ())
    (kernel,) = verdict.kernels[installed.add]
    assert kernel.object == installed.kernel("Add", ".o")
    assert kernel.description == installed.kernel("Add", ".json")


@pytest.mark.parametrize("suffix", [".o", ".json"])
@pytest.mark.parametrize("kind", ["symlink", "fifo", "directory", "missing"])
def test_only_plain_files_are_read(kind: str, suffix: str, installed: Installed, tmp_path: Path) -> None:
    path = installed.kernel("Add", suffix)
    path.rename(tmp_path / "real")
    if kind == "symlink":
        path.symlink_to(tmp_path / "real")
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    assert "cannot be used" in installed.problem_of_add()


def test_a_directory_that_is_a_link_leads_nowhere(installed: Installed, tmp_path: Path) -> None:
    directory = installed.kernel("Add", ".o").parent
    directory.rename(tmp_path / "moved")
    directory.symlink_to(tmp_path / "moved")
    assert "cannot be used" in installed.problem_of_add()


STRAY = ["../../../../etc/passwd.o", "/etc/passwd.o", "static_kernel/x", "", "a/../b.o", f"{300 * 'x'}.o"]


@pytest.mark.parametrize("path", STRAY)
def test_an_index_cannot_lead_out_of_the_tree(path: str, installed: Installed) -> None:
    installed.edit("Add", binPath=path)
    try:
        verdict = installed.verdict()
    except CompileError as error:  # refused as a whole by the index's own rules
        assert "index cannot be used" in error.message  # noqa: PT017
    else:
        assert installed.add in verdict.refused
        assert list(verdict.kernels) == [installed.matmul]


def test_other_bytes_are_refused(installed: Installed) -> None:
    with installed.kernel("Add", ".o").open("r+b") as stream:
        stream.write(b"\0")
    assert "has other bytes than its json says" in installed.problem_of_add()


def test_a_json_without_a_digest_is_refused(installed: Installed) -> None:
    installed.edit_json("Add", sha256=None)
    assert "has other bytes than its json says" in installed.problem_of_add()


def test_a_kernel_that_was_made_for_something_else_is_refused(installed: Installed) -> None:
    described = json.loads(installed.kernel("Add", ".json").read_bytes())
    described["supportInfo"]["inputs"][0]["shape"] = [8, 64]
    installed.edit_json("Add", supportInfo=described["supportInfo"])
    assert "was compiled for none of the records" in installed.problem_of_add()


@pytest.mark.parametrize("info", [None, [], {"inputs": 3}, {}])
def test_a_kernel_that_does_not_say_what_it_was_made_for_is_refused(info: object, installed: Installed) -> None:
    installed.edit_json("Add", supportInfo=info)
    assert installed.problem_of_add()


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000])
def test_a_json_that_is_none_is_refused(text: str, installed: Installed) -> None:
    installed.kernel("Add", ".json").write_text(text)
    assert ".json" in installed.problem_of_add()


@pytest.mark.parametrize("text", ["", "{", "[]", '{"Add": 3}', '{"Add": {"staticList": [{}]}}'])
def test_an_index_that_is_none_fails_the_package(text: str, installed: Installed) -> None:
    installed.index.write_text(text)
    with pytest.raises(CompileError, match="index cannot be used"):
        installed.verdict()


def test_a_package_without_index_is_named_by_what_it_installed(installed: Installed) -> None:
    installed.index.unlink()
    with pytest.raises(CompileError, match=rf"no index for ascend910b \(it installed {installed.package.name}\)"):
        installed.verdict()
    for path in installed.ai_core.iterdir():
        path.rename(installed.ai_core.parent / path.name)
    with pytest.raises(CompileError, match="it installed no package directory"):
        installed.verdict()


def test_two_packages_where_one_is_expected_are_refused(installed: Installed) -> None:
    subprocess.run(["cp", "-r", installed.package, installed.ai_core / "another"], check=True)
    with pytest.raises(CompileError, match="installed 2 packages: another, static_kernel_"):
        installed.verdict()


def test_a_kernel_that_nobody_asked_for_is_noted_and_not_taken(installed: Installed, bench: Bench) -> None:
    installed.spec = bench.spec([elementwise("Add", (4, 64))])
    verdict = installed.verdict()
    assert list(verdict.kernels) == [installed.add]
    assert verdict.refused == {}
    assert any("was compiled for none of the records" in note for note in verdict.notes)


def test_one_object_under_two_entries_is_refused(installed: Installed) -> None:
    index = json.loads(installed.index.read_bytes())
    index["Add"]["staticList"].append({**index["Add"]["staticList"][0], "simplifiedKey": "another"})
    installed.index.write_text(json.dumps(index))
    assert "twice" in installed.problem_of_add()
