"""The portable backend on an NPU, in a torch_npu that bundles no npugraph_ex: ``capturing REPORT [ranks]``.

It runs decoding steps, the cases of captured graphs, and those that only an NPU has.
"""

import contextlib
import os
import threading
import traceback

import capture_cases
import torch
import torch.distributed as dist
import torch_npu
from capture_cases import Graph, close, notices, numbers, operator

from decoder import Decoder, DecoderConfig, LayerCache
from npugraph_ex import static_kernel_report
from npugraph_ex.backend import npugraph_ex
from reporting import arguments, report
from tools.cann_sim.native import counters, reset_counters

torch.npu.config.allow_internal_format = True
del __file__  # outputs go beside the running script: not into the sources


def launches() -> dict[str, object]:
    now = counters()
    return {"host": now.host_launches, "replays": now.replays, "static": now.static, "dynamic": now.dynamic}


def decoding(dtype: torch.dtype, **options: object) -> dict[str, object]:
    """Six decoding steps beside the CPU's, the last two with another batch."""
    host, device = Decoder(DecoderConfig()).eval().to(dtype), Decoder(DecoderConfig()).eval().to(dtype).npu()
    step = torch.compile(device.decode_step, backend=npugraph_ex, fullgraph=True, dynamic=False, options=options)
    told, off = [], 0.0
    for batch, calls in ((2, 4), (3, 4)):
        caches = [LayerCache(keys.to(dtype), values.to(dtype)) for keys, values in host.new_cache(batch)]
        on_device = [LayerCache(keys.npu(), values.npu()) for keys, values in caches]
        for call in range(calls):
            tokens, positions = torch.arange(batch) + call, torch.arange(batch) + call
            reset_counters()
            with torch.no_grad():
                ours = step(tokens.npu(), positions.npu(), on_device)
                torch.npu.synchronize()
                told.append(launches())
                off = max(off, float((ours.cpu() - host.decode_step(tokens, positions, caches)).abs().max()))
            for mine, wanted in zip(on_device, caches, strict=True):
                off = max(off, float((mine.keys.cpu() - wanted.keys).abs().max()))
            del ours
    return {"calls": told, "off": off}


def nz(tensor: torch.Tensor) -> torch.Tensor:
    made = torch_npu.npu_format_cast(tensor.npu(), 29)
    assert int(torch_npu.get_npu_format(made)) == 29
    return made


@capture_cases.case
def private_formats_are_kept_in_place_and_in_copies(device: str) -> None:
    """A weight in FRACTAL_NZ is read where it is; an input in it is copied as it is, and replays read the copy right."""
    formats: list[int] = []

    def noted(x: torch.Tensor) -> torch.Tensor:
        formats.append(int(torch_npu.get_npu_format(x)))
        return x.clone()

    operator(device, "noted", noted)
    weight = torch.nn.Parameter(nz(torch.randn(48, 40).half()), requires_grad=False)
    for options in ({}, {"clone_input": False}):
        graph = Graph(
            device,
            lambda x, y, w: (x @ torch.ops.npgxd_test.noted(w)) @ torch.ops.npgxd_test.noted(y),
            numbers(device, 4, 48).half(),
            nz(torch.randn(40, 32).half()),
            weight,
            **options,
        )
        formats.clear()
        for call in range(5):
            x, y = numbers("cpu", 4, 48, seed=call).half(), numbers("cpu", 40, 32, seed=call + 9).half()
            ours = graph(x.npu(), nz(y), weight)
            wanted = (x.float() @ torch_npu.npu_format_cast(weight, 2).cpu().float()) @ y.float()
            assert float((ours.cpu().float() - wanted).abs().max()) < 2.0
            del ours
        assert graph.replays == 4, graph.counts
        assert formats == [29] * 2 * (1 + graph.captures), formats


@capture_cases.case
def an_input_in_a_private_format_that_is_given_back_is_itself(device: str) -> None:
    graph = Graph(device, lambda x, y: (y, x @ y), numbers(device, 4, 32).half(), nz(torch.randn(32, 32).half()))
    for _ in range(4):
        y = nz(torch.randn(32, 32).half())
        assert graph(numbers(device, 4, 32).half(), y)[0] is y
    assert graph.replays == 3


def meddling() -> None:
    """An operator beside which another thread calls what a capture may forbid: a copy that is not part of a stream."""

    def copy() -> None:
        with contextlib.suppress(RuntimeError):
            torch.ones(3).npu()

    def run(x: torch.Tensor) -> torch.Tensor:
        thread = threading.Thread(target=copy)
        thread.start()
        thread.join()
        return x + 1

    operator("npu", "meddled", run)


@capture_cases.case
def capture_error_mode_decides_what_other_threads_may_do_meanwhile(device: str) -> None:
    meddling()
    for mode, captured in (("global", False), ("thread_local", True), ("relaxed", True)):
        with notices() as said:
            graph = Graph(device, torch.ops.npgxd_test.meddled, numbers(device, 3), capture_error_mode=mode, clone_output=True)
            for call in range(4):
                x = numbers(device, 3, seed=call)
                close(graph(x), x + 1)
        assert graph.counts == ((1, 3) if captured else (0, 0)), (mode, graph.counts, said)
        assert len(said) == (not captured), said


def told_of(case) -> str:
    try:
        case("npu")
        torch.npu.synchronize()
    except Exception:  # noqa: BLE001 -- the test shows it
        return traceback.format_exc()
    return ""


def alone() -> None:
    """Everything that one process does."""
    static = decoding(torch.float16, static_kernel_compile=True)
    outcomes = [(str(each.outcome.state), each.outcome.unique) for each in static_kernel_report()]
    dynamic = decoding(torch.float32)
    cases = {name: told_of(case) for name, case in capture_cases.CASES.items()}
    report(static=static, outcomes=outcomes, dynamic=dynamic, cases=cases)


def ranks() -> None:
    """One of two ranks with graphs that exchange data, as far as anyone can tell; the second one cannot capture one of them."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", init_method=f"file://{os.environ['RENDEZVOUS']}", rank=rank, world_size=2)
    torch.npu.set_device(rank)

    def stand_in(x: torch.Tensor) -> torch.Tensor:
        """In the place of a collective, which the simulation has not: every rank has the same numbers."""
        return x * 2

    def fails_in_one(x: torch.Tensor) -> torch.Tensor:
        if rank == 1 and torch.npu.is_current_stream_capturing():
            raise RuntimeError("not in this rank")
        return x * 2

    told = {}
    for name, function in (("all_reduce", stand_in), ("all_gather", fails_in_one), ("reduce_scatter", stand_in)):
        operator("npu", name, function)
        graph = Graph("npu", getattr(torch.ops.npgxd_test, name), numbers("npu", 3), clone_output=True)
        for call in range(4):
            close(graph(numbers("npu", 3, seed=call)), numbers("npu", 3, seed=call) * 2)
        told[name] = graph.counts
    report(graphs=told)
    dist.barrier()
    dist.destroy_process_group()


ranks() if arguments() else alone()
