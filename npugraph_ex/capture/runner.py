"""One graph on a device that captures: which calls are replays, which capture, and which run operator by operator."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import torch

from npugraph_ex import _notices
from npugraph_ex.capture import obstacles
from npugraph_ex.capture.agreement import BALLOTS
from npugraph_ex.capture.captured import Captured
from npugraph_ex.capture.device import CAPTURING
from npugraph_ex.capture.shapes import Shape
from npugraph_ex.capture.watching import is_weight, watched
from npugraph_ex.collectives import collectives_of, place_of
from npugraph_ex.observe import run_observed

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from npgxd.client.background import Place
    from npugraph_ex.capture.device import CaptureDevice, Pool
    from npugraph_ex.capture.results import Results
    from npugraph_ex.observe import Observer
    from npugraph_ex.options import Options
    from npugraph_ex.program import Program

logger = logging.getLogger("npugraph_ex")


class CaptureRunner:
    """Keeps the contract of ``engines.Runner``, from any thread: replays of one graph follow one another."""

    def __init__(self, program: Program, options: Options, device: CaptureDevice, *, name: str) -> None:
        self._program = program
        self._options = options
        self._device = device
        self._name = name
        self._lock = threading.RLock()
        self._reason: str | None = None
        """Why no call of the graph is captured, "" if some may be; None before its first call."""
        self._place: Place | None = None
        """The ranks that it exchanges data with, if there are others."""
        self._sized: tuple[int, ...] = ()
        """Positions of the inputs that may be of another size at another call."""
        self._first = 0
        """The position of the first tensor."""
        self._shapes: dict[Hashable, Shape] = {}
        self._pool: Pool | None = None
        self._retired: list[Captured] = []
        self._given: list[Results] = []
        self._stream: Any = None
        self._clones = options.clone_output or (options.use_graph_pool is not None and "clone_output" not in options.given)

    def __call__(self, inputs: list[Any], observers: Sequence[Observer] = ()) -> object:
        """See ``Runner``."""
        if observers:
            return run_observed(self._program.module(), inputs, observers)
        if self._reason is None:
            self._read_graph(inputs)
        if self._reason or self._device.is_capturing():
            return self._program.run(inputs)
        key = self._key(inputs)
        shape = self._shapes.get(key)
        if shape is None:
            return self._program.run(inputs) if self._is_full(len(self._shapes)) else self._watch(key, inputs)
        if not shape.reason:
            with self._lock, self._device.on(shape.index):
                captured = self._captured(shape, inputs)
                if captured is not None:
                    return self._replay(shape, captured, inputs)
        return self._program.run(inputs)

    def renew(self) -> None:
        """See ``Runner``."""
        with self._lock:
            for shape in self._shapes.values():
                self._retire(shape)

    # ---- the first runs ----------------------------------------------------------------------------------------------

    def _read_graph(self, inputs: Sequence[Any]) -> None:
        module = self._program.module()
        reason = obstacles.in_graph(module) or obstacles.in_inputs(inputs, self._device.word)
        exchanges = collectives_of(module)
        place = place_of(exchanges) if exchanges else None
        if place is not None and place.problem:
            reason = reason or place.problem
        with self._lock:
            self._place = place if place is not None and place.partners else None
            self._sized = tuple(at for at, value in enumerate(inputs) if not is_weight(value))
            self._first = next((at for at, value in enumerate(inputs) if isinstance(value, torch.Tensor)), 0)
            self._reason = reason
        if reason:
            self._tell(reason)

    def _key(self, inputs: Sequence[Any]) -> Hashable:
        """What tells this call's shape from others'."""
        sized: list[Any] = [torch.is_inference_mode_enabled(), inputs[self._first].device.index]
        for at in self._sized:
            value = inputs[at]
            sized += (value.shape, value.stride()) if isinstance(value, torch.Tensor) else (type(value), value)
        return tuple(sized)

    def _watch(self, key: Hashable, inputs: list[Any]) -> object:
        """The caller's own run, eagerly; afterwards it is known what a capture of this shape must respect."""
        reason = obstacles.in_inputs(inputs, self._device.word)
        index = inputs[self._first].device.index
        outputs, seen = watched(self._program.run, inputs)
        shape = Shape(seen, index, self._options, reason=reason)
        with self._lock:
            self._shapes.setdefault(key, shape)
        if shape.reason:
            self._tell(shape.reason)
        return outputs

    # ---- finding and making captures ---------------------------------------------------------------------------------

    def _captured(self, shape: Shape, inputs: Sequence[Any]) -> Captured | None:
        """The capture to be replayed for this call; None: it runs eagerly."""
        if shape.placing.overlaps(inputs, shape.watched):
            return None
        if self._options.force_recapture or self._is_held():
            self.renew()
        addresses = shape.placing.addresses(inputs)
        found = shape.captures.get(addresses)
        return found if found is not None else self._make(shape, inputs, addresses)

    def _is_held(self) -> bool:
        """Whether a replay would write over outputs that somebody still has. If so, from now on callers get copies."""
        self._given = [results for results in self._given if results.in_use()]
        if not self._given or self._clones:
            return False
        if "clone_output" in self._options.given:
            line = (
                f"graph {self._name}: outputs of an earlier call are still held, and are written over, as clone_output=False says"
            )
            _notices.once(("held", self._name), logging.WARNING, line)
            return False
        logger.debug("npugraph_ex: graph %s: outputs of an earlier call are still held: from now on they are copied", self._name)
        self._clones = True
        return True

    def _make(self, shape: Shape, inputs: Sequence[Any], addresses: tuple[int, ...]) -> Captured | None:
        if not shape.settles(addresses):
            self._retire(shape)
            addresses = shape.placing.addresses(inputs)
        if self._is_full(sum(len(each.captures) for each in self._shapes.values())):
            return None
        captured = self._capture(shape, inputs)
        if self._place is not None and not shape.agreed:
            sizes = [value.shape for value in inputs if isinstance(value, torch.Tensor)]
            if not BALLOTS.agree(self._place, repr(sizes), captured is not None):
                self._refuse(shape, "a rank that it exchanges data with does not capture it")
                return None
            shape.agreed = True
        if captured is not None:
            shape.add(addresses, captured)
        return captured

    def _capture(self, shape: Shape, inputs: Sequence[Any]) -> Captured | None:
        if self._pool is None or not self._options.reuse_graph_pool_in_same_fx:
            self._pool = self._options.use_graph_pool or self._device.new_pool()
        stream = self._device.current_stream(shape.index)
        try:
            with CAPTURING:
                captured = Captured.of(
                    self._program,
                    inputs,
                    shape.placing,
                    shape.watched,
                    self._device,
                    index=shape.index,
                    pool=self._pool,
                    error_mode=self._options.capture_error_mode,
                )
        except Exception as error:  # if it is the graph's own, the eager run says it again
            logger.debug("npugraph_ex: graph %s: its capture", self._name, exc_info=error)
            self._device.set_stream(stream)  # a context that fails to end a capture leaves its own stream the current one
            self._refuse(shape, f"its capture failed: {type(error).__name__}: {str(error).partition(chr(10))[0]}")
            return None
        for old in self._retired:  # the device was idle before the capture
            old.graph.reset()
        self._retired.clear()
        return captured

    def _retire(self, shape: Shape) -> None:
        """Replay its captures no more. They are destroyed when the device is idle, since one of them may be running."""
        if shape.captures:
            self._retired += shape.captures.values()
            shape.captures.clear()
            self._pool = None

    def _replay(self, shape: Shape, captured: Captured, inputs: list[Any]) -> object:
        stream = self._device.current_stream(shape.index)
        if self._stream is not None and self._stream != stream:
            stream.wait_stream(self._stream)  # captures of one graph share memory
        self._stream = stream
        outputs = captured.replay(inputs, cloned=self._clones)
        if not self._clones and captured.results not in self._given:
            self._given.append(captured.results)
        return outputs

    # ---- telling -----------------------------------------------------------------------------------------------------

    def _is_full(self, count: int) -> bool:
        if count < self._options.capture_limit:
            return False
        line = (
            f"graph {self._name}: there are {count} captures, which is capture_limit; what else comes runs operator by operator"
        )
        _notices.once(("captures", self._name), logging.WARNING, line)
        return True

    def _refuse(self, shape: Shape, reason: str) -> None:
        shape.reason = shape.reason or reason
        self._tell(shape.reason)

    def _tell(self, reason: str) -> None:
        line = f"graph {self._name} is not captured, and runs operator by operator: {reason}"
        _notices.once(("not captured", self._name), logging.WARNING, line)
