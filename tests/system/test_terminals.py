"""Every command on a narrow terminal, without colour, on a dumb terminal and in a pipe, about a job whose every name is hostile."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from conftest_node import REPOSITORY, Node, eventually, matmuls, named

from npgxd.cli.commands import all_commands
from tools.cann_sim import Costs, create, records

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202eevil\r\n"
SPOILED = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\ufffd]")
"""What acts on a terminal; a line's end does not."""
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
IN_PLACE = re.compile(r"\x1b\[(H|2J|\?1049[hl]|\?25[hl])")
"""What top does to the whole screen."""
COLUMNS = 40
MODES: dict[str, tuple[int, dict[str, str]]] = {
    "narrow": (COLUMNS, {"TERM": "xterm-256color"}),
    "no colour": (COLUMNS, {"TERM": "xterm-256color", "NO_COLOR": "1"}),
    "dumb": (COLUMNS, {"TERM": "dumb"}),
    "piped": (0, {"TERM": "xterm-256color"}),
}
ASKED: dict[str, list[str]] = {
    "top": ["--count", "1"],
    "explain": ["{pid}"],
    "retry": ["{key}"],
    "cache": ["ls"],
    "verify": [],
    "gc": ["--dry-run"],
    "pin": [HOSTILE],
    "unpin": [HOSTILE],
    "import": ["{outputs}"],
    "install-units": ["--dry-run", "--program", "/bin/true"],
    "completion": ["bash"],
    "drain": ["--help"],
    "shutdown": ["--help"],
}
"""What a command needs to have something to say; the last two only say how they are called, since the others need the daemon."""
DATA = {"metrics", "trace", "config", "completion", "drain", "shutdown"}
"""Their lines are for programs, or the parser's."""


class Terminals:
    """A node with a hostile job, and npgxctl on terminals of it."""

    def __init__(self, node: Node, facts: dict[str, str]) -> None:
        self._facts = facts
        environment = {**node.environment(), "PYTHONPATH": str(REPOSITORY)}
        program = [sys.executable, str(Path(__file__).with_name("terminal.py"))]
        self._process = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    def ask(self, mode: str, *words: str) -> dict[str, Any]:
        columns, environment = MODES[mode]
        argv = [self._facts.get(word.strip("{}"), word) for word in words]
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"argv": argv, "environment": environment, "columns": columns}) + "\n")
        self._process.stdin.flush()
        return json.loads(self._process.stdout.readline())

    def close(self) -> None:
        self._process.communicate()


@pytest.fixture(scope="module")
def terminals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminals]:
    directory = tmp_path_factory.mktemp("terminals")
    cann = create(directory / "cann", version="9.1.0", soc="Ascend910B3", costs=Costs(startup_s=0.0, per_op_s=0.0))
    node = Node(directory, cann)
    try:
        cann.order("Sub", "fail")
        node.start()
        program = directory / f"{HOSTILE}.py"
        program.write_text(Path(__file__).with_name("rank.py").read_text())
        items = [
            *matmuls(16),
            *named(records.elementwise("Sub", [8, 8])),
            (f"{HOSTILE}.json", f'{{"op_type": {json.dumps(HOSTILE)}}}'),
        ]
        rank = node.rank(items, launch=(str(program),), RANK=HOSTILE, TORCHELASTIC_RUN_ID=HOSTILE, MASTER_ADDR=HOSTILE)
        assert rank.outcome()["state"] == "DEGRADED"
        (failure,) = eventually(lambda: (node.status() or {}).get("failures"), "Sub is refused")
        outputs = directory / f"static_kernel_compile_outputs{HOSTILE}"
        (outputs / "1_opcompile").mkdir(parents=True)
        (outputs / "1_opcompile" / f"{HOSTILE}.json").write_text(HOSTILE)
        facts = {"pid": str(rank.process.pid), "key": failure["key"][:12], "outputs": str(outputs)}
        made = Terminals(node, facts)
        yield made
        made.close()
    finally:
        node.close()


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", [command.name for command in all_commands()])
def test_no_command_overruns_a_terminal_or_lets_others_write_to_it(terminals: Terminals, name: str, mode: str) -> None:
    told = terminals.ask(mode, name, *ASKED.get(name, []))
    (command,) = [each for each in all_commands() if each.name == name]
    assert told["code"] in {int(code) for code in re.findall(r"^ *(\d+)  ", command.epilog, re.MULTILINE)} - {70}, told
    out: str = told["out"].replace("\r\n", "\n")
    if name == "top" and mode in {"narrow", "no colour"}:
        out = IN_PLACE.sub("", out)
    plain = COLOUR.sub("", out) if mode == "narrow" else out
    for text in (plain, told["err"]):
        assert not SPOILED.search(text), f"{SPOILED.search(text)}: {text!r}"
    assert told["out"] or told["err"]
    if MODES[mode][0] and name not in DATA:
        wide = [line for line in plain.splitlines() if len(line) > COLUMNS]
        assert not wide, wide
