"""A systemd of a test's own, in private namespaces, with npgxd installed as README.md says: unit, system user and configuration as shipped.

Its files lie in one directory; nothing that runs in it can write elsewhere (see systemd_boot.sh).  Killing its first process ends it all,
and that happens also if the test is killed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
from conftest_node import PATIENCE_S, RANK, REPOSITORY, Rank, eventually

from npgxd.store.mounts import parse_mountinfo
from tools.cann_sim import create

if TYPE_CHECKING:
    from conftest_node import Named

BOOT = Path(__file__).with_name("systemd_boot.sh")
UNITS = REPOSITORY / "systemd"
SYSTEMD = Path("/lib/systemd/systemd")
NAMESPACES = ("--pid", "--mount-proc", "--mount", "--cgroup", "--uts", "--ipc", "--net")
PROGRAMS = ("unshare", "nsenter", "setpriv", "findmnt", "systemctl", "systemd-sysusers", "systemd-tmpfiles", "systemd-analyze")

USERS = """\
u rank - "starts ranks" /srv
m rank npgxd
u stranger - "does not belong to the group npgxd" /srv
"""

DROP_IN = """\
[Service]
# Where this test's npgxd is installed.
Environment=PATH={programs}:/usr/bin:/bin
# The simulated op_compiler counts its runs in its own home; the real one leaves CANN alone.
ReadWritePaths=/srv/cann/latest
{private}"""


@cache
def why_not() -> str:
    """Why no systemd can be started here; empty if one can."""
    if os.geteuid() != 0:
        return "needs root, for namespaces and mounts"
    if not SYSTEMD.exists():
        return f"there is no {SYSTEMD}"
    missing = [program for program in PROGRAMS if not shutil.which(program)]
    if missing:
        return f"there is no {missing[0]} (util-linux and systemd have it)"
    tried = subprocess.run(
        ["unshare", "--fork", *NAMESPACES, "mount", "-t", "cgroup2", "cgroup2", "/sys/fs/cgroup"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        return f"namespaces or cgroup2 are not allowed here: {tried.stderr.strip()}"
    try:
        group = _own_cgroup() / f"npgxd-test-probe-{os.getpid()}"
        group.mkdir()
        group.rmdir()
    except OSError as error:
        return f"cannot make a cgroup: {error}"
    return ""


class Machine:
    """One booted systemd. ``srv`` is /srv in it. ``bare``: npgxd is only lying there, and its administrator installs it."""

    def __init__(self, directory: Path, *, bare: bool = False) -> None:
        self.directory = directory
        self.srv = directory / "srv"
        self.state = directory / "var-lib" / "npgxd"
        self.settings: dict[str, dict[str, object]] = {
            "daemon": {"log_level": "debug"},
            "toolchain": {
                "home": "/srv/cann/latest",
                "opp": "/srv/cann/latest/opp",
                "soc": "Ascend910B3",
            },
            "compile": {"workers": 2, "jobs": 2},
        }
        self._group = _own_cgroup() / f"npgxd-test-{os.getpid()}-{directory.name}"
        self._outer: subprocess.Popen[bytes] | None = None
        self._init = 0
        self._ranks: list[subprocess.Popen[bytes]] = []
        self._furnish()
        if not bare:
            self._install()

    # ---- set-up ----

    def _furnish(self) -> None:
        self.directory.chmod(0o755)
        self.srv.mkdir(mode=0o755)
        (self.directory / "var-lib").mkdir(mode=0o755)
        subprocess.run(["cp", "-a", "/etc", self.etc], check=True)
        shutil.rmtree(self.etc / "systemd", ignore_errors=True)  # the machine's own services have no business here,
        (self.etc / "fstab").write_text("")  # nor have its disks
        self.cann = create(self.srv / "cann")
        self.cann.home.chmod(0o777)  # its run log
        (self.srv / "ranks").mkdir()
        (self.srv / "ranks").chmod(0o777)
        (self.etc / "sysusers.d").mkdir(exist_ok=True)
        (self.etc / "sysusers.d" / "ranks.conf").write_text(USERS)
        hidden = [tree for tree in TREES if tree.is_relative_to("/tmp") or tree.is_relative_to("/var/tmp")]
        private = "".join(f"BindReadOnlyPaths={tree}\n" for tree in hidden)  # the unit's PrivateTmp= would hide a checkout there
        self.drop_in("test", DROP_IN.format(programs=Path(sys.executable).parent, private=private))

    def _install(self) -> None:
        for name, target in (
            ("npgxd.service", "systemd/system/npgxd.service"),
            ("npgxd.sysusers.conf", "sysusers.d/npgxd.conf"),
            ("npgxd.toml", "npgxd/npgxd.toml"),
        ):
            (self.etc / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(UNITS / name, self.etc / target)
        self.write_config()

    @property
    def etc(self) -> Path:
        """/etc in it."""
        return self.directory / "etc"

    @property
    def config(self) -> Path:
        """npgxd's configuration."""
        return self.etc / "npgxd" / "npgxd.toml"

    def config_text(self) -> str:
        lines = []
        for section, values in self.settings.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in values.items()]
        return "\n".join(lines) + "\n"

    def write_config(self) -> None:
        self.config.write_text(self.config_text())

    def drop_in(self, name: str, text: str) -> None:
        """Lay settings over the shipped unit; before ``boot``."""
        path = self.etc / "systemd" / "system" / "npgxd.service.d" / f"{name}.conf"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def install_sockets(self) -> None:
        """Install the socket units too, which npgxd.service can do without; before ``boot``."""
        for name, target in (
            ("npgxd.socket", "systemd/system/npgxd.socket"),
            ("npgxd-admin.socket", "systemd/system/npgxd-admin.socket"),
            ("npgxd.tmpfiles.conf", "tmpfiles.d/npgxd.conf"),
        ):
            (self.etc / target).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(UNITS / name, self.etc / target)

    def boot(self) -> None:
        """Start systemd, wait until it is up, and make npgxd's system user and its directories."""
        self._group.mkdir()
        script = 'echo $$ >"$1/cgroup.procs"; shift; exec "$@"'
        unshare = ["setpriv", "--pdeathsig", "KILL", "unshare", "--fork", "--kill-child", *NAMESPACES]
        boot = ["sh", str(BOOT), str(self.directory), *map(str, TREES)]
        with self._console.open("wb") as console:
            self._outer = subprocess.Popen(
                ["sh", "-c", script, "sh", str(self._group), *unshare, *boot],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
            )
        eventually(self._is_up, "systemd is up")
        self.run("systemd-sysusers")
        if (self.etc / "tmpfiles.d" / "npgxd.conf").exists():
            self.run("systemd-tmpfiles", "--create", "npgxd.conf")

    @property
    def _console(self) -> Path:
        return self.directory / "console"

    def _is_up(self) -> bool:
        assert self._outer is not None
        assert self._outer.poll() is None, f"systemd did not start:\n{self._console.read_text(errors='replace')}"
        children = psutil.Process(self._outer.pid).children()
        try:
            if not children or children[0].name() != "systemd":
                return False
        except psutil.NoSuchProcess:  # what is looked at here ends with the next look's assertion
            return False
        self._init = children[0].pid
        up = self.run("systemctl", "is-system-running", check=False)
        time.sleep(0 if up else 0.1)
        return up in {"running", "degraded"}

    # ---- in it ----

    def _enter(self, *argv: str, user: str = "") -> list[str]:
        become = ["setpriv", "--reuid", user, "--regid", user, "--init-groups"] if user else []
        return ["nsenter", "-t", str(self._init), "-m", "-p", "-i", "-u", "-C", "-n", *become, *argv]

    def done(self, *argv: str, user: str = "") -> subprocess.CompletedProcess[str]:
        """A command that has run in it, with its exit and all that it said."""
        return subprocess.run(
            self._enter(*argv, user=user),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )

    def run(self, *argv: str, check: bool = True, user: str = "") -> str:
        """The output of a command that runs in it, without blanks around."""
        done = self.done(*argv, user=user)
        assert done.returncode == 0 or not check, f"{argv}: {done.returncode}\n{done.stderr}\n{self.journal()}"
        return done.stdout.strip()

    def systemctl(self, *argv: str, check: bool = True) -> str:
        return self.run("systemctl", *argv, check=check)

    def begin(self, *argv: str, user: str = "") -> subprocess.Popen[bytes]:
        """A command that is not waited for."""
        return self._spawn(self._enter(*argv, user=user), self.directory / "begun")

    def show(self, unit: str = "npgxd.service") -> dict[str, str]:
        """All properties of a unit."""
        return dict(line.split("=", 1) for line in self.systemctl("show", unit).splitlines())

    def journal(self) -> str:
        """What the unit logged, and what systemd said of it."""
        read = self._enter("journalctl", "--no-pager", "-o", "short-monotonic", "-u", "npgxd")
        return subprocess.run(read, capture_output=True, text=True, timeout=PATIENCE_S, check=False).stdout

    def processes(self) -> dict[int, str]:
        """The processes in the unit's cgroup, by their pid on this side, with their command lines."""
        found = {}
        for path in self._group.glob("system.slice/npgxd.service/**/cgroup.procs"):
            for pid in map(int, path.read_text().split()):
                try:
                    found[pid] = " ".join(psutil.Process(pid).cmdline())
                except psutil.Error:
                    continue
        return found

    def compilers(self) -> list[int]:
        """Running op_compiler processes."""
        return [pid for pid, command in self.processes().items() if "/srv/cann/latest/bin/op_compiler" in command]

    def rank(self, items: Named, *, user: str = "rank", options: dict[str, Any] | None = None, **variables: str) -> Rank:
        """A rank process of ``user``, that finds the daemon by itself; ``variables``: of its environment, as a launcher sets them."""
        number = len(self._ranks)
        (self.srv / "ranks" / f"{number}.ask.json").write_text(json.dumps({"records": items, **(options or {})}))
        report = self.srv / "ranks" / f"{number}.json"
        inside = Path("/srv/ranks")
        environment = [
            f"PATH={os.defpath}",
            f"PYTHONPATH={REPOSITORY}",
            f"HOME=/srv/ranks/home-{user}",
            f"XDG_CACHE_HOME=/srv/ranks/cache-{user}",
            *(f"{name}={value}" for name, value in variables.items()),
        ]
        ask = [str(inside / f"{number}.ask.json"), str(inside / report.name)]
        command = ["env", "-i", "-C", "/srv/ranks", *environment, sys.executable, "-B", str(RANK), *ask]
        return Rank(self._spawn(self._enter(*command, user=user), report.with_suffix(".err")), report)

    def _spawn(self, command: list[str], output: Path) -> subprocess.Popen[bytes]:
        with output.open("wb") as log:
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log)
        self._ranks.append(process)
        return process

    # ---- the end ----

    def close(self) -> None:
        """End it, with everything that runs in it."""
        if self._outer is not None:
            self._outer.kill()  # and the kernel kills systemd with it, and the pid namespace with that
            self._outer.wait()
            eventually(lambda: not self._populated(), "nothing is left of the machine")
        for process in self._ranks:
            process.kill()
            process.wait()
            if process.stdin is not None:
                process.stdin.close()
        for path in sorted(self._group.rglob("*/"), reverse=True):
            path.rmdir()
        if self._group.exists():
            self._group.rmdir()
        shutil.rmtree(self.etc, ignore_errors=True)  # it has copies of what the machine keeps to itself

    def _populated(self) -> bool:
        return self._group.exists() and "populated 1" in (self._group / "cgroup.events").read_text()


def facts(machine: Machine, *paths: str) -> list[str]:
    """Owner, group and mode of paths in it."""
    return machine.run("stat", "-c", "%U %G %a", *paths).splitlines()


def status_of(pid: int) -> dict[str, str]:
    """/proc/PID/status."""
    lines: dict[str, Any] = {}
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        lines[name] = value.strip()
    return lines


def _own_cgroup() -> Path:
    """This process's cgroup in the unified hierarchy; FileNotFoundError where there is none."""
    path = next((line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "/")
    for mount in parse_mountinfo(Path("/proc/self/mountinfo").read_text()):
        if mount.type == "cgroup2":
            return Path(mount.point) / path.lstrip("/")
    raise FileNotFoundError("no cgroup2 is mounted")


def _outermost(trees: list[Path]) -> list[Path]:
    """``trees`` without those that lie in another, or where everybody can read anyway."""
    whole = {tree.resolve() for tree in trees} | {tree.absolute() for tree in trees}
    return sorted(
        tree for tree in whole if not tree.is_relative_to("/usr") and not any(tree.is_relative_to(o) for o in whole - {tree})
    )


TREES = _outermost([REPOSITORY, Path(sys.prefix), Path(sys.base_prefix)])
"""What must be readable in there: the repository, the virtual environment, its Python."""
