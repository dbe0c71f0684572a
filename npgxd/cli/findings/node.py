"""The node: the daemon's state and its disk, limits, variables of ranks, and what other installers left lying about."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.cli.document import Node, duration, size
from npgxd.cli.findings._finding import Finding, Grade
from npgxd.store.mounts import mount_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

OUTPUTS = "static_kernel_compile_outputs"
LOW_SPACE = 1_000_000_000
FEW_DESCRIPTORS = 1024


def check_state(status: Node) -> Iterator[Finding]:
    """Where kernels are kept."""
    place = status.node("daemon").text("state_dir", "")
    if not place:
        return
    path = Path(place)
    store = status.node("daemon").text("store_id")[:12]
    if not path.is_dir():
        yield Finding(
            Grade.BAD,
            "state",
            f"the daemon keeps kernels in {place}, which is not visible here",
            f"mount it here, read-only, at the same path, or name its place in NPGXD_STORE (store {store})",
        )
        return
    mount = mount_of(path)
    free = shutil.disk_usage(path).free
    kind = f" ({mount.type})" if mount is not None else ""
    text = f"{place}{kind}: {size(status.node('kernels').number('bytes'))} of kernels, {size(free)} free"
    yield Finding(Grade.GOOD, "state", text)
    if problem := status.text("problem", ""):
        do = "where no mode is named below, the disk: dmesg; npgxctl verify says what is damaged"
        yield Finding(Grade.BAD, "state", f"the daemon cannot read all of it: {problem}", do)
    yield from closed(path, status.node("daemon").number("uid"))
    disk = status.node("disk")
    if disk.flag("slow"):
        waits = f", now at {disk.text('waits_for')} for {duration(disk.number('waits_s'))}" if disk.text("waits_for", "") else ""
        yield Finding(
            Grade.BAD,
            "state",
            f"its disk does not answer, for {duration(disk.number('slow_s'))}{waits}: what is compiled waits for it",
            f"dmesg, iostat -x 1, and whatever else writes to {mount.point if mount is not None else path}; nothing is lost, and it goes "
            "on by itself when the disk answers: until then new starts run with dynamic kernels",
        )
    wanted = status.node("removal").number("min_free_bytes") or 0
    if free < wanted:
        yield Finding(
            Grade.BAD,
            "state",
            f"only {size(free)} are free on its disk, and [store] min_free_gb asks for {size(wanted)}: nothing is compiled",
            "free space on that disk (npgxctl gc removes what nobody needs), or lower it and systemctl reload npgxd",
        )
    elif free < LOW_SPACE:
        yield Finding(
            Grade.BAD,
            "state",
            f"only {size(free)} are free on its disk",
            "free some, or lower [store] max_gb; npgxctl gc removes now",
        )
    if mount is not None and mount.is_memory:
        yield Finding(
            Grade.NOTE,
            "state",
            f"{mount.point} is in memory: kernels are lost at the next boot",
            "set [daemon] state_dir to a disk",
        )
    if mount is not None and mount.noexec:
        yield Finding(
            Grade.NOTE,
            "state",
            f"{mount.point} is mounted noexec: run packages cannot be installed from it",
            f"mount -o remount,exec {mount.point}",
        )


def closed(path: Path, uid: float | None) -> Iterator[Finding]:
    """Directories of the state at ``path`` that the daemon's own user may not use."""
    if not uid:  # root may, whatever their modes
        return
    try:
        places = [path, *(each for each in sorted(path.iterdir()) if each.is_dir())]
    except OSError:
        places = [path]
    for place in places:
        found = place.stat()
        if found.st_uid != uid:
            yield Finding(
                Grade.BAD,
                "state",
                f"{place} belongs to uid {found.st_uid}, and the daemon is {uid:.0f}",
                f"chown {uid:.0f} {place}",
            )
        elif found.st_mode & stat.S_IRWXU != stat.S_IRWXU:
            mode = stat.S_IMODE(found.st_mode)
            yield Finding(
                Grade.BAD, "state", f"the mode of {place} is {mode:04o}: the daemon itself may not use it", f"chmod u+rwx {place}"
            )


def check_limits() -> Iterator[Finding]:
    """What this shell's children inherit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard <= FEW_DESCRIPTORS:
        yield Finding(
            Grade.NOTE,
            "limits",
            f"{hard} open files at most, for a daemon that is started here",
            "ulimit -Hn 16384; the unit sets it",
        )
    else:
        yield Finding(Grade.GOOD, "limits", f"{soft} open files, {len(os.sched_getaffinity(0))} processors")


def check_ranks(environ: Mapping[str, str], status: Node) -> Iterator[Finding]:
    """Variables of ranks, here and in the jobs that are connected."""
    world, local = environ.get("WORLD_SIZE", ""), environ.get("LOCAL_WORLD_SIZE", "")
    if world.isdecimal() and int(world) > 1 and not local:
        yield Finding(
            Grade.NOTE,
            "ranks",
            f"WORLD_SIZE={world} without LOCAL_WORLD_SIZE: ranks do not wait for each other's records",
            "set LOCAL_WORLD_SIZE to the ranks on this node, or [group] local_world_size for all jobs",
        )
    for job in status.nodes("jobs"):
        if note := job.text("note", ""):
            yield Finding(
                Grade.NOTE,
                "ranks",
                f"{job.text('program')}: {note}",
                "set LOCAL_WORLD_SIZE alike in all ranks of a job on this node",
            )
    wait = environ.get("NPGXD_WAIT", "")
    if wait:
        yield Finding(Grade.GOOD, "ranks", f"NPGXD_WAIT={wait} decides how long ranks wait for kernels")


def check_leftovers(directory: Path) -> Iterator[Finding]:
    """What compiles without a daemon left in the working directory."""
    tree = directory / OUTPUTS
    if not tree.is_dir():
        return
    runs = sum(1 for _ in tree.glob("ts*_outputs"))
    yield Finding(
        Grade.NOTE,
        "leftovers",
        f"{tree} has the outputs of {runs} runs",
        f"npgxctl import {tree} takes their records, so that nothing in them is compiled again at a start; then the tree is only history",
    )
