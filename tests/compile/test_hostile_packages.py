"""Run packages from a compromised compiler step: whatever they install, only a kernel that is one is taken, and nothing of them stays.

Each is a real self-extracting archive of the simulated compiler whose installer then does harm.  What runs has the daemon's rights
(docs/security.md, "What is not defended"); what is tried here is what it hands over, and what the daemon does with that afterwards.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from npgxd.compile import prune_jobs
from npgxd.compile.job import MAX_NOTES, MAX_REASON
from npgxd.store.disk import DISK
from tests.compile.conftest import Bench, Started, compiler, runs
from tools.cann_sim.records import elementwise, matmul

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npgxd.compile import JobSpec

ADD, MATMUL = elementwise("Add", (4, 64)), matmul(16, 64, 128)

SPOILT = """
import os, subprocess, sys
from pathlib import Path
ran = subprocess.run([real, *sys.argv[1:]])
out = Path(sys.argv[sys.argv.index("-o") + 1])
(package,) = out.glob("*.run")
honest = out / "honest"
package.rename(honest)
package.write_text(f"#!{sys.executable} -ISB\\n" + '''
import json, os, socket, stat, subprocess, sys, time
from pathlib import Path
target = Path(next(word.partition("=")[2] for word in sys.argv if word.startswith("--install-path=")))
subprocess.run([HONEST, *sys.argv[1:]], check=True)
ai_core = target / "static_kernel/ai_core"
(index,) = ai_core.glob("*/config/*/binary_info_config.json")
package = index.parents[2]
(add,) = package.glob("*/Add/*.o")
def rewrite(path, **changes):
    path.write_text(json.dumps({**json.loads(path.read_bytes()), **changes}))
'''.replace("HONEST", repr(str(honest))) + harm)
package.chmod(0o700)
sys.exit(ran.returncode)
"""


def spoilt(bench: Bench, tmp_path: Path, harm: str, records: Sequence[dict[str, Any]] = (ADD, MATMUL)) -> JobSpec:
    """A job whose package does ``harm`` after it has installed itself."""
    script = compiler(tmp_path / "op_compiler", SPOILT, real=str(bench.cann.op_compiler), harm=harm)
    return bench.spec(records, op_compiler=script)


HARM = {
    "Add": ("a link to a file beside", "secret = target / 'secret'; secret.write_text('x'); it.unlink(); it.symlink_to(secret)"),
    "Sub": ("an absolute link", "it.unlink(); it.symlink_to('/etc/passwd')"),
    "Mul": ("a link for its directory", "it.parent.rename(target / 'moved'); it.parent.symlink_to(target / 'moved')"),
    "Div": ("a pipe", "it.unlink(); os.mkfifo(it)"),
    "RealDiv": ("a socket", "it.unlink(); os.chdir(it.parent); socket.socket(socket.AF_UNIX).bind(it.name)"),
    "Maximum": ("a huge file of nothing", "os.truncate(it, 1 << 42)"),
    "Minimum": ("no bytes", "it.write_bytes(b'')"),
    "Pow": ("a huge json of nothing", "os.truncate(it.with_suffix('.json'), 1 << 42)"),
    "Abs": ("json without end", "it.with_suffix('.json').write_text('[' * 1_000_000)"),
    "Sign": ("json of a depth", "rewrite(it.with_suffix('.json'), supportInfo=json.loads('[' * 900 + ']' * 900))"),
    "Neg": ("a directory that cannot be read", "it.unlink(); it.mkdir(mode=0)"),
    "Exp": ("another's record", "rewrite(it.with_suffix('.json'), supportInfo=others['supportInfo'])"),
    "Log": ("a device", "it.unlink(); os.mknod(it, stat.S_IFCHR | 0o666, os.makedev(1, 5)) if os.geteuid() == 0 else None"),
}


def test_what_is_no_kernel_is_refused_and_its_neighbour_is_taken(bench: Bench, tmp_path: Path) -> None:
    """Every kind of harm in one package, each to another operator's kernel."""
    lines = [f"(it,) = package.glob('*/{op_type}/*.o')\n{harm}\n" for op_type, (_, harm) in HARM.items()]
    harm = "others = json.loads(next(package.glob('*/MatMulV2/*.json')).read_bytes())\n" + "".join(lines)
    spec = spoilt(bench, tmp_path, harm, [*(elementwise(op_type, (4, 64)) for op_type in HARM), MATMUL])
    result = bench.run(spec)
    by_key = {item.key: item.op_type for item in spec.items}
    assert [by_key[kernel.key] for kernel in result.kernels] == ["MatMulV2"], result
    why = {by_key[failed.key]: failed.reason for failed in result.failed}
    assert why.keys() == HARM.keys()
    assert [op_type for op_type, reason in why.items() if not reason or not reason.isprintable()] == []
    for path in (bench.staging / spec.job_id).rglob("*"):
        assert path.is_dir() or (path.is_file() and not path.is_symlink() and path.stat().st_nlink == 1), path
    assert not (spec.job_dir / "install").exists()


def test_modes_owners_and_links_of_a_package_do_not_come_along(bench: Bench, tmp_path: Path) -> None:
    """Also a hard link: what is published is a copy, so that nobody who holds the other name can change it afterwards."""
    other = tmp_path / "other.o"
    spec = spoilt(bench, tmp_path, f"os.link(add, {str(other)!r}); add.chmod(0o6777); add.parent.chmod(0o777)")
    result = bench.run(spec)
    assert len(result.kernels) == 2, result
    assert other.stat().st_mode & 0o6000, "the harm was done"
    for kernel in result.kernels:
        staged = bench.staging / kernel.staged
        assert staged.stat().st_mode & 0o7777 == 0o755
        for path in staged.iterdir():
            assert path.stat().st_mode & 0o7777 == 0o644
            assert path.stat().st_nlink == 1


LISTED_ELSEWHERE = """
(package / "stolen").mkdir()
for kernel in sorted(package.glob("*/MatMulV2/*")):
    (package / "stolen" / kernel.name).write_bytes(kernel.read_bytes())
facts = json.loads(index.read_bytes())
entry = facts["MatMulV2"]["staticList"][0]
name = Path(entry["binPath"]).name
facts["Add"]["staticList"] = [{**entry, "binPath": f"{package.name}/stolen/{name}"}]
index.write_text(json.dumps(facts))
"""


def test_an_index_that_lists_another_operators_kernel_as_its_own_gives_nobody_a_wrong_kernel(
    bench: Bench, tmp_path: Path
) -> None:
    spec = spoilt(bench, tmp_path, LISTED_ELSEWHERE)
    result = bench.run(spec)
    add = next(item.key for item in spec.items if item.op_type == "Add")
    assert add not in {kernel.key for kernel in result.kernels}
    assert add in {failed.key for failed in result.failed}


STRANGE_NAMES = r"""
for number in range(3000):
    strange = os.fsencode(f"{number}") + b"\xff\n\x1b[2J" + b"x" * 200
    place = os.path.join(os.fsencode(ai_core), strange, b"config/ascend910b")
    os.makedirs(place)
    open(os.path.join(place, b"binary_info_config.json"), "w").write("{}")
"""


def test_thousands_of_packages_with_names_that_no_text_can_hold_are_refused_in_one_line(bench: Bench, tmp_path: Path) -> None:
    result = bench.run(spoilt(bench, tmp_path, STRANGE_NAMES))
    assert result.kernels == ()
    for failed in result.failed:
        assert "3001 packages" in failed.reason
        assert failed.reason.isprintable()
        assert len(failed.reason) <= MAX_REASON


MANY_ENTRIES = """
facts = json.loads(index.read_bytes())
entry = facts["Add"]["staticList"][0]
facts["Add"]["staticList"] = [
    {**entry, "binPath": f"{package.name}/\\x1b{number}/gone.o", "simplifiedKey": f"k{number}"} for number in range(NUMBER)
]
index.write_text(json.dumps(facts))
"""


def test_an_index_of_thousands_of_kernels_that_are_not_there_is_told_in_a_few_notes(bench: Bench, tmp_path: Path) -> None:
    spec = spoilt(bench, tmp_path, MANY_ENTRIES.replace("NUMBER", "5000"))
    result = bench.run(spec)
    assert [kernel.key for kernel in result.kernels] == [item.key for item in spec.items if item.op_type == "MatMulV2"]
    assert 0 < len(result.notes) <= MAX_NOTES
    assert all(note.isprintable() for note in result.notes)


def test_an_index_of_more_kernels_than_any_round_is_refused(bench: Bench, tmp_path: Path) -> None:
    result = bench.run(spoilt(bench, tmp_path, MANY_ENTRIES.replace("NUMBER", "50_000")))
    assert result.kernels == ()
    assert {failed.reason for failed in result.failed} == {"the run package's index has 50001 kernels, more than any round"}


DEEP = """
os.chdir({place})
for _ in range(4000):
    os.mkdir("d")
    os.chdir("d")
open("end", "w").close()
os.chmod(".", 0)
"""


def test_directories_deeper_than_any_path_cost_nothing_but_themselves(bench: Bench, tmp_path: Path) -> None:
    spec = spoilt(bench, tmp_path, DEEP.format(place="target"))
    result = bench.run(spec)
    assert len(result.kernels) == 2, result
    assert not (spec.job_dir / "install").exists()


def test_what_a_package_leaves_beside_its_own_place_goes_with_its_job_however_deep(bench: Bench, tmp_path: Path) -> None:
    spec = spoilt(bench, tmp_path, DEEP.format(place="target.parent") + "sys.exit('no')")
    assert bench.run(spec).kernels == ()
    assert (spec.job_dir / "d").is_dir(), "the harm was done, and the job is kept for its logs"
    assert prune_jobs(bench.jobs_dir, 0, 0).removed == 1
    assert list(bench.jobs_dir.iterdir()) == []


def test_an_install_path_that_is_led_elsewhere_is_not_followed(bench: Bench, tmp_path: Path) -> None:
    """Also to a sibling whose name begins as its own does."""
    harm = "(target / 'static_kernel').rename(f'{target}-more'); (target / 'static_kernel').symlink_to(f'{target}-more')"
    result = bench.run(spoilt(bench, tmp_path, harm))
    assert result.kernels == ()
    assert "installed nothing" in result.failed[0].reason


LEAVING = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        Path({told!r} + ".new").write_text(f"{{os.getpid()}}\\n")
        os.rename({told!r} + ".new", {told!r})
        os.execve(sys.executable, ["python", "-c", "import time; time.sleep(600)"], {{}})
    os._exit(0)
os.wait()
while not os.path.exists({told!r}):
    time.sleep(0.01)
"""


def test_a_process_that_an_installer_leaves_has_ended_before_its_kernels_are_looked_at(
    bench: Bench, tmp_path: Path, started: Started
) -> None:
    told = tmp_path / "left"
    result = bench.run(spoilt(bench, tmp_path, LEAVING.format(told=str(told))))
    assert not runs(started.pid_in(told))
    assert len(result.kernels) == 2


PACKAGES = {
    "a link": "package.rename(out / 'real'); package.symlink_to(out / 'real')",
    "a name that moves the cursor": "package.rename(out / 'x\\x1b[2J.run'); print('generate run package x\\x1b[2J.run success')",
    "an option as its name": "package.rename(out / '-rf.run'); print('generate run package -rf.run success')",
    "4 TiB of nothing": "os.truncate(package, 1 << 42)",
}


@pytest.mark.parametrize("harm", PACKAGES.values(), ids=PACKAGES.keys())
def test_what_is_no_run_package_is_not_run(harm: str, bench: Bench, tmp_path: Path) -> None:
    code = """
import os, subprocess, sys
from pathlib import Path
subprocess.run([real, *sys.argv[1:]], check=True)
out = Path(sys.argv[sys.argv.index("-o") + 1])
(package,) = out.glob("*.run")
sys.stdout.flush()
"""
    script = compiler(tmp_path / "op_compiler", code + harm, real=str(bench.cann.op_compiler))
    spec = bench.spec([ADD], op_compiler=script)
    result = bench.run(spec)
    assert result.kernels == ()
    assert result.failed[0].reason
    assert result.failed[0].reason.isprintable()
    assert not (spec.job_dir / "installer.out").exists(), "it was never started"


def test_a_tree_as_deep_as_it_is_wide_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "tree"
    root.mkdir()
    for branch in ("a", "b"):
        here = os.open(root, os.O_RDONLY)
        for _ in range(500):
            os.mkdir(branch, dir_fd=here)
            os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
            deeper = os.open(branch, os.O_RDONLY, dir_fd=here)
            os.close(here)
            here = deeper
        os.close(here)
    descriptors = len(list(Path("/proc/self/fd").iterdir()))
    assert DISK.remove_tree(root)
    assert not root.exists()
    assert len(list(Path("/proc/self/fd").iterdir())) == descriptors
