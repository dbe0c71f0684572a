"""What is promised of captured graphs, on any device that captures: run on CUDA by test_capture_cuda.py, on a simulated NPU by tests/npu.

Each case is called with the device's word, and raises if the promise is broken.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from npugraph_ex import _notices
from npugraph_ex.capture import CaptureRunner
from npugraph_ex.compiling import ready
from npugraph_ex.engines import engine_on
from npugraph_ex.graph import SymbolicSizes
from npugraph_ex.options import read_options
from npugraph_ex.program import ModuleProgram

CASES = {}
LIBRARIES = []
"""Kept: an operator goes with its library."""


def case(function):
    CASES[function.__name__] = function
    return function


class Notices(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.said = []

    def emit(self, record):
        self.said.append(record.getMessage())


class Graph:
    """``function`` as a graph of its operators, with its in-place writes and views, on ``device``; counts captures and replays."""

    number = 0

    def __init__(self, device, function, *example, **options):
        Graph.number += 1
        self.name = f"case{Graph.number}"
        self.captures = self.replays = 0
        module = make_fx(function)(*[value.clone() if isinstance(value, torch.Tensor) else value for value in example])
        self.compiled = ready(
            ModuleProgram(module), engine_on({device}), SymbolicSizes(), options=read_options(options), name=self.name
        )

        runner = self.compiled._runner
        if isinstance(runner, CaptureRunner):
            runner._capture, runner._replay = self._counted(runner._capture, "captures"), self._counted(runner._replay, "replays")

    def __call__(self, *inputs):
        return self.compiled(list(inputs))

    def _counted(self, function, name):
        def counted(*args):
            result = function(*args)
            setattr(self, name, getattr(self, name) + (name == "replays" or result is not None))
            return result

        return counted

    @property
    def counts(self):
        return self.captures, self.replays


def operator(device, name, function, *, tags=()):
    """``torch.ops.npgxd_test.<name>``, of one tensor."""
    library = torch.library.Library("npgxd_test", "FRAGMENT")
    library.define(f"{name}(Tensor x) -> Tensor", tags=tags)
    library.impl(name, function, "PrivateUse1" if device == "npu" else device.upper())
    LIBRARIES.append(library)


@contextmanager
def notices():
    _notices.forget()
    handler = Notices()
    logging.getLogger("npugraph_ex").addHandler(handler)
    try:
        yield handler.said
    finally:
        logging.getLogger("npugraph_ex").removeHandler(handler)


def numbers(device, *sizes, seed=0):
    return torch.randn(*sizes, generator=torch.Generator().manual_seed(seed)).to(device)


def close(ours, wanted):
    assert ours.shape == wanted.shape, (ours.shape, wanted.shape)
    off = float((ours.cpu() - wanted.cpu()).abs().max()) if wanted.numel() else 0.0
    assert off < 1e-4, off


def runs_eagerly(device, function, *inputs, reason, **options):
    """Five calls of ``function`` are right, never captured, and that is told once with its reason."""
    with notices() as said:
        graph = Graph(device, function, *inputs, **options)
        for _ in range(5):
            ours = graph(*inputs)
        wanted = function(*inputs)
        close(ours, wanted)
    assert graph.counts == (0, 0), graph.counts
    assert [line for line in said if "is not captured" in line and reason in line] == said, said
    assert len(said) == 1, said


@case
def replays_give_what_eager_runs_give(device):
    w = torch.nn.Parameter(numbers(device, 8, 8, seed=1), requires_grad=False)

    def function(x, w):
        return (x @ w).relu() * 2, x + 1

    graph = Graph(device, function, numbers(device, 4, 8), w)
    for call in range(6):
        x = numbers(device, 4, 8, seed=call)
        for ours, wanted in zip(graph(x, w), function(x, w), strict=True):
            close(ours, wanted)
        del ours
    assert graph.replays == 5
    assert graph.captures <= 2


@case
def what_a_graph_writes_to_is_written_in_place_and_once_a_call(device):
    def function(x, cache):
        cache[0].add_(x)
        return cache.sum(0)

    x, cache, wanted_cache = numbers(device, 3), numbers(device, 2, 3), numbers(device, 2, 3)
    graph = Graph(device, function, x, cache)
    for _ in range(5):
        close(graph(x, cache), function(x, wanted_cache))
        close(cache, wanted_cache)
    assert graph.counts == (1, 4), graph.counts


@case
def a_cache_that_is_somewhere_else_at_each_call_is_copied_in_the_end(device):
    def function(x, cache):
        cache.mul_(2).add_(x)
        return cache + 0

    x = numbers(device, 3)
    caches = [numbers(device, 2, 3, seed=call) for call in range(8)]
    graph = Graph(device, function, x, caches[0])
    for call, cache in enumerate(caches):
        wanted_cache = numbers(device, 2, 3, seed=call)
        close(graph(x, cache), function(x, wanted_cache))
        close(cache, wanted_cache)
    assert graph.captures <= 4, graph.counts
    assert graph.replays == 7


@case
def two_caches_in_turn_have_a_capture_each(device):
    def function(x, cache):
        cache.add_(x)

    x, caches = numbers(device, 3), [numbers(device, 3, seed=1), numbers(device, 3, seed=2)]
    graph = Graph(device, function, x, caches[0])
    for call in range(9):
        before = caches[call % 2].clone()
        graph(x, caches[call % 2])
        close(caches[call % 2], before + x)
    assert graph.counts == (2, 8), graph.counts


@case
def outputs_share_memory_with_what_they_share_it_with_in_an_eager_run(device):
    def function(x, y):
        z = y * 2
        return x, x.view(-1)[1:], z, z[0]

    for options in ({}, {"clone_output": True}):
        graph = Graph(device, function, numbers(device, 2, 3), numbers(device, 2, 3), **options)
        for call in range(4):
            x, y = numbers(device, 2, 3, seed=call), numbers(device, 2, 3, seed=call + 9)
            same, part, whole, row = graph(x, y)
            for ours, wanted in zip((same, part, whole, row), function(x, y), strict=True):
                close(ours, wanted)
            assert same is x
            part.add_(1)
            close(x.view(-1)[1:], part)
            row.add_(5)
            close(whole[0], row)
            del same, part, whole, row, ours
        assert graph.replays == 3


@case
def an_output_that_somebody_holds_is_not_written_over(device):
    graph = Graph(device, lambda x: (x * 2)[1:], numbers(device, 3, 4))
    inputs = [numbers(device, 3, 4, seed=call) for call in range(6)]
    held = [graph(x)[0] for x in inputs]
    for x, ours in zip(inputs, held, strict=True):
        close(ours, (x * 2)[1])
    assert graph.replays == 5
    assert graph.captures == 2


@case
def with_clone_output_off_a_held_output_is_written_over_which_is_told(device):
    with notices() as said:
        graph = Graph(device, lambda x: x * 2, numbers(device, 3), clone_output=False)
        first = [graph(numbers(device, 3, seed=call)) for call in range(3)][1]
    close(first, numbers(device, 3, seed=2) * 2)
    assert graph.counts == (1, 2)
    assert len([line for line in said if "written over" in line]) == 1


@case
def a_new_shape_is_captured_up_to_the_limit_and_then_runs_eagerly(device):
    def function(x):
        return x * 2 + 1

    with notices() as said:
        graph = Graph(device, function, numbers(device, 2, 3), capture_limit=2)
        for _ in range(3):
            for rows in (2, 3, 4, 5):
                x = numbers(device, rows, 3, seed=rows)
                ours = graph(x)
                close(ours, function(x))
                del ours
    assert graph.captures == 2
    assert graph.replays == 4
    assert [line for line in said if "capture_limit" in line] == said
    assert len(said) == 1


@case
def weights_are_read_where_they_are(device):
    def function(x, w):
        return x @ w

    for options in ({}, {"frozen_parameter": True}):
        w = torch.nn.Parameter(numbers(device, 3, 3), requires_grad=False)
        graph = Graph(device, function, numbers(device, 2, 3), w, clone_output=True, **options)
        for call in range(4):
            x = numbers(device, 2, 3, seed=call)
            w.mul_(1.5)
            close(graph(x, w), function(x, w))
        assert graph.counts == (1, 3)
    frozen = graph
    graph = Graph(device, function, numbers(device, 2, 3), w, clone_output=True)
    for call in range(6):
        x, other = numbers(device, 2, 3), torch.nn.Parameter(numbers(device, 3, 3, seed=call // 3), requires_grad=False)
        if call % 3 == 0:
            w = other
        close(graph(x, w), function(x, w))
    assert graph.counts == (2, 5), graph.counts
    old = numbers(device, 2, 3) @ w
    frozen(numbers(device, 2, 3), torch.nn.Parameter(w * 2, requires_grad=False))
    close(old, numbers(device, 2, 3) @ w)
    assert frozen.captures == 1


@case
def inputs_of_any_layout_are_copied_as_they_are(device):
    def function(x):
        return x * 2

    for make in (
        lambda seed: numbers(device, 1, 4, seed=seed).expand(3, 4),
        lambda seed: numbers(device, 4, 3, seed=seed).t(),
        lambda seed: numbers(device, 5, 6, seed=seed)[1:4, ::2],
        lambda seed: numbers(device, 0, 3, seed=seed),
        lambda seed: numbers(device, 1, seed=seed)[0],
    ):
        graph = Graph(device, function, make(0))
        for call in range(4):
            x = make(call)
            close(graph(x), function(x))
        assert graph.replays == 3


@case
def without_clone_input_inputs_are_read_where_they_are_and_never_written_to(device):
    graph = Graph(device, lambda x: x * 2, numbers(device, 3), clone_input=False)
    x = numbers(device, 3)
    for _ in range(3):
        ours = graph(x)
        close(ours, x * 2)
        del ours
    assert graph.captures == 1
    inputs = [numbers(device, 3, seed=call) for call in range(5)]
    for call, x in enumerate(inputs):
        ours = graph(x)
        close(ours, numbers(device, 3, seed=call) * 2)
        del ours
    for call, x in enumerate(inputs):
        close(x, numbers(device, 3, seed=call))
    assert graph.captures <= 4


@case
def inputs_that_come_to_share_memory_are_seen_to(device):
    def function(x, y):
        x.add_(1)
        return y * 2

    graph = Graph(device, function, numbers(device, 3), numbers(device, 3))
    for _ in range(3):
        graph(numbers(device, 3), numbers(device, 3))
    x = numbers(device, 3)
    close(graph(x, x.view(3)), (numbers(device, 3) + 1) * 2)
    apart = graph.replays
    graph = Graph(device, lambda x, y: function(x, x[:2]) + y[:2], x, x)
    for _ in range(3):
        x = numbers(device, 3)
        close(graph(x, x), (numbers(device, 3)[:2] + 1) * 2 + numbers(device, 3)[:2] + 1)
    assert apart == 2


@case
def a_capture_is_made_again_when_kernels_are_new_or_it_is_asked_for(device):
    graph = Graph(device, lambda x: x * 2, numbers(device, 3), clone_output=True)
    for call in range(5):
        if call == 3:
            graph.compiled._runner.renew()
        close(graph(numbers(device, 3, seed=call)), numbers(device, 3, seed=call) * 2)
    assert graph.counts == (2, 4)
    graph = Graph(device, lambda x: x * 2, numbers(device, 3), force_recapture=True, clone_output=True)
    for call in range(4):
        close(graph(numbers(device, 3, seed=call)), numbers(device, 3, seed=call) * 2)
    assert graph.counts == (3, 3)


@case
def with_force_eager_nothing_is_captured(device):
    graph = Graph(device, lambda x: x * 2, numbers(device, 3), force_eager=True)
    for _ in range(3):
        close(graph(numbers(device, 3)), numbers(device, 3) * 2)
    assert graph.counts == (0, 0)


@case
def what_cannot_be_captured_runs_eagerly_with_its_reason(device):
    x = numbers(device, 3, 4)
    runs_eagerly(device, lambda x, y: x + y, x, torch.tensor(2.0), reason="input 1 is on cpu")
    operator(device, "noisy", lambda x: x + 1, tags=(torch.Tag.nondeterministic_seeded,))
    runs_eagerly(device, torch.ops.npgxd_test.noisy, x, reason="draws random numbers")
    operator(device, "choosing", lambda x: x + 1, tags=(torch.Tag.dynamic_output_shape,))
    runs_eagerly(device, torch.ops.npgxd_test.choosing, x, reason="size depends on data")
    runs_eagerly(device, lambda x: x + x.to("cpu").to(x.device), x, reason="between host and device")


@case
def a_capture_that_fails_leaves_right_results_and_one_notice(device):
    def fragile(x):
        if getattr(torch, device).is_current_stream_capturing():
            raise RuntimeError("not in a capture")
        return x + 1

    operator(device, "fragile", fragile)
    runs_eagerly(
        device, torch.ops.npgxd_test.fragile, numbers(device, 3), reason="its capture failed: RuntimeError: not in a capture"
    )
    replays_give_what_eager_runs_give(device)


@case
def a_graph_inside_its_users_own_capture_becomes_part_of_it(device):
    module = getattr(torch, device)
    graph = Graph(device, lambda x: x * 2, numbers(device, 3))
    x = numbers(device, 3)
    for _ in range(3):
        graph(x)
    counts = graph.counts
    own = (module.NPUGraph if device == "npu" else module.CUDAGraph)()
    with module.graph(own):
        y = graph(x)
    assert graph.counts == counts
    x.copy_(numbers(device, 3, seed=5))
    own.replay()
    close(y, numbers(device, 3, seed=5) * 2)


@case
def threads_that_call_one_graph_have_their_own_results(device):
    graph = Graph(device, lambda x: x * 2 + 1, numbers(device, 64), clone_output=True, capture_error_mode="thread_local")
    graph(numbers(device, 64))
    wrong = []

    def call(seed):
        for turn in range(10):
            x = numbers(device, 64, seed=seed * 100 + turn)
            if float((graph(x) - (x * 2 + 1)).abs().max()) > 1e-5:
                wrong.append((seed, turn))

    threads = [threading.Thread(target=call, args=(seed,)) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    assert graph.captures == 1


@case
def graphs_can_share_a_pool(device):
    pool = getattr(torch, device).graph_pool_handle()
    functions = (lambda x: (x * 2) @ x, lambda x: (x * 3) @ x)
    graphs = [Graph(device, function, numbers(device, 3, 3), use_graph_pool=pool) for function in functions]
    held = []
    for call in range(4):
        x = numbers(device, 3, 3, seed=call)
        held += [(graph(x), (x * by) @ x) for graph, by in zip(graphs, (2, 3), strict=True)]
    for ours, wanted in held:
        close(ours, wanted)
    assert [graph.counts for graph in graphs] == [(1, 3), (1, 3)]
