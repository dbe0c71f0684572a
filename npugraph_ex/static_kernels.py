"""The static-kernel journey of one graph: record its first run, submit, wait, reselect, go on.

Promise: for each concrete shape exactly one run is recorded, and it is the user's call; whatever the daemon does or does not do,
the caller gets that run's outputs and no exception of ours; and every way that this can end is told, as one report and one line.
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch

from npgxd.client import Client, Outcome, current
from npgxd.wire.messages import CompileOptions, ToolchainInfo
from npgxd.wire.soc import is_supported
from npgxd.wire.states import ClientState, Reason
from npugraph_ex import _notices, ranks, reports
from npugraph_ex.engines import Engine, ReselectFailed
from npugraph_ex.options import setting
from npugraph_ex.outputs import Tree, guarded, open_tree
from npugraph_ex.package_map import remember
from npugraph_ex.recording.describe import Surroundings
from npugraph_ex.recording.recorded import DumpSwitchHeld, GraphRun, Recorded
from npugraph_ex.telling import ProgressTeller, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable
    from pathlib import Path

    from npgxd.wire.messages import Welcome
    from npugraph_ex.options import Options

logger = logging.getLogger("npugraph_ex")


@dataclass(frozen=True, slots=True)
class _Settled:
    """What is known about a round at its end."""

    label: str
    outcome: Outcome
    recorded: Recorded = field(default_factory=Recorded)
    tree: Tree | None = None


class StaticKernels:
    """One graph's static kernels, over all its concrete shapes."""

    def __init__(
        self,
        name: str,
        engine: Engine,
        options: Options,
        *,
        build_dir: Path | None = None,
        connect: Callable[[], Client] | None = None,
    ) -> None:
        self._name = name
        self._engine = engine
        self._options = options
        self._build_dir = None if options.force_eager else build_dir  # as documented
        self._connect = connect or current
        self._claimed: set[Hashable] = set()
        self._lock = threading.Lock()

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
        try:
            surroundings, refusal = self._prepare(client, label)
        except Exception as error:  # noqa: BLE001 -- the user's call must run whatever our side does
            surroundings, refusal = Surroundings(), _failed(label, error)
        if refusal is not None:
            outputs = run(())
            self._finish(client, _Settled(label, refusal))
            return outputs
        tree = self._open_tree()
        try:
            outputs, recorded = self._engine.recorder(surroundings).record(
                run, label=f"graph {label}", directory=tree.directory if tree else None
            )
        except DumpSwitchHeld as held:
            self._undo(tree)
            outputs = run(())
            if held.data.get("ours"):  # another thread is recording: this graph's turn is at its next call
                self._release(client, label, sizes)
            else:
                self._finish(client, _Settled(label, _without_round(Reason.DUMP_SWITCH_HELD, held)))
            return outputs
        except BaseException:
            self._undo(tree)
            self._release(client, label, sizes)
            raise
        try:
            self._settle(client, label, recorded, tree)
        except BaseException:  # only what ends a wait from outside: Ctrl-C
            self._release(client, label, sizes)
            raise
        return outputs

    # ---- before the run ----------------------------------------------------------------------------------------------

    def _prepare(self, client: Client, label: str) -> tuple[Surroundings, Outcome | None]:
        """What records say of this process, and why there will be none, if so."""
        soc = self._engine.soc()
        if soc:
            client.identify(soc=soc)
        welcome = client.welcome()
        toolchain = welcome.toolchain if welcome else None
        deterministic = torch.are_deterministic_algorithms_enabled()
        surroundings = Surroundings(
            deterministic=deterministic,
            cann_version=toolchain.cann_version if toolchain else "",
            cores=toolchain.cores if toolchain else None,
        )
        soc = soc or os.environ.get("NPGXD_SOC", "") or _soc_of(welcome)
        if soc and not is_supported(soc):
            detail = f"{soc} has no static kernels for npugraph_ex: Atlas A2 and A3 have"
            return surroundings, _outcome(ClientState.DISABLED, Reason.UNSUPPORTED_SOC, detail, toolchain=toolchain)
        client.recording(label)
        return surroundings, None

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
        _report(client, ClientState.CONNECTED, "", label)

    # ---- after the run -----------------------------------------------------------------------------------------------

    def _settle(self, client: Client, label: str, recorded: Recorded, tree: Tree | None) -> None:
        """The round, from records to reselect. The user's outputs exist already: nothing may raise here."""
        try:
            outcome = self._round(client, label, recorded, tree)
        except Exception as error:  # noqa: BLE001 -- the user's outputs exist already
            outcome = _failed(label, error)
        self._finish(client, _Settled(label, outcome, recorded, tree))

    def _round(self, client: Client, label: str, recorded: Recorded, tree: Tree | None) -> Outcome:
        if recorded.problem is not None:
            return _without_round(Reason.DUMP_SWITCH_HELD, recorded.problem)
        selected = recorded.selected()
        if tree is not None:
            guarded("the operator records", lambda: tree.write_dump(recorded))
            guarded("the selected records", lambda: tree.write_selected(selected))
        if not selected:
            return _outcome(
                ClientState.DISABLED, Reason.NOTHING_TO_COMPILE, "the graph launches no operator that can be compiled"
            )
        outcome = client.static_kernels(
            selected,
            graph=label,
            options=_compile_options(self._options),
            recompile=self._options.disable_static_kernel_compile_cache,
            on_progress=ProgressTeller(label),
        )
        if tree is not None and ranks.local_rank() == 0:
            self._keep(client, outcome, tree, selected)
        return self._reselect(outcome)

    def _reselect(self, outcome: Outcome) -> Outcome:
        if outcome.view is None and outcome.root is None:
            return outcome
        try:
            logger.debug("npugraph_ex: %s", self._engine.reselect(outcome.view))
        except ReselectFailed as error:
            return replace(
                outcome, state=ClientState.DEGRADED, reason=Reason.RESELECT_FAILED, detail=error.message, hint=error.hint
            )
        return outcome

    def _keep(self, client: Client, outcome: Outcome, tree: Tree, selected: tuple[tuple[str, bytes], ...]) -> None:
        """What only local rank 0's tree holds."""

        def keep() -> None:
            several = (ranks.local_world_size() or 1) > 1 or outcome.gathered > outcome.unique
            if outcome.round and several and (gathered := client.gathered(outcome.round)):
                tree.write_gathered(gathered)
            kept = tree.keep_packages(outcome.packages)
            if kept and outcome.toolchain is not None:
                remember(
                    tree,
                    cann_version=outcome.toolchain.cann_version,
                    device=outcome.toolchain.soc,
                    records=selected,
                    packages=kept,
                )

        guarded("the run packages", keep)

    def _finish(self, client: Client, settled: _Settled) -> None:
        """One report, one line, and the daemon knows what it could not know itself."""
        outcome = settled.outcome
        reports.add(
            reports.GraphReport(
                graph=settled.label,
                outcome=outcome,
                submitted=settled.recorded.selected() if outcome.records else (),
                outputs=settled.tree.directory if settled.tree else None,
                undescribed=settled.recorded.undescribed,
            )
        )
        if not outcome.round or outcome.reason is Reason.RESELECT_FAILED:
            _report(client, outcome.state, outcome.reason, settled.label, outcome.detail)
        tell(settled.label, outcome, len(settled.recorded.undescribed))


def _report(client: Client, state: ClientState, reason: Reason | str, label: str, detail: str = "") -> None:
    try:
        client.report(state, reason, detail=detail, graph=label)
    except Exception as error:  # noqa: BLE001 -- the user's run has its own end
        _failed(label, error)


def _soc_of(welcome: Welcome | None) -> str:
    return welcome.toolchain.soc if welcome and welcome.toolchain else ""


def _compile_options(options: Options) -> CompileOptions:
    if not options.super_kernel_optimize:
        return CompileOptions()
    given = {**(options.super_kernel_optimize_options or {}), **(options.super_kernel_debug_options or {})}
    return CompileOptions(super_kernel={**{name: setting(value) for name, value in given.items()}, "enable": "true"})


def _without_round(reason: Reason, held: DumpSwitchHeld) -> Outcome:
    return _outcome(ClientState.DEGRADED, reason, held.message, held.hint)


def _failed(label: str, error: Exception) -> Outcome:
    """Something of ours broke; the model does not."""
    logger.debug("npugraph_ex: graph %s", label, exc_info=error)
    detail = f"{type(error).__name__}: {error}"
    return _outcome(ClientState.DEGRADED, Reason.RECORDING_FAILED, detail, "Log npugraph_ex at debug level to see where")


def _outcome(
    state: ClientState, reason: Reason, detail: str, hint: str = "", *, toolchain: ToolchainInfo | None = None
) -> Outcome:
    """An outcome that no round led to."""
    simulated = bool(toolchain and toolchain.simulated)
    return Outcome(state, reason, detail=detail, hint=hint, simulated=simulated, toolchain=toolchain)
