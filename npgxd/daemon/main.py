"""The command ``npgxd``: read the configuration, own the state, serve, and end with a meaningful exit code.

Exit codes: 0 stopped as asked, 64 wrong usage, 70 internal error, 71 the operating system refuses threads, 74 input/output error, 75 another
daemon owns the state, 78 the configuration or the state directory cannot be used.
"""

from __future__ import annotations

import argparse
import faulthandler
import logging
import os
import resource
import signal
import sys
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from npgxd import __version__
from npgxd.config import Config, Settings, load
from npgxd.daemon.notify import notify
from npgxd.daemon.telling.log_lines import set_up as set_up_log
from npgxd.errors import NpgxError
from npgxd.wire.endpoint import check_socket_path, prepare_runtime_directory
from npgxd.wire.printable import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

USAGE = 64
log = logging.getLogger("npgxd")

DESCRIPTORS = 65_536
"""Enough for the most connections that are let in (``serving.connections``), and for those that come before they can be ended."""
FEW_DESCRIPTORS = 16_384
"""With fewer, a user who opens connections as fast as he can may have libzmq end the daemon."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon until it is asked to stop; the process's exit code."""
    begun = time.monotonic()
    options = build_parser().parse_args(arguments)
    try:
        config = load(options.config, user=options.user, environ=os.environ)
        set_up_log(config.daemon.log_level, config.daemon.log_format, os.environ)
        if options.check_config:
            print(f"{config.source}: ok")
            return 0
        _serve(config, options, begun=begun)
    except NpgxError as error:
        print(f"npgxd: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        print(f"npgxd: {error}", file=sys.stderr)
        return os.EX_IOERR
    return 0


def _serve(config: Config, options: argparse.Namespace, *, begun: float) -> None:
    # Imported here so that --help and --check-config answer at once.
    import zmq

    from npgxd.compile.leftovers import end_leftovers
    from npgxd.daemon.keeping.keyer import Keyer
    from npgxd.daemon.keeping.stores import Stores
    from npgxd.daemon.service import Service
    from npgxd.daemon.serving.listening import Doors, take_passed
    from npgxd.daemon.threads import THREADS, needed
    from npgxd.wire.credentials import self_test
    from npgxd.wire.threads import check_threads

    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until it means a reload
    faulthandler.enable()  # what systemd's watchdog ends, or a fault in a library does, leaves a trace in the journal
    check_threads(THREADS)  # before libzmq needs some of them
    passed = take_passed(os.environ)
    _allow_descriptors(alone=options.user)
    check_socket_path(config.socket)
    prepare_runtime_directory(config.runtime_dir, 0o700 if options.user else 0o750)
    with zmq.Context() as context:
        self_test(context, config.runtime_dir)  # who a peer is must come from the kernel here too, or nothing is served
    stores = Stores.open(config.state_dir)
    with needed():
        doors = Doors(config.socket, config.admin_socket, passed)
    for line in end_leftovers(stores.state.jobs):
        log.warning("an earlier life left a compiler running: %s", line)
    stores.recover()
    keyer = Keyer(config.toolchain.settings(), os.environ, stores.state.path / "fingerprints")
    read = partial(load, options.config, user=options.user, environ=os.environ)
    service = Service(Settings(config), stores, keyer, doors, read_config=read)
    service.catch_signals()
    resumed = service.resume()
    notify("READY=1", f"STATUS={service.describe()}", f"MAINPID={os.getpid()}")
    log.info(
        "READY after %.0f ms at %s: state %s, %s, %s resumed, %s",
        (time.monotonic() - begun) * 1000,
        config.socket,
        config.state_dir,
        counted(stores.kernels.count(), "kernel"),
        counted(resumed, "round"),
        keyer.describe() if keyer.toolchain is not None else "no usable CANN toolchain",
    )
    service.run()
    log.info("stopped; what was waiting is taken up at the next start")


def _allow_descriptors(*, alone: bool) -> None:
    """Every rank takes two descriptors; the usual soft limit of 1024 is for programs that use select(2).

    ``alone``: nobody else can connect, who could mean harm.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    if wanted < FEW_DESCRIPTORS and not alone:
        log.warning(
            "%d files may be open (ulimit -Hn), and a user who opens thousands of connections at once may end a daemon that has few: "
            "raise LimitNOFILE= to %d or more",
            wanted,
            FEW_DESCRIPTORS,
        )


class _Parser(argparse.ArgumentParser):
    """An ArgumentParser that ends with 64, as sysexits.h has it."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong, and end."""
        self.print_usage(sys.stderr)
        self.exit(USAGE, f"{self.prog}: {message}\n")


def build_parser() -> argparse.ArgumentParser:
    """The parser of the command."""
    parser = _Parser(prog="npgxd", description="The node's owner of CANN static kernels.", epilog="See also: npgxctl")
    parser.add_argument("--config", type=Path, metavar="FILE", help="read this TOML file instead of /etc/npgxd/npgxd.toml")
    parser.add_argument(
        "--user", action="store_true", help="run for this user alone: private state and runtime directories, no root"
    )
    parser.add_argument("--check-config", action="store_true", help="read the configuration, say what is wrong with it, and end")
    parser.add_argument("--version", action="version", version=f"npgxd {__version__}")
    return parser


if __name__ == "__main__":
    sys.exit(main())
