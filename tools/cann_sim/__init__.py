"""A simulated CANN, for development, CI and demonstrations on machines without one.

It behaves as ``docs/cann.md`` says CANN does: a home with version files and op roots, an ``op_compiler`` with the documented
command line, a cost model and failures that can be ordered, run packages that are real self-extracting archives, and a reader
that loads an op-library root as the runtime does. It promises that kernels are deterministic, that every compile is counted in
the home's own run log, and that nothing it makes can be taken for the real thing: it says "simulated" wherever a user meets it.
"""

from tools.cann_sim.compiler.costs import FREE, Costs
from tools.cann_sim.compiler.orders import KINDS, Order
from tools.cann_sim.home import SimulatedCann, create, opened
from tools.cann_sim.reader import Check, Kernel, LoadReport, Reader, Torn, default_root
from tools.cann_sim.runs import Run, RunOp

__all__ = [
    "FREE",
    "KINDS",
    "Check",
    "Costs",
    "Kernel",
    "LoadReport",
    "Order",
    "Reader",
    "Run",
    "RunOp",
    "SimulatedCann",
    "Torn",
    "create",
    "default_root",
    "opened",
]
