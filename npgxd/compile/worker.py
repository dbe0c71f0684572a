"""A worker: one process for one job, from the records to verified, staged kernels, and then nothing is left of it.

The daemon starts this file with a socket, reads :mod:`npgxd.compile.job` events from it, and may write one word: cancel.
Whatever happens (a signal, the daemon's death, a deadline, an error of our own), every process that was started here is ended.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import socket
import sys
from pathlib import Path


def main(arguments: list[str]) -> int:
    """Run the job of one directory. Exit status 0: the result has been told (also that of a job that failed)."""
    parser = argparse.ArgumentParser(prog="npgxd-worker", description="one compile job of npgxd; started by the daemon")
    parser.add_argument("--fd", type=int, required=True, help="the socket to the daemon")
    parser.add_argument("--parent", type=int, required=True, help="the daemon's pid")
    parser.add_argument("--path", required=True, help="where the package npgxd lies")
    parser.add_argument("directory", type=Path, help="the job's directory")
    options = parser.parse_args(arguments)
    _find_package(Path(options.path))
    return _work(options)


def _find_package(root: Path) -> None:
    """Import npgxd from where the daemon has it, and from nowhere else; what it depends on may lie beside it.

    ``root`` comes last in the path, since it may be a site-packages directory, which must not hide the standard library.
    """
    sys.path.append(str(root))
    package = root / "npgxd"
    spec = importlib.util.spec_from_file_location("npgxd", package / "__init__.py", submodule_search_locations=[str(package)])
    if spec is None or spec.loader is None:
        raise ImportError(f"no package npgxd in {root}")
    module = importlib.util.module_from_spec(spec)
    sys.modules["npgxd"] = module
    spec.loader.exec_module(module)


def _work(options: argparse.Namespace) -> int:
    from npgxd.compile import hygiene  # noqa: PLC0415 -- the path above comes first
    from npgxd.compile.adopting import AdoptRun  # noqa: PLC0415
    from npgxd.compile.channel import Channel  # noqa: PLC0415
    from npgxd.compile.directory import SPEC  # noqa: PLC0415
    from npgxd.compile.job import JobSpec, pack_event  # noqa: PLC0415
    from npgxd.compile.leftovers import JOB_VARIABLE  # noqa: PLC0415
    from npgxd.compile.priority import GivingWay  # noqa: PLC0415
    from npgxd.compile.run import CompileRun  # noqa: PLC0415
    from npgxd.compile.stop import Stop  # noqa: PLC0415

    spec = JobSpec.unpack((options.directory / SPEC).read_bytes())
    channel = Channel(socket.socket(fileno=options.fd))
    hygiene.default_signals()
    stop = Stop(channel)
    hygiene.become_worker(options.parent)
    giving_way = GivingWay(os.getpid(), spec.nice)
    run = (AdoptRun if spec.package else CompileRun)(
        spec,
        stop=stop,
        tell=lambda event: channel.offer(pack_event(event)),
        token=os.environ[JOB_VARIABLE],
        tick=giving_way.settle,
    )
    channel.send(pack_event(run.result()))
    channel.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
