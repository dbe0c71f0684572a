"""The bundled ``compile_static_kernel`` through the daemon: record, submit, wait, reselect, for one graph or one of its shapes.

Promise: the graph's own arguments and whatever else it mutates are afterwards as before; every rank of a job makes its recording
run, whatever the daemon does, since the run may hold collectives; nothing is raised that the model does not raise; and how it
ended is told in one line.
"""

from __future__ import annotations

import atexit
import itertools
import logging
import sys
import tempfile
import threading
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from npgxd.bridge import outputs, telling, vote
from npgxd.bridge.asked import OURS, Asked, asked
from npgxd.client import Client, Outcome, current
from npgxd.client.notice import warn_once
from npgxd.wire.messages import CoreCounts
from npgxd.wire.states import ClientState, Reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from npgxd.wire.codec import Record
    from npgxd.wire.messages import Rejected

log = logging.getLogger("npgxd")

_NO_DUMP: Final = "CANN's operator dump wrote nothing: the graph launches no operator, or somebody else holds the dump"
_PROFILER: Final = "Profile without record_op_args, or with schedule(skip_first=1) or more"

_MANY_CORES: Final = 10_000  # what the protocol takes; a number beyond it is no count

_graphs = itertools.count()
_dump = threading.Lock()


class Rounds:
    """One bundled module's static kernels. ``module`` is the bundled one: torch, torch_npu and its own settings are read from it."""

    def __init__(
        self,
        module: Any,
        *,
        bundled: Callable[..., None],
        bundled_uninstall: Callable[[], None],
        connect: Callable[[], Client] = current,
    ) -> None:
        self._module = module
        self._bundled = bundled
        self._bundled_uninstall = bundled_uninstall
        self._connect = connect
        self._scheme: vote.Scheme | None = None
        self._selected: set[bytes] = set()

    def compile(self, graph: Callable[..., object], *args: Any, **named: Any) -> None:
        """As the bundled function: static kernels for ``graph`` called with these arguments, before it is captured or run."""
        client = self._connect()
        if self._choose(client) is vote.Scheme.BUNDLED:
            self._bundled(graph, *args, **named)
            return
        label = f"{next(_graphs)}"
        inputs = {name: value for name, value in named.items() if name not in OURS}
        try:
            wanted = asked(named)
        except (ValueError, SyntaxError, TypeError) as error:
            wanted = Asked()
            log.warning("npgxd: graph %s: these super kernel options cannot be read, and are left out: %s", label, error)
        client.recording(label)
        with self._directory(wanted) as directory:
            recorded = self._record(graph, args, inputs, directory, label)
            outcome = self._round(client, label, wanted, directory, recorded)
        telling.tell(label, outcome)

    def uninstall(self) -> None:
        """Remove what this process installed itself: nothing, unless it followed the bundled scheme."""
        if self._scheme is vote.Scheme.BUNDLED:
            self._bundled_uninstall()

    # ---- the scheme --------------------------------------------------------------------------------------------------

    def _choose(self, client: Client) -> vote.Scheme:
        if self._scheme is None:
            client.identify(**_device(self._module))
            self._scheme = vote.choose(self._module.dist, served=client.welcome() is not None)
            if self._scheme is vote.Scheme.BUNDLED:
                atexit.register(self._bundled_uninstall)
                warn_once("bridge", "there is no daemon on this node; static kernels are compiled by torch_npu's own flow")
        return self._scheme

    # ---- the recording run -------------------------------------------------------------------------------------------

    @contextmanager
    def _directory(self, wanted: Asked) -> Iterator[Path]:
        """The documented directory of this round; a temporary one where that cannot be made."""
        try:
            documented = Path(self._module.safe_resolve_output_dir(wanted.build_dir))
        except (OSError, ValueError, RuntimeError) as error:
            warn_once("bridge outputs", f"static_kernel_compile_outputs is not written: {error}")
        else:
            yield documented
            return
        with tempfile.TemporaryDirectory(prefix="npgxd-") as temporary:
            yield Path(temporary)

    def _record(
        self, graph: Callable[..., object], args: tuple[Any, ...], inputs: dict[str, Any], directory: Path, label: str
    ) -> bool:
        """Run the graph once under CANN's dump; whether it went through. What it raises, the real run will raise again."""
        from npgxd.bridge.untouched import untouched  # noqa: PLC0415 -- imports torch, which is there by now

        try:
            with untouched(), _one_at_a_time() as mine:
                if mine:
                    self._module._fx_func_run(args, graph, inputs, directory)  # noqa: SLF001 -- the dump around the run, as bundled
                else:
                    graph(*args, **inputs)  # without a dump: other ranks may wait for it in a collective
        except Exception as error:  # noqa: BLE001 -- the model's own run says what is wrong with it
            log.warning("npgxd: graph %s: the run that records operators failed, so it has no static kernels: %s", label, error)
            return False
        return True

    # ---- the round ---------------------------------------------------------------------------------------------------

    def _round(self, client: Client, label: str, wanted: Asked, directory: Path, recorded: bool) -> Outcome:  # noqa: FBT001 -- a fact
        """From records to kernels. Nothing may raise here."""
        if not recorded:
            return Outcome(ClientState.DEGRADED, Reason.RECORDING_FAILED, "the run that records operators failed")
        try:
            if not outputs.is_dumped(directory):
                return Outcome(ClientState.DEGRADED, Reason.DUMP_SWITCH_HELD, _NO_DUMP, _PROFILER)
            dumped, unreadable = outputs.read_records(directory)
            records = [item for item in dumped if not self._module._is_in_blacklist(item[0])]  # noqa: SLF001 -- its setter's list
            if not wanted.beside_cache:
                outputs.write_selected(directory, records, self._selected)
            return _with_unreadable(self._settle(client, label, wanted, directory, records), unreadable)
        except Exception as error:  # the model runs on, with dynamic kernels
            log.debug("npgxd: graph %s", label, exc_info=error)
            return Outcome(ClientState.DEGRADED, Reason.RECORDING_FAILED, f"{type(error).__name__}: {error}")

    def _settle(self, client: Client, label: str, wanted: Asked, directory: Path, records: list[Record]) -> Outcome:
        if not records:
            return Outcome(ClientState.DISABLED, Reason.NOTHING_TO_COMPILE, "the graph launches no operator that can be compiled")
        outcome = client.static_kernels(
            records,
            graph=label,
            options=wanted.options,
            recompile=wanted.recompile,
            on_progress=telling.ProgressLines(label),
        )
        if telling.speaks(outcome.speaks):
            folder = "_opcompile" if wanted.beside_cache else "_opcompile_selected"
            kept = outputs.Kept(self._module, directory, folder, wanted.config, is_mapped=not wanted.recompile)
            kept.write(outcome, client.gathered)
        return self._reselect(outcome)

    def _reselect(self, outcome: Outcome) -> Outcome:
        """Load the view, or the shared root, with no operator in flight."""
        if outcome.view is None and outcome.root is None:
            return outcome
        npu = self._module.torch.npu
        try:
            npu.synchronize()
            if outcome.view is not None:
                npu._aclnn_reselect_static_kernel_with_path(str(outcome.view))  # noqa: SLF001 -- CANN's only way
            else:
                npu._aclnn_reselect_static_kernel()  # noqa: SLF001 -- same
        except (RuntimeError, OSError, AttributeError) as error:
            return replace(
                outcome, state=ClientState.DEGRADED, reason=Reason.RESELECT_FAILED, detail=f"reselecting failed: {error}"
            )
        return outcome


def _with_unreadable(outcome: Outcome, unreadable: list[Rejected]) -> Outcome:
    """Records that the dump left and nobody can read are not covered, which is to be said."""
    if not unreadable or not (outcome.installed or outcome.reason is Reason.NOTHING_TO_COMPILE):
        return outcome
    detail = f"{len(unreadable)} of the dumped records cannot be used: {unreadable[0].name}: {unreadable[0].reason}"
    rejected = (*unreadable, *outcome.rejected)
    return replace(outcome, state=ClientState.DEGRADED, reason=Reason.BAD_RECORDS, detail=detail, rejected=rejected)


def _device(module: Any) -> dict[str, Any]:
    """What the runtime says of the device, for the hello: its SoC, and all of its cores, whatever this process limits itself to."""
    torch_npu = getattr(module, "torch_npu", None) or sys.modules.get("torch_npu")  # torchair's copy does not name it
    if torch_npu is None:
        return {}
    told: dict[str, Any] = {"soc": str(torch_npu.npu.get_device_name())}
    try:
        device = torch_npu.npu.get_device_properties()
        counts = CoreCounts(vector=int(device.vector_core_num), cube=int(device.cube_core_num))
    except (RuntimeError, AttributeError, TypeError, ValueError):  # a torch_npu that does not tell: the daemon goes by its own
        return told
    return {**told, "cores": counts} if 0 < counts.vector <= _MANY_CORES and 0 < counts.cube <= _MANY_CORES else told


@contextmanager
def _one_at_a_time() -> Iterator[bool]:
    """Whether this thread may switch the dump, of which a process has one. It does not wait: a run may wait for other ranks."""
    mine = _dump.acquire(blocking=False)
    try:
        yield mine
    finally:
        if mine:
            _dump.release()
