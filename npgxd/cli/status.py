"""``npgxctl status``: the node at a glance, or as JSON for scripts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.cli.ask import status_document
from npgxd.cli.cache import summary_line
from npgxd.cli.commands import Command
from npgxd.cli.document import Node, clean, duration, size
from npgxd.cli.exits import STATUS_TABLE, Exit
from npgxd.cli.page import Line, Tone, show
from npgxd.wire.printable import counted
from npgxd.wire.states import ClientState

if TYPE_CHECKING:
    import argparse

_TONES = {
    ClientState.INSTALLED: Tone.GOOD,
    ClientState.DEGRADED: Tone.BAD,
    ClientState.DISABLED: Tone.NOTE,
    ClientState.RECORDING: Tone.BUSY,
    ClientState.QUEUED: Tone.BUSY,
    ClientState.COMPILING: Tone.BUSY,
}
_EXITS = (
    ({ClientState.DEGRADED}, Exit.DEGRADED),
    ({ClientState.DISABLED}, Exit.DISABLED),
    ({ClientState.QUEUED, ClientState.COMPILING}, Exit.COMPILING),
    ({ClientState.RECORDING}, Exit.RECORDING),
)
_FINGERPRINT_DIGITS = 12
_SILENT_S = 60.0
"""A run that has told nothing for so long is shown with that."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of ``npgxctl status``."""
    parser.add_argument("--json", action="store_true", help="print the whole status document (docs/file-formats.md)")
    parser.add_argument(
        "--daemon",
        action="store_true",
        help="only whether the daemon serves, for probes: 0, 7 or 69, whatever states ranks are in",
    )
    parser.add_argument("--socket", type=Path, metavar="PATH", help="ask the daemon at this socket")


def run(options: argparse.Namespace) -> int:
    """Show the daemon's status; the code for the state that the node is in."""
    document = status_document(options.socket)
    if options.json:
        json.dump(document, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show(daemon_page(document) if options.daemon else page(document, now=time.time()))
    return exit_code(document, ranks=not options.daemon)


def exit_code(document: object, *, ranks: bool = True) -> Exit:
    """The first of the table in ``npgxd.cli.exits`` that applies; without ``ranks`` only of what the daemon itself is in."""
    root = Node(document)
    if root.node("daemon").text("state") != "READY" or not _serves(root.node("toolchain")):
        return Exit.NOT_SERVING
    if not ranks:
        return Exit.OK
    states = {rank.text("state") for job in root.nodes("jobs") for rank in job.nodes("ranks")}
    return next((code for among, code in _EXITS if states & among), Exit.OK)


def page(document: object, *, now: float) -> list[Line]:
    """The document as lines. ``now`` is wall clock seconds, for the age of failures."""
    root = Node(document)
    return [
        *daemon_page(document),
        *_unreadable(root.text("problem", "")),
        *_disk(root.node("disk"), _published(root.node("workers"))),
        *_workers(root.node("workers")),
        _queue(root.node("queue"), _published(root.node("workers")), slow=root.node("disk").flag("slow")),
        _kernels(root.node("kernels")),
        *_removal(root.node("removal")),
        _cache(root.node("cache")),
        *_artifacts(root.node("artifacts")),
        *(line for job in root.nodes("jobs") for line in _job(job)),
        *([] if root.nodes("jobs") else [Line("jobs", "no process is connected")]),
        *_failures(root.nodes("failures"), now),
        *(_churn(call) for call in root.nodes("churn")),
    ]


def daemon_page(document: object) -> list[Line]:
    """The daemon and its toolchain alone."""
    root = Node(document)
    return [_daemon(root.node("daemon")), *_reload(root.node("daemon").node("reload")), *_toolchain(root.node("toolchain"))]


def _daemon(daemon: Node) -> Line:
    state = daemon.text("state")
    text = f"npgxd {daemon.text('version')}, pid {daemon.text('pid')}, up {duration(daemon.number('uptime_s'))}"
    text += f", state in {daemon.text('state_dir')}, socket {daemon.text('socket')}"
    return Line("daemon", text, Tone.GOOD if state == "READY" else Tone.NOTE, mark=state)


def _reload(reload: Node) -> list[Line]:
    """What the last reload of the configuration could not do; nothing where all of it is in force."""
    lines = []
    if reload.text("problem", ""):
        lines.append(Line("config", f"not reloaded, the old one counts: {reload.text('problem')}", Tone.BAD, mark="REFUSED"))
    if reload.names("restart_needed"):
        waiting = ", ".join(reload.names("restart_needed"))
        lines.append(Line("config", f"waits for a restart: {waiting}", Tone.NOTE, mark="CHANGED"))
    return lines


def _serves(toolchain: Node) -> bool:
    return bool(toolchain) and toolchain.text("problem", "") == ""


def _toolchain(toolchain: Node) -> list[Line]:
    if not _serves(toolchain):
        return [Line("toolchain", toolchain.text("problem", "no CANN toolchain"), Tone.BAD, mark="UNUSABLE")]
    cores = toolchain.node("cores")
    counts = f", {cores.text('vector')} vector and {cores.text('cube')} cube cores" if cores else ""
    text = f"CANN {toolchain.text('cann_version')} for {toolchain.text('soc')} ({toolchain.text('family')}){counts}"
    text += f", fingerprint {toolchain.text('fingerprint')[:_FINGERPRINT_DIGITS]}, at {toolchain.text('home')}"
    if toolchain.flag("simulated"):
        return [Line("toolchain", text, Tone.NOTE, mark="SIMULATED")]
    return [Line("toolchain", text)]


def _unreadable(problem: str) -> list[Line]:
    """What the daemon cannot read of its state: other lines lack what it would have told."""
    return [Line("state", f"{problem}; npgxctl doctor", Tone.BAD, mark="UNREADABLE")] if problem else []


def _published(workers: Node) -> int:
    """Kernels that are compiled and are not in the store yet."""
    return sum(job.count("left") for job in workers.nodes("jobs") if job.text("stage", "") == "publishing")


def _disk(disk: Node, waiting: int) -> list[Line]:
    """A disk that does not answer; nothing of one that does."""
    if not disk.flag("slow"):
        return []
    text = f"the disk does not answer, for {duration(disk.number('slow_s'))}"
    if disk.text("waits_for", ""):
        text += f" (now at {disk.text('waits_for')}, for {duration(disk.number('waits_s'))})"
    if waiting:
        text += f": {counted(waiting, 'compiled kernel waits', 'compiled kernels wait')} for it"
    return [Line("disk", f"{text}; npgxctl doctor", Tone.BAD, mark="SLOW")]


def _workers(workers: Node) -> list[Line]:
    busy = workers.count("busy")
    text = f"{busy} of {workers.text('limit')} busy"
    if workers.count("processes"):
        text += f", at most {counted(workers.count('processes'), 'compiler process', 'compiler processes')}"
        text += f" ({workers.text('bound_by')})" if workers.text("bound_by", "") else ""
    lines = [Line("workers", text, Tone.BUSY if busy else Tone.PLAIN)]
    starved = workers.node("starved")
    if starved:
        few = counted(starved.count("processes"), "compiler process", "compiler processes")
        text = f"memory ran out: at most {few} for {duration(starved.number('for_s'))} more, then step by step as many as before"
        lines.append(Line("workers", text, Tone.NOTE, mark="FEWER"))
    for job in workers.nodes("jobs"):
        if job.text("stage", "") == "publishing":
            lines.append(_publishing(job))
            continue
        otherwise = "ending" if job.text("stage", "") == "installing" or job.count("done") >= job.count("keys") else "starting"
        current = ", ".join(job.names("current")[:6]) or otherwise
        text = f"{current}; {duration(job.number('elapsed_s'))} of at most {duration(job.number('deadline_s'))}"
        if (job.number("silent_s") or 0.0) >= _SILENT_S:
            text += f", no sign of life for {duration(job.number('silent_s'))}"
        text += f", job {job.text('job')[:8]}, pid {job.text('pid')}"
        lines.append(Line("compiles", text, Tone.BUSY, mark=f"{job.count('done')}/{job.count('keys')}", indent=2))
    return lines


def _publishing(job: Node) -> Line:
    """A run whose op_compiler has ended."""
    text = f"what op_compiler made goes into the store; {duration(job.number('elapsed_s'))}, job {job.text('job')[:8]}"
    return Line("publishes", text, Tone.BUSY, mark=f"{job.count('keys') - job.count('left')}/{job.count('keys')}", indent=2)


def _queue(queue: Node, published: int, *, slow: bool) -> Line:
    waiting, compiling = queue.count("keys_waiting"), max(0, queue.count("keys_compiling") - published)
    rounds = queue.nodes("rounds")
    if not (waiting or compiling or published or rounds):
        return Line("queue", "empty")
    if not (waiting or compiling or published):
        return Line("queue", f"{counted(len(rounds), 'round waits', 'rounds wait')} for other ranks of the job", Tone.BUSY)
    text = f"{counted(waiting, 'kernel waits', 'kernels wait')}, {counted(compiling, 'compiles', 'compile')}"
    text += f", {counted(published, 'is published', 'are published')}" if published else ""
    stalled = max((each.number("stalled_s") or 0.0 for each in rounds), default=0.0)
    left = [eta for eta in (each.number("eta_s") for each in rounds) if eta is not None]
    about = f", about {duration(max(left))} left" if left and not slow else ""  # how long a disk takes nobody can tell
    if stalled:
        about = f"; nothing has moved for {duration(stalled)}, longer than expected"
    text = f"{text}, for {counted(len(rounds), 'round')}{about}"
    return Line("queue", text, Tone.NOTE if stalled else Tone.BUSY, mark="STALLED" if stalled else "")


def _kernels(kernels: Node) -> Line:
    if not kernels:
        return Line("kernels", "not known", Tone.NOTE)
    return Line(
        "kernels",
        f"{counted(kernels.count('count'), 'kernel')} ({size(kernels.number('bytes'))}), "
        f"{counted(kernels.count('packages'), 'run package')}, {counted(kernels.count('views'), 'view')}, "
        f"{counted(kernels.count('leases'), 'lease')}",
    )


def _removal(removal: Node) -> list[Line]:
    """What is retired and pinned, and what the last pass of removal did; nothing where there is nothing to tell."""
    last, facts = removal.node("last"), []
    if removal.count("retired"):
        facts.append(f"{removal.count('retired')} retired (another toolchain's, or compiled anew since)")
    if removal.count("pinned"):
        facts.append(f"{removal.count('pinned')} pinned")
    if last:
        did = f"removed {last.count('removed')} of {counted(last.count('scanned'), 'kernel')}, {size(last.number('freed_bytes'))}"
        facts.append(f"last gc {duration(last.number('ago_s'))} ago {did}")
    if removal.flag("running"):
        facts.append("gc under way")
    lines = [Line("removal", "; ".join(facts))] if facts else []
    if removal.text("hold", ""):
        lines.append(Line("removal", removal.text("hold"), Tone.NOTE, mark="ON HOLD"))
    if removal.text("problem", ""):
        lines.append(Line("removal", removal.text("problem"), Tone.BAD, mark="FAILED"))
    if last.flag("over"):
        lines.append(Line("removal", "more is needed than [store] max_gb allows", Tone.NOTE, mark="OVER"))
    free, wanted = removal.number("free_bytes"), removal.number("min_free_bytes")
    if free is not None and wanted is not None and free < wanted:
        text = (
            f"{size(free)} are free on the disk, [store] min_free_gb asks for {size(wanted)}: nothing is compiled; npgxctl doctor"
        )
        lines.append(Line("removal", text, Tone.BAD, mark="NO SPACE"))
    return lines


def _cache(cache: Node) -> Line:
    if not cache:
        return Line("cache", "not known", Tone.NOTE)
    hits, compiled, failed = cache.count("hits"), cache.count("compiled"), cache.count("failed")
    asked = hits + compiled + failed
    rate = f"hit rate {hits / asked:.1%}" if asked else "nothing asked for yet"
    text = f"{rate}: {counted(hits, 'hit')}, {compiled} compiled, {failed} failed; "
    text += f"{counted(cache.count('rounds'), 'round')} of {counted(cache.count('records'), 'record')}"
    return Line("cache", text)


def _artifacts(summary: Node) -> list[Line]:
    """The compile cache; a daemon of before it has none."""
    return [summary_line(summary)] if summary else []


def _job(job: Node) -> list[Line]:
    ranks = job.nodes("ranks")
    local = job.number("local_world_size")
    expected = f"{len(ranks)} of " if local is not None and local != len(ranks) else ""
    here = counted(int(local) if local is not None else len(ranks), "rank")
    text = f"{job.text('program')}, uid {job.text('uid')}, {expected}{here} here"
    if job.number("world_size") is not None:
        text += f", {job.text('world_size')} in all"
    lines = [Line("job", text, mark=job.text("job"))]
    if job.text("note", ""):
        lines.append(Line("note", job.text("note"), Tone.NOTE, indent=2))
    width = max((len(_state(rank)) for rank in ranks), default=0)
    return lines + [_rank(rank, width) for rank in ranks]


def _rank(rank: Node, width: int) -> Line:
    facts = [f"pid {rank.text('pid')}"]
    if rank.text("graph", ""):
        facts.append(f"graph {rank.text('graph')}")
    if rank.count("leases"):
        facts.append(counted(rank.count("leases"), "lease"))
    if rank.text("detail", ""):
        facts.append(rank.text("detail"))
    tone = next((tone for state, tone in _TONES.items() if state == rank.text("state")), Tone.PLAIN)
    name = f"rank {rank.text('rank', rank.text('local_rank', '-'))}"
    return Line(name, ", ".join(facts), tone, mark=f"{_state(rank):<{width}}", indent=2)


def _state(rank: Node) -> str:
    state = rank.text("state")
    if state == ClientState.COMPILING:
        return f"{state}({rank.count('done')}/{rank.count('total')})"
    reason = rank.text("reason", "")
    return f"{state}({reason})" if reason else state


def _failures(failures: list[Node], now: float) -> list[Line]:
    if not failures:
        return []
    lines = [Line("failures", counted(len(failures), "kernel could not be compiled", "kernels could not be compiled"), Tone.BAD)]
    for failure in failures:
        at = failure.number("at")
        ago = f"{duration(max(0.0, now - at))} ago, " if at else ""
        text = f"{failure.text('reason')} ({ago}key {failure.text('key')[:12]})"  # the reason says how often it was tried
        lines.append(Line("", text, Tone.BAD, mark=clean(failure.text("op_type")), indent=2))
    return lines


def _churn(call: Node) -> Line:
    graph = f"graph {call.text('graph')}" if call.text("graph", "") else "all graphs"
    rounds = counted(call.count("rounds"), "round")
    text = f"{call.text('what')} changed in {rounds} of {graph}, job {call.text('job')}, {call.text('process')}: "
    text += f"{counted(call.count('not_compiled'), 'kernel was', 'kernels were')} not compiled for it; {call.text('remedy')}, "
    text += f"or raise {call.text('option')}; npgxctl retry --op {call.text('op_type')} counts anew"
    return Line("churn", text, Tone.BAD, mark=call.text("op_type"))


COMMAND = Command("status", "show the daemon, its kernels and every rank's state", STATUS_TABLE, configure, run)
