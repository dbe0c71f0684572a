from __future__ import annotations

import argparse
import io
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import zmq

from npgxd.cli.exits import STATUS_TABLE, Exit
from npgxd.cli.main import build_parser, main
from npgxd.wire import limits
from npgxd.wire import messages as m
from npgxd.wire.codec import decode, encode

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def socket() -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(prefix="npgx-t", dir="/tmp"))
    yield directory / "npgxd.sock"
    shutil.rmtree(directory)


@pytest.fixture
def serve(socket: Path) -> Iterator[object]:
    """Answers each request with the given message and frames."""
    context, over, threads = zmq.Context(), threading.Event(), []

    def start(message: m.Message, *frames: bytes) -> None:
        router = context.socket(zmq.ROUTER)
        router.linger = 0
        router.bind(f"ipc://{socket}")

        def run() -> None:
            while not over.is_set():
                if router.poll(20):
                    identity, *parts = router.recv_multipart()
                    router.send_multipart([identity, *encode(message, decode(parts).id, frames)])
            router.close()

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield start
    over.set()
    for thread in threads:
        thread.join(30)
    context.destroy(linger=0)


def test_status_is_shown_with_the_exit_code_of_the_node(serve, socket, document, capsys):
    text = json.dumps(document).encode()
    serve(m.StatusDocument(schema=1), text[:1000], text[1000:])
    assert main(["status", "--socket", str(socket)]) == Exit.DEGRADED
    shown = capsys.readouterr()
    assert "rank 2   DEGRADED(toolchain_mismatch)" in shown.out
    assert shown.err == ""


def test_json_is_the_daemons_document(serve, socket, document, capsys):
    serve(m.StatusDocument(schema=1), json.dumps(document).encode())
    assert main(["status", "--json", "--socket", str(socket)]) == Exit.DEGRADED
    assert json.loads(capsys.readouterr().out) == document


def test_the_socket_is_found_as_ranks_find_it(serve, socket, document, capsys, monkeypatch):
    serve(m.StatusDocument(schema=1), json.dumps(document).encode())
    monkeypatch.setenv("NPGXD_SOCKET", str(socket))
    assert main(["status"]) == Exit.DEGRADED


@pytest.mark.parametrize("how", ["option", "environment"])
def test_without_a_daemon_the_remedy_is_on_stderr(socket, capsys, monkeypatch, how):
    if how == "environment":
        monkeypatch.setenv("NPGXD_SOCKET", str(socket))
    assert main(["status"] + (["--socket", str(socket)] if how == "option" else [])) == Exit.UNAVAILABLE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("npgxctl: no daemon answers")
    assert str(socket) in shown.err
    assert "systemctl start npgxd" in shown.err


@pytest.mark.parametrize(
    ("message", "frames"),
    [
        (m.StatusDocument(schema=2), [b"{}"]),
        (m.StatusDocument(schema=1), [b"no json"]),
        (m.StatusDocument(schema=1), [b"[]"]),
        (m.StatusDocument(schema=1), [b"[" * limits.MAX_FRAME_BYTES]),
        (m.Done(), []),
    ],
)
def test_what_is_not_understood_is_an_error_with_a_hint(serve, socket, capsys, message, frames):
    serve(message, *frames)
    assert main(["status", "--socket", str(socket)]) == Exit.PROTOCOL
    assert capsys.readouterr().out == ""


def test_a_refusal_is_an_error(serve, socket, capsys):
    serve(m.Refusal("LIMIT", "too many", "wait"))
    assert main(["status", "--socket", str(socket)]) == Exit.UNAVAILABLE
    assert capsys.readouterr().err == "npgxctl: too many. wait\n"


@pytest.mark.parametrize("arguments", [[], ["unknown"], ["status", "--unknown"]])
def test_wrong_usage_ends_with_64(arguments, capsys):
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == Exit.USAGE
    assert "usage: npgxctl" in capsys.readouterr().err


def test_the_help_has_the_exit_codes_and_the_table_has_them_all(capsys):
    with pytest.raises(SystemExit):
        main(["status", "--help"])
    assert STATUS_TABLE in capsys.readouterr().out
    for code in Exit:
        if code not in {Exit.INTERNAL, Exit.OUTPUT, Exit.PROBLEMS, Exit.PROBLEMS_LEFT}:
            assert f"\n  {int(code)} " in STATUS_TABLE


def test_every_command_has_help():
    parser = build_parser()
    (commands,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    words = {"status", "cache", "verify", "gc", "pin", "unpin", "pins", "import", "config", "drain", "shutdown"}
    assert words <= set(commands.choices)
    assert all(choice.help for choice in commands._choices_actions)


def test_a_reader_that_goes_away_is_no_traceback(serve, socket, document):
    document["jobs"] *= 2000  # more than a pipe holds
    for job in document["jobs"]:
        job["ranks"] = []
    serve(m.StatusDocument(schema=1), json.dumps(document).encode())
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "npgxd.cli.main", "status", "--socket", str(socket)],
        cwd=ROOT,
        stdout=write,
        stderr=subprocess.PIPE,
        timeout=60,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr) == (Exit.OUTPUT, b"")


def test_output_that_cannot_be_written_is_no_traceback(serve, socket, document):
    serve(m.StatusDocument(schema=1), json.dumps(document).encode())
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "npgxd.cli.main", "status", "--socket", str(socket)],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stderr) == (Exit.OUTPUT, b"npgxctl: No space left on device\n")


def test_a_terminal_that_cannot_show_a_letter_is_no_reason_to_fail(serve, socket, document, monkeypatch):
    document["jobs"][0]["program"] = "modèle-模型.py"
    serve(m.StatusDocument(schema=1), json.dumps(document).encode())
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["status", "--socket", str(socket)]) == Exit.DEGRADED
    out.seek(0)
    assert "mod\\xe8le-\\u6a21\\u578b.py" in out.read()


def test_rich_is_not_imported_where_it_is_not_needed():
    code = "import npgxd.cli.main as m, sys; m.build_parser(); sys.exit('rich' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=False).returncode == 0


def test_a_fault_of_npgxctl_itself_ends_with_70_and_shows_all_of_it(monkeypatch, capsys) -> None:
    def fault(_socket: object) -> None:
        raise ZeroDivisionError("a fault of ours")

    monkeypatch.setattr("npgxd.cli.status.status_document", fault)
    assert main(["status"]) == Exit.INTERNAL == 70
    said = capsys.readouterr().err
    assert "ZeroDivisionError: a fault of ours" in said
    assert "please report it" in said
