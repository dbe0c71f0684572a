"""``npgxctl explain``: why a kernel, a process, a round or a job is as it is."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from npgxd.cli.admin_ask import SCHEMA, Admin
from npgxd.cli.ask import explained_document
from npgxd.cli.commands import Command
from npgxd.cli.document import Node, duration
from npgxd.cli.exits import EXPLAIN_TABLE, Exit
from npgxd.cli.page import Line, Tone, show
from npgxd.errors import ConfigError, ProtocolError, RequestRefused
from npgxd.wire.endpoint import ADMIN_SOCKET_NAME, find_socket, probe
from npgxd.wire.explain_messages import WHAT_HELP, Explain
from npgxd.wire.printable import counted
from npgxd.wire.states import ClientState

if TYPE_CHECKING:
    import argparse

_IN_FLIGHT = ("waiting", "compiling", "installing", "publishing")
_TONES = {"present": Tone.GOOD, "failed": Tone.BAD, "unknown": Tone.NOTE, **dict.fromkeys(_IN_FLIGHT, Tone.BUSY)}
_EXITS = {
    "present": Exit.OK,
    "failed": Exit.DEGRADED,
    "unknown": Exit.PROBLEMS,
    **dict.fromkeys(_IN_FLIGHT, Exit.COMPILING),
}
_DIGITS = 12
_LOG_LINES = 15
_FEW = 4
"""Operators that one line names."""


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of ``npgxctl explain``."""
    parser.add_argument("what", metavar="KEY|PID|ROUND|JOB", help=WHAT_HELP)
    parser.add_argument("--json", action="store_true", help="print the whole document (docs/file-formats.md)")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="ask the daemon at this npgxd.sock or admin.sock")


def run(options: argparse.Namespace) -> int:
    """Explain one thing; the code for the state that it is in."""
    try:
        message = Explain.parse({"what": options.what.lower()})
    except ProtocolError:
        hint = f"give {WHAT_HELP}; of an operator, the key that npgxctl status or npgxctl logs shows"
        raise ConfigError(f"{options.what!r} names nothing that can be explained", hint=hint) from None
    try:
        document = _ask(message, options.socket)
    except RequestRefused as refused:
        if refused.refusal not in {"NOTHING_FOUND", "AMBIGUOUS"}:
            raise
        print(f"npgxctl: {refused}", file=sys.stderr)
        return Exit.PROBLEMS
    if options.json:
        json.dump(document, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        show(page(document, now=time.time()))
    return exit_code(document)


def _ask(message: Explain, socket: Path | None) -> dict[str, object]:
    """Whoever may ask as an administrator is told everything; others their own. It is the daemon that ``status`` asks, too."""
    path = socket if socket is not None else find_socket(os.environ)
    admin = path.with_name(ADMIN_SOCKET_NAME)
    if path == admin or not probe(admin):
        with Admin(admin) as daemon:
            return {"schema": SCHEMA, **daemon.ask(message)}
    return explained_document(path, message)


def exit_code(document: object) -> Exit:
    """The code for the state of what was explained (``EXPLAIN_TABLE``)."""
    root = Node(document)
    if root.text("kind") == "kernel":
        return _EXITS.get(root.text("state"), Exit.PROBLEMS)
    rounds = [root] if root.text("kind") == "round" else root.nodes("rounds")[-1:]
    if any(each.text("outcome", "") == "" for each in rounds):
        return Exit.COMPILING
    states = {each.text("outcome") for each in rounds} | {each.text("state") for each in root.nodes("sessions")}
    if ClientState.DEGRADED in states:
        return Exit.DEGRADED
    return Exit.DISABLED if ClientState.DISABLED in states else Exit.OK


def page(document: object, *, now: float) -> list[Line]:
    """The document as lines. ``now`` is wall clock seconds, for ages."""
    root = Node(document)
    if root.text("kind") == "kernel":
        return _kernel(root, now)
    if root.text("kind") == "round":
        return _round(root)
    lines = [line for session in root.nodes("sessions") for line in _session(session)]
    if root.text("kind") == "process" and not lines:
        lines.append(Line("process", f"{root.text('pid')} is not connected any more; this is what it asked for", mark="ENDED"))
    hidden = root.count("sessions_total") - len(root.nodes("sessions"))
    if hidden > 0:
        lines.append(Line("process", f"{hidden} more are not shown: npgxctl status"))
    lines += [line for told in root.nodes("rounds") for line in _round(told)]
    left = root.count("rounds_total") - len(root.nodes("rounds"))
    if left > 0:
        lines.append(Line("rounds", f"{left} earlier ones are not shown"))
    return lines or [Line("process", "nothing is known of it")]


# ---- a kernel --------------------------------------------------------------------------------------------------------


def _kernel(root: Node, now: float) -> list[Line]:
    state = root.text("state")
    lines = [Line("kernel", f"{root.text('op_type')}, key {root.text('key')}", _TONES.get(state, Tone.PLAIN), mark=state.upper())]
    if root.text("why", ""):
        lines.append(Line("why", root.text("why"), _TONES.get(state, Tone.PLAIN) if state == "failed" else Tone.PLAIN))
    kernel = root.node("kernel")
    if kernel:
        made = duration(now - (kernel.number("made_at") or now))
        text = f"id {kernel.text('id')[:_DIGITS]}, made {made} ago in {kernel.number('cost_s') or 0.0:.2f} s for {kernel.text('soc')} "
        text += f"with CANN {kernel.text('cann_version')}, fingerprint {kernel.text('fingerprint')[:_DIGITS]}, "
        lines.append(Line("stored", text + f"out of {kernel.text('package_name', kernel.text('package')[:_DIGITS])}"))
    lines += _failure(root.node("failure"), now)
    if root.names("pinned"):
        lines.append(Line("pinned", ", ".join(root.names("pinned"))))
    for tried in root.nodes("tries"):
        text = (
            f"{tried.text('reason')} ({duration(tried.number('ago_s'))} ago, among {counted(tried.count('kernels'), 'kernel')}, "
        )
        text += f"-j {tried.count('processes')}, job {tried.text('job')[:_DIGITS]})"
        lines.append(Line("tried", text, Tone.BAD, mark=tried.text("outcome")))
    lines += [_waiter(each) for each in root.nodes("waiting")]
    hidden = root.count("waiting_total") - len(root.nodes("waiting"))
    if hidden > 0:
        lines.append(Line("waits", f"{counted(hidden, 'round')} more"))
    return lines + [line for job in root.nodes("jobs") for line in _job(job, now)]


def _failure(failure: Node, now: float) -> list[Line]:
    if not failure:
        return []
    until = failure.number("until")
    how_long = f"for another {duration(until - now)}" if until else "until the toolchain changes"
    at = failure.number("at") or now
    text = f"after {counted(failure.count('attempts'), 'try', 'tries')}, {duration(max(0.0, now - at))} ago; "
    text += f"it is not tried again {how_long}, unless npgxctl retry {failure.text('key')[:_DIGITS]} clears that"
    return [Line("failed", text, Tone.BAD, mark=failure.text("outcome"))]


def _waiter(each: Node) -> Line:
    text = f"round {each.text('round')[:_DIGITS]} of job {each.text('job')}, uid {each.text('uid')}, pid {each.text('pid')}, "
    text += f"rank {each.text('rank', '-')}, graph {each.text('graph', '-')}, for {duration(each.number('elapsed_s'))}"
    return Line("waits", text, Tone.BUSY, mark=each.text("state"))


def _job(job: Node, now: float) -> list[Line]:
    outcome = job.text("outcome")
    tone = Tone.BUSY if job.flag("running") else Tone.GOOD if outcome == "compiled" else Tone.BAD
    began = duration(max(0.0, now - (job.number("began_at") or now)))
    text = f"job {job.text('job')[:_DIGITS]}, begun {began} ago"
    if not job.flag("running"):
        text += f", {job.number('wall_s') or 0.0:.1f} s"
    if job.text("reason", ""):
        text += f": {job.text('reason')}"
    lines = [Line("job", text, tone, mark=outcome)]
    if job.text("command", ""):
        code = job.text("exit_code", "none")
        told = (
            ""
            if job.flag("running")
            else f" (exit status {code}; {job.count('compiled')} of {counted(job.count('keys'), 'kernel')})"
        )
        lines.append(Line("command", job.text("command") + told, indent=2))
    if job.text("directory", ""):
        lines.append(Line("logs", job.text("directory"), indent=2))
    for log in job.nodes("logs"):
        lines.append(Line("log", log.text("file", "the end of its output"), indent=2))
        lines += [Line("", line, indent=4) for line in log.lines("text")[-_LOG_LINES:]]
    return lines


# ---- rounds and processes --------------------------------------------------------------------------------------------


def _round(root: Node) -> list[Line]:
    outcome = root.text("outcome", "")
    mark = f"{outcome}({root.text('reason')})" if outcome else root.text("state")
    tone = Tone.BUSY if not outcome else Tone.GOOD if outcome == ClientState.INSTALLED else Tone.BAD
    text = f"{root.text('round')[:_DIGITS]} of job {root.text('job')}, uid {root.text('uid')}, pid {root.text('pid')}, "
    text += f"rank {root.text('rank', '-')}, graph {root.text('graph', '-')}"
    lines = [Line("round", text, tone, mark=mark)]
    counts = f"{counted(root.count('records'), 'record')}, {root.count('unique')} different: {root.count('done')} done"
    if outcome:
        counts += f" ({root.count('hits')} hit, {root.count('compiled')} compiled)"
    counts += f", {duration(root.number('elapsed_s'))}"
    if root.number("stalled_s"):
        counts += f", nothing has moved for {duration(root.number('stalled_s'))}, longer than expected"
    elif root.number("eta_s"):
        counts += f", about {duration(root.number('eta_s'))} left"
    lines.append(Line("kernels", counts, indent=2))
    for name, label in (("why", "why"), ("detail", "detail"), ("hint", "remedy")):
        if root.text(name, ""):
            lines.append(Line(label, root.text(name), Tone.NOTE if name == "why" else Tone.PLAIN, indent=2))
    lines += [
        Line("waits for", f"{_key(each)}, {each.text('state')}", Tone.BUSY, each.text("op_type"), 2)
        for each in root.nodes("waits_for")
    ]
    hidden = root.count("waits_for_total") - len(root.nodes("waits_for"))
    if hidden > 0:
        lines.append(Line("waits for", f"{counted(hidden, 'kernel')} more", Tone.BUSY, indent=2))
    for label, name in (("no kernel", "failures"), ("shadowed", "shadowed")):
        lines += _alike(label, root.nodes(name))
    return lines + [Line("rejected", _said(each), Tone.BAD, each.text("name"), 2) for each in root.nodes("rejected")]


def _alike(label: str, keys: list[Node]) -> list[Line]:
    """One line for all keys of which the same is said: a run that fails as a whole says it of hundreds."""
    by_words: dict[str, list[Node]] = {}
    for each in keys:
        by_words.setdefault(_said(each), []).append(each)
    lines = []
    for said, alike in by_words.items():
        operators = list(dict.fromkeys(each.text("op_type") for each in alike))
        named = ", ".join(operators[:_FEW]) + (", ..." if len(operators) > _FEW else "")
        more = f", and {len(alike) - 1} more" if len(alike) > 1 else ""
        lines.append(Line(label, f"{said} ({_key(alike[0])}{more})", Tone.BAD, named, 2))
    return lines


def _said(each: Node) -> str:
    outcome = each.text("outcome", "")
    return f"{outcome}: {each.text('reason')}" if outcome else each.text("reason")


def _key(each: Node) -> str:
    return f"key {each.text('key')[:_DIGITS]}"


def _session(session: Node) -> list[Line]:
    reason = session.text("reason", "")
    mark = session.text("state") + (f"({reason})" if reason else "")
    tone = Tone.BAD if session.text("state") == ClientState.DEGRADED else Tone.PLAIN
    text = f"{session.text('program')}, uid {session.text('uid')}, job {session.text('job')}, rank {session.text('rank', '-')}, "
    text += f"connected for {duration(session.number('connected_s'))}, {counted(session.count('leases'), 'lease')}, "
    text += f"{counted(session.count('loaded'), 'kernel')} loaded"
    lines = [Line("process", text, tone, mark=mark)]
    if session.text("detail", ""):
        lines.append(Line("detail", session.text("detail"), indent=2))
    for each in session.nodes("differences"):
        text = f"{each.text('what')}: this process has {each.text('rank')}, the daemon {each.text('daemon')}"
        lines.append(Line("differs", text, Tone.BAD, indent=2))
    return lines


COMMAND = Command("explain", "say why a kernel, a process, a round or a job is as it is", EXPLAIN_TABLE, configure, run)
