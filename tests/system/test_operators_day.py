"""The whole day of an operator on a real systemd, by the commands that docs/operations.md tells: from installing npgxd to taking it away."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import small_disk
import two_versions
from conftest_node import REPOSITORY, Named, Rank, eventually, matmuls, named
from systemd_machine import Machine, why_not

from tools.cann_sim import records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from subprocess import CompletedProcess

NPGXCTL = two_versions.HOME / "bin/npgxctl"
CANN = ("ASCEND_HOME_PATH=/srv/cann/latest", "ASCEND_OPP_PATH=/srv/cann/latest/opp", "NPGXD_SOC=Ascend910B3")
"""What set_env.sh sets in the operator's shell, and the SoC."""
UNITS = ("npgxd.service", "npgxd.socket", "npgxd-admin.socket")
TEXTFILE, LISTEN = Path("/srv/textfile/npgxd.prom"), "127.0.0.1:9469"
DISK = 32 << 20
MIN_FREE = "[store]\nmin_free_gb = 0.002\n"
"""2 MB must stay free on that disk."""
ADD = named(records.elementwise("Add", [16, 8], "float16"))


class Operator:
    """Root in a shell of the machine."""

    def __init__(self, machine: Machine, older: Path, newer: Path) -> None:
        self.machine = machine
        self.older, self.newer = older, newer
        self.disk: small_disk.SmallDisk | None = None

    def npgxctl(self, *words: str) -> CompletedProcess[str]:
        return self.machine.done("env", *CANN, "COLUMNS=100", str(NPGXCTL), *words)

    def told(self, *words: str, code: int = 0) -> dict[str, Any]:
        """The document of a command that must end with ``code``."""
        done = self.npgxctl(*words, "--json")
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}\n{self.machine.journal()}"
        return json.loads(done.stdout)

    def page(self, *words: str, code: int = 0) -> str:
        """What a command shows to a person."""
        done = self.npgxctl(*words)
        assert done.returncode == code, f"{words}: {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def job(self, name: str, *lists: Named, **options: Any) -> list[Rank]:
        """Ranks that a launcher starts as one job, which wait for each other."""
        return [
            self.machine.rank(
                items,
                options=options,
                RANK=str(rank),
                LOCAL_RANK=str(rank),
                WORLD_SIZE=str(len(lists)),
                LOCAL_WORLD_SIZE=str(len(lists)),
                TORCHELASTIC_RUN_ID=name,
                MASTER_ADDR="localhost",
                MASTER_PORT="1",
                PYTHONPATH=f"{two_versions.PACKAGES}:{REPOSITORY}",  # the npgxd that is installed, with the tests' simulated CANN
            )
            for rank, items in enumerate(lists)
        ]

    def compiled(self) -> int:
        """Kernels that op_compiler was run for, in all."""
        return sum(len(run.ops) for run in self.machine.cann.runs())


@pytest.fixture
def operator(on_disk: Path) -> Iterator[Operator]:
    if why_not():
        pytest.skip(f"NOT TESTED: npgxd under systemd: {why_not()}")
    if why := two_versions.why_not() or small_disk.why_not():
        pytest.skip(f"NOT TESTED: an operator's day: {why}")
    machine = Machine(on_disk, bare=True)
    try:
        wheels = machine.srv / "wheels"
        yield Operator(machine, *(two_versions.wheel(wheels, version) for version in (two_versions.OLDER, two_versions.NEWER)))
    finally:
        machine.close()


@pytest.mark.slow
def test_an_operators_day(operator: Operator) -> None:
    install(operator)
    serving = two_jobs(operator)
    mend_an_operator(operator)
    monitor(operator)
    upgrade_under_a_running_job(operator, serving)
    run_out_of_space_and_recover(operator)
    collect(operator)
    for rank in serving:
        rank.end()
    move_the_state(operator)
    read_the_journal(operator)
    remove(operator)


def install(operator: Operator) -> None:
    """A virtual environment of npgxd's own, and a disk of its own for the state."""
    machine = operator.machine
    machine.boot()
    two_versions.make_environment(machine)
    two_versions.install(machine, operator.older)
    planned = operator.told("install-units", "--dry-run")
    assert (planned["toolchain"], {each["done"] for each in planned["files"]}) == ("found", {"written"})
    assert not (machine.etc / "npgxd").exists(), "a dry run changes nothing"
    assert "systemctl enable --now npgxd" in operator.page("install-units")
    operator.disk = small_disk.SmallDisk(machine, "/srv/disk", DISK)
    keep_the_state_at(operator, "/srv/disk/npgxd")
    (machine.etc / "npgxd/npgxd.toml.d").mkdir()
    (machine.etc / "npgxd/npgxd.toml.d/space.toml").write_text(MIN_FREE)
    machine.systemctl("enable", "--now", "npgxd")
    assert [machine.show(unit)["ActiveState"] for unit in UNITS] == ["active"] * 3, machine.journal()
    assert "Ascend910B3" in operator.page("status")
    assert operator.told("status")["daemon"]["version"] == two_versions.OLDER
    findings = operator.told("doctor", code=1)["findings"]
    assert ["are free on its disk" in each["text"] for each in findings if each["grade"] == "bad"] == [True], findings


def keep_the_state_at(operator: Operator, place: str) -> None:
    """As docs/operations.md says."""
    machine = operator.machine
    machine.run("mkdir", "-p", place, "/var/lib/npgxd")
    (machine.etc / "fstab").write_text(f"{place} /var/lib/npgxd none bind\n")
    machine.systemctl("daemon-reload")
    machine.run("mount", "/var/lib/npgxd")


def two_jobs(operator: Operator) -> list[Rank]:
    """A job that serves all day, on two ranks, and waits for a word to ask for more; and one that shares a kernel with it."""
    go = operator.machine.srv / "ranks" / "go"
    more = [[*matmuls(16, 32)], [*matmuls(96, 112)]]
    serving = operator.job("serving", *[matmuls(16, 32)] * 2, rounds=more, pause=f"/srv/ranks/{go.name}")
    eventually(lambda: operator.compiled() == 2, "the first job has its kernels")
    training = operator.job("training", matmuls(32, 48), matmuls(32, 64))
    for rank in training:
        outcome = rank.outcome()
        assert (outcome["state"], outcome["missing"], outcome["torn"]) == ("INSTALLED", 0, 0), operator.machine.journal()
    assert operator.compiled() == 4, "what both ask for was compiled once"
    eventually(lambda: operator.npgxctl("status").returncode == 0, "all is well")
    jobs = operator.told("status")["jobs"]
    assert sorted(len(job["ranks"]) for job in jobs) == [2, 2]
    assert {rank["state"] for job in jobs for rank in job["ranks"]} == {"INSTALLED"}
    assert operator.page("status").count("INSTALLED") >= len(jobs)
    for rank in training:
        rank.end()
    return serving


def mend_an_operator(operator: Operator) -> None:
    """op_compiler refuses an operator: status says which, explain says why, and when it is mended retry is enough."""
    cann = operator.machine.cann
    cann.order("Add", "fail")
    (rank,) = operator.job("broken", [*matmuls(16), *ADD])
    outcome = rank.outcome()
    assert (outcome["state"], outcome["reason"]) == ("DEGRADED", "compile_failed")
    assert "npgxctl explain" in outcome["hint"]
    shown = operator.page("status", code=3)
    assert "compile_failed" in shown
    assert "Add" in shown
    (failure,) = operator.told("status", code=3)["failures"]
    why = operator.page("explain", failure["key"][:12], code=3)
    for said in ("tiling failed", "op_compiler -p", "npgxctl retry"):
        assert said in why, why
    before = operator.compiled()
    cann.cancel_orders()
    rank.end()
    (again,) = operator.job("broken", [*matmuls(16), *ADD])
    assert again.outcome()["state"] == "DEGRADED", "what failed for good is not compiled at every start"
    again.end()
    assert operator.compiled() == before
    operator.page("retry", failure["key"][:12])
    (mended,) = operator.job("broken", [*matmuls(16), *ADD])
    outcome = mended.outcome()
    assert (outcome["state"], outcome["compiled"], outcome["missing"]) == ("INSTALLED", 1, 0), operator.machine.journal()
    mended.end()


def monitor(operator: Operator) -> None:
    """As docs/metrics.md says; it comes with the next restart."""
    machine = operator.machine
    (machine.etc / "npgxd/npgxd.toml.d/metrics.toml").write_text(f'[metrics]\ntextfile = "{TEXTFILE}"\nlisten = "{LISTEN}"\n')
    machine.run("install", "-d", "-o", "npgxd", "-g", "npgxd", str(TEXTFILE.parent))
    operator.page("install-units")


def upgrade_under_a_running_job(operator: Operator, serving: list[Rank]) -> None:
    """Kernels and leases of the older version stay, and its ranks are served by the newer one when they ask for more."""
    machine = operator.machine
    before, kernels = machine.show()["MainPID"], operator.told("status")["kernels"]["count"]
    two_versions.install(machine, operator.newer)
    machine.systemctl("restart", "npgxd")
    assert machine.show()["MainPID"] != before
    told = operator.told("status")
    assert (told["daemon"]["version"], told["kernels"]["count"]) == (two_versions.NEWER, kernels)
    eventually(lambda: f'version="{two_versions.NEWER}"' in machine.run("cat", str(TEXTFILE)), "the metrics are in the textfile")
    get = f"import urllib.request; print(urllib.request.urlopen('http://{LISTEN}/metrics', timeout=60).read().decode())"
    assert f'version="{two_versions.NEWER}"' in machine.run(sys.executable, "-c", get, user="stranger")
    operator.page("gc")
    (machine.srv / "ranks" / "go").touch()
    for rank in serving:
        outcome = rank.outcome()
        assert (outcome["state"], outcome["compiled"]) == ("INSTALLED", 2), f"{outcome}\n{rank.error()}\n{machine.journal()}"
        assert (outcome["missing"], outcome["torn"]) == (0, 0), "kernels of before the upgrade too"
        assert outcome["npgxd"] == two_versions.OLDER
    (later,) = operator.job("upgraded", matmuls(16, 32, 48))
    outcome = later.outcome()
    assert (outcome["npgxd"], outcome["reason"], outcome["missing"]) == (two_versions.NEWER, "hit", 0), outcome
    later.end()


def run_out_of_space_and_recover(operator: Operator) -> None:
    """With a disk that is full to the last byte what is there is served, and nothing is lost; with space it is compiled."""
    machine, disk = operator.machine, operator.disk
    assert disk is not None
    disk.fill()
    (late,) = operator.job("late", matmuls(128))
    assert (late.outcome()["state"], late.outcome()["reason"]) == ("DEGRADED", "no_space"), machine.journal()
    shown = operator.page("status", code=3)
    assert "NO SPACE" in shown, shown
    late.end()
    assert "nothing is compiled" in operator.page("doctor", code=1)
    machine.systemctl("restart", "npgxd")
    eventually(lambda: operator.told("status")["removal"]["last"], "what nobody holds has gone to make room")
    full = operator.job("late", matmuls(16, 32), matmuls(128))
    outcomes = [rank.outcome() for rank in full]
    assert [(each["state"], each["reason"], each["missing"]) for each in outcomes] == [
        ("INSTALLED", "hit", 0),
        ("DEGRADED", "no_space", 1),
    ], f"what a job holds is there for others too: {outcomes}\n{machine.journal()}"
    for rank in full:
        rank.end()
    disk.clear()
    (fits,) = operator.job("late", matmuls(128))
    assert (fits.outcome()["state"], fits.outcome()["missing"]) == ("INSTALLED", 0), machine.journal()
    assert "NO SPACE" not in operator.page("status")
    fits.end()


def reload(operator: Operator) -> None:
    def times() -> int:
        return operator.told("status", code=0)["daemon"]["reload"]["count"]

    before = times()
    operator.machine.systemctl("reload", "npgxd")
    eventually(lambda: times() > before, "the daemon has read its configuration again")


def collect(operator: Operator) -> None:
    """What a running job holds stays; a dry run says what would go."""
    planned = operator.told("gc", "--dry-run")
    assert planned["removed"] == 0, planned
    operator.page("gc")
    operator.page("verify")


def move_the_state(operator: Operator) -> None:
    """To another disk, as docs/operations.md says; every kernel is still there."""
    machine = operator.machine
    everything = [*matmuls(16, 32, 48, 64, 96, 112, 128), *ADD]
    (rank,) = operator.job("moved", everything)
    assert rank.outcome()["state"] == "INSTALLED"
    rank.end()
    before = operator.compiled()
    machine.systemctl("stop", *UNITS)
    machine.run("umount", "/var/lib/npgxd")
    machine.run("mv", "/srv/disk/npgxd", "/srv/moved")
    machine.run("umount", "/srv/disk")
    keep_the_state_at(operator, "/srv/moved")
    machine.systemctl("start", "npgxd")
    (rank,) = operator.job("moved", everything)
    outcome = rank.outcome()
    assert (outcome["state"], outcome["reason"], outcome["missing"], outcome["torn"]) == ("INSTALLED", "hit", 0, 0), (
        f"{outcome}\n{machine.journal()}"
    )
    rank.end()
    assert operator.compiled() == before
    operator.page("verify")
    assert "nothing is wrong" in operator.page("doctor")


def read_the_journal(operator: Operator) -> None:
    """At three in the morning: what needs a look, and nothing else; and of what went well one line an event."""
    read = ("journalctl", "--no-pager", "-o", "cat", "-u", "npgxd")
    warnings = operator.machine.run(*read, "-p", "warning").splitlines()
    needed = ("Add has no kernel", "DEGRADED(compile_failed)", "DEGRADED(no_space)")
    full = ("min_free_gb", "No space left on device", "database or disk is full", "short of free space")
    assert [line for line in warnings if not any(words in line for words in (*needed, *full))] == []
    assert [words for words in needed if not any(words in line for line in warnings)] == []
    others = [line for line in operator.machine.run(*read).splitlines() if line not in warnings]
    assert [line for line in others if any(words in line for words in ("lease ended", "asks for explain", "removed 0 of"))] == []


def remove(operator: Operator) -> None:
    """Nothing is left of it but its kernels, and they go when the operator says so."""
    machine = operator.machine
    assert "kernels stay in /var/lib/npgxd" in operator.page("install-units", "--remove")
    assert machine.processes() == {}
    assert machine.systemctl("show", "--property=LoadState", *UNITS).split() == ["LoadState=not-found"] * 3
    drop_in = machine.etc / "systemd" / "system" / "npgxd.service.d" / "test.conf"
    assert [path for path in machine.etc.rglob("*npgxd*") if path.is_file()] == []
    assert drop_in.exists(), "what somebody else wrote stays"
    assert (machine.srv / "moved" / "FORMAT").exists()
    machine.run("umount", "/var/lib/npgxd")
    machine.run("rm", "-r", "/var/lib/npgxd", "/srv/moved")
