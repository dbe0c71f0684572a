"""The static-kernel journey of one graph: record its first run, submit, wait, reselect, go on.

Promise: for each concrete shape exactly one run is recorded, and it is the user's call; whatever the daemon does or does not do,
the caller gets that run's outputs and no exception of ours; and every way that this can end is told, as one report and one line.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import torch

from npgxd.client import Client, Outcome, current
from npgxd.client.client import DEADLINE_GRACE_S
from npgxd.client.waiting import Wait, WaitMode, wait_of
from npgxd.wire.messages import CompileOptions
from npgxd.wire.soc import is_supported
from npgxd.wire.states import ClientState, Reason
from npugraph_ex import _notices, settling
from npugraph_ex.late import HELLO_S, LateKernels, answered
from npugraph_ex.loading import LOADS
from npugraph_ex.options import setting
from npugraph_ex.outputs import Tree, guarded, open_tree
from npugraph_ex.progress_bar import ProgressBar
from npugraph_ex.recording.describe import Surroundings
from npugraph_ex.recording.recorded import DumpSwitchHeld, GraphRun
from npugraph_ex.settling import Settled, made_outcome
from npugraph_ex.telling import ProgressTeller

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from contextlib import AbstractContextManager
    from pathlib import Path

    from npgxd.wire.messages import Welcome
    from npugraph_ex.engines import Engine
    from npugraph_ex.options import Options
    from npugraph_ex.program import Program
    from npugraph_ex.recording.recorded import Recorder, RecordMemory

IN_BACKGROUND: Final = Outcome(
    ClientState.QUEUED, Reason.IN_BACKGROUND, "the graph has dynamic kernels until its static ones are ready"
)


class StaticKernels:
    """One graph's static kernels, over all its concrete shapes."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        options: Options,
        program: Program | None = None,
        *,
        build_dir: Path | None = None,
        memory: RecordMemory | None = None,
        connect: Callable[[], Client] | None = None,
    ) -> None:
        self._name = name
        self._engine = engine
        self._options = options
        self._build_dir = None if options.force_eager else build_dir  # as documented
        self._memory = memory
        self._connect = connect or current
        self._claimed: set[Hashable] = set()
        self._lock = threading.Lock()
        self._late = LateKernels(engine, program)

    def begin_call(self) -> bool:
        """A call is about to run; True: other kernels than before are in use from it on, and what was captured is out of date."""
        return self._late.begin_call()

    def claim(self, sizes: tuple[int, ...]) -> bool:
        """True for the one caller whose run of this shape is to be recorded; all others run as usual, without waiting."""
        if sizes in self._claimed or not self._in_range(sizes):
            return False
        with self._lock:
            if sizes in self._claimed or self._is_full():
                return False
            self._claimed.add(sizes)
            return True

    def first_run(self, sizes: tuple[int, ...], run: GraphRun) -> object:
        """Run the graph, once, for the user who called it, and settle its static kernels; returns the user's outputs.

        Raises only what ``run`` raises, and KeyboardInterrupt; the shape is then recorded at its next call.
        """
        label = self._name + (f"[{','.join(map(str, sizes))}]" if sizes else "")
        client = self._connect()
        wait = wait_of(self._options.wait, os.environ)
        began = time.monotonic()
        try:
            surroundings, refusal = self._prepare(client, label, wait)
        except Exception as error:  # noqa: BLE001 -- the user's call must run whatever our side does
            surroundings, refusal = Surroundings(), settling.failed(label, error)
        if wait.deadline_s is not None:  # the user's own run, which follows, does not count
            wait = wait._replace(deadline_s=max(0.0, wait.deadline_s - (time.monotonic() - began)))
        if refusal is not None:
            outputs = run(())
            with _in_time(client, wait):
                settling.finish(client, Settled(label, refusal))
            return outputs
        tree = self._open_tree()
        try:
            outputs, recorded = self._recorder(surroundings, sizes).record(
                run, label=f"graph {label}", directory=tree.directory if tree else None
            )
        except DumpSwitchHeld as held:
            self._undo(tree)
            outputs = run(())
            if held.data.get("ours"):  # another thread is recording: this graph's turn is at its next call
                self._release(client, label, sizes)
            else:
                with _in_time(client, wait):
                    settling.finish(client, Settled(label, _without_round(Reason.DUMP_SWITCH_HELD, held)))
            return outputs
        except BaseException:
            self._undo(tree)
            self._release(client, label, sizes)
            raise
        try:
            with _in_time(client, wait):
                self._settle(client, Settled(label, IN_BACKGROUND, recorded, tree), wait)
        except BaseException:  # only what ends a wait from outside: Ctrl-C
            self._release(client, label, sizes)
            raise
        return outputs

    # ---- before the run ----------------------------------------------------------------------------------------------

    def _prepare(self, client: Client, label: str, wait: Wait) -> tuple[Surroundings, Outcome | None]:
        """What records say of this process, and why there will be none, if so."""
        too_late = threading.Event()
        hello = partial(self._hello, client, label, self._engine.soc(), too_late)
        nothing: tuple[Welcome | None, Outcome | None] = None, None
        if wait.mode is WaitMode.BACKGROUND:
            welcome, refusal = answered(hello, nothing)
            too_late.set()
        else:
            # Without the daemon's word the records do not say what they are compiled for: a short deadline has a moment for it.
            with client.within(math.inf if wait.deadline_s is None else max(wait.deadline_s, HELLO_S)):
                welcome, refusal = hello()
        toolchain = welcome.toolchain if welcome else None
        return Surroundings(
            deterministic=torch.are_deterministic_algorithms_enabled(),
            cann_version=toolchain.cann_version if toolchain else "",
            cores=toolchain.cores if toolchain else None,
        ), refusal

    def _hello(self, client: Client, label: str, soc: str, too_late: threading.Event) -> tuple[Welcome | None, Outcome | None]:
        """The daemon's welcome; or why this process cannot have static kernels. Else the daemon knows that the graph is recorded."""
        if soc:
            client.identify(soc=soc)
        welcome = client.welcome()
        soc = soc or os.environ.get("NPGXD_SOC", "") or _soc_of(welcome)
        if soc and not is_supported(soc):
            detail = f"{soc} has no static kernels for npugraph_ex: Atlas A2 and A3 have"
            toolchain = welcome.toolchain if welcome else None
            return welcome, made_outcome(ClientState.DISABLED, Reason.UNSUPPORTED_SOC, detail, toolchain=toolchain)
        if not too_late.is_set():  # it has been recorded and submitted meanwhile
            client.recording(label)
        return welcome, None

    def _recorder(self, surroundings: Surroundings, sizes: tuple[int, ...]) -> Recorder:
        recorder = self._engine.recorder(surroundings)
        if self._memory is None:
            return recorder
        return self._memory.recorder(recorder, (self._engine.device, self._engine.soc(), surroundings), sizes)

    def _open_tree(self) -> Tree | None:
        try:
            return open_tree(self._build_dir)
        except OSError as error:  # the working directory itself is gone
            _notices.once("no outputs", logging.WARNING, f"static_kernel_compile_outputs is not written: {error}")
            return None

    def _in_range(self, sizes: tuple[int, ...]) -> bool:
        wanted, index = self._options.symbol_range, self._options.symbol_index
        return not sizes or wanted is None or index >= len(sizes) or sizes[index] in wanted

    def _is_full(self) -> bool:
        if len(self._claimed) < self._options.capture_limit:
            return False
        _notices.once(
            ("capture limit", self._name),
            logging.WARNING,
            f"graph {self._name}: {len(self._claimed)} shapes have static kernels, which is capture_limit; "
            "further shapes run with dynamic kernels",
        )
        return True

    def _undo(self, tree: Tree | None) -> None:
        if tree is not None:
            tree.discard_if_empty()

    def _release(self, client: Client, label: str, sizes: tuple[int, ...]) -> None:
        """This run came to nothing; the shape's next one is recorded. The daemon need not wait for it."""
        with self._lock:
            self._claimed.discard(sizes)
        settling.report(client, ClientState.CONNECTED, "", label)

    # ---- after the run -----------------------------------------------------------------------------------------------

    def _settle(self, client: Client, settled: Settled, wait: Wait) -> None:
        """The round, from records to reselect. The user's outputs exist already: nothing may raise here."""
        try:
            refusal = self._write(settled)
            if refusal is None and wait.mode is WaitMode.BACKGROUND:
                self._late.follow(client, settled, options=_compile_options(self._options), recompile=self._recompile)
                return
            outcome = refusal or self._round(client, settled, wait)
        except Exception as error:  # noqa: BLE001 -- the user's outputs exist already
            outcome = settling.failed(settled.label, error)
        settling.finish(client, replace(settled, outcome=outcome))

    @property
    def _recompile(self) -> bool:
        return self._options.disable_static_kernel_compile_cache

    def _write(self, settled: Settled) -> Outcome | None:
        """The documented folders of this run; or why there is nothing to submit."""
        recorded, tree = settled.recorded, settled.tree
        if recorded.problem is not None:
            return _without_round(Reason.DUMP_SWITCH_HELD, recorded.problem)
        selected = recorded.selected()
        if tree is not None:
            guarded("the operator records", lambda: tree.write_dump(recorded))
            guarded("the selected records", lambda: tree.write_selected(selected))
        if not selected:
            return made_outcome(
                ClientState.DISABLED, Reason.NOTHING_TO_COMPILE, "the graph launches no operator that can be compiled"
            )
        return None

    def _round(self, client: Client, settled: Settled, wait: Wait) -> Outcome:
        selected = settled.recorded.selected()
        teller = ProgressTeller(settled.label, bar=ProgressBar(settled.label))
        try:
            outcome = client.static_kernels(
                selected,
                graph=settled.label,
                options=_compile_options(self._options),
                recompile=self._recompile,
                deadline_s=wait.deadline_s,
                on_progress=teller,
            )
        finally:
            teller.close()
        settling.keep(client, outcome, settled.tree, selected)
        return settling.load(outcome, LOADS.add(outcome), self._engine)


def _in_time(client: Client, wait: Wait) -> AbstractContextManager[None]:
    """For what this thread says to the daemon after the graph's run: as long as the user waits, and a moment more."""
    if wait.mode is WaitMode.BLOCK:
        return client.within(math.inf)
    return client.within((wait.deadline_s or 0.0) + DEADLINE_GRACE_S)


def _soc_of(welcome: Welcome | None) -> str:
    return welcome.toolchain.soc if welcome and welcome.toolchain else ""


def _compile_options(options: Options) -> CompileOptions:
    if not options.super_kernel_optimize:
        return CompileOptions()
    given = {**(options.super_kernel_optimize_options or {}), **(options.super_kernel_debug_options or {})}
    return CompileOptions(super_kernel={**{name: setting(value) for name, value in given.items()}, "enable": "true"})


def _without_round(reason: Reason, held: DumpSwitchHeld) -> Outcome:
    return made_outcome(ClientState.DEGRADED, reason, held.message, held.hint)
