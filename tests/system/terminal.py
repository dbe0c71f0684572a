"""npgxctl on terminals, run as a process by the tests: one JSON request a line, one answer a line; each command in a child of its own.

A request has ``argv``, ``environment`` and ``columns`` (0: stdout is a pipe); an answer has ``code``, ``out`` and ``err``.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import sys
import termios

import rich.console
import rich.text

import npgxd.config
import npgxd.toolchain.discovery
from npgxd.cli.findings import cann, daemon, node, torch
from npgxd.cli.main import build_parser, main

LOADED = (rich.console, rich.text, npgxd.config, npgxd.toolchain.discovery, cann, daemon, node, torch, build_parser())
"""Once for all the children."""


def run(argv: list[str], environment: dict[str, str], columns: int) -> dict[str, object]:
    if columns:
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    else:
        ours, theirs = os.pipe()
    talk, talking = os.pipe()
    child = os.fork()
    if not child:
        code = 70
        try:
            os.dup2(theirs, 1)
            os.dup2(talking, 2)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ.update(environment)
            for name in ("COLUMNS", "LINES", *(name for name in ("NO_COLOR", "TERM") if name not in environment)):
                os.environ.pop(name, None)
            sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
            code = main(argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 0
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    os.close(theirs)
    os.close(talking)
    out, err = _all(ours), _all(talk)
    return {"code": os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), "out": out, "err": err}


def _all(fd: int) -> str:
    read = b""
    try:
        while piece := os.read(fd, 65536):
            read += piece
    except OSError:  # a terminal whose other side has gone
        pass
    os.close(fd)
    return read.decode()


if __name__ == "__main__":
    for line in sys.stdin:
        sys.stdout.write(json.dumps(run(**json.loads(line))) + "\n")
        sys.stdout.flush()
