"""A simulated libascendcl: C++ libraries under which the unmodified torch_npu wheel runs on a CPU.

``build`` compiles them into a simulated CANN home, for the torch_npu that is installed; what a process then runs is computed on
the host, with right numbers, and every launch says whether it was a static kernel. The libraries follow the home's CANN version
(what is dumped, which functions exist), load op-library roots as the runtime does, and say "SIMULATED" in every error. Operators
that they do not compute are refused by name, never passed over. A C++20 compiler (g++) and binutils' nm are prerequisites.
"""

from tools.cann_sim.native.build import BuildFailed, build, objects
from tools.cann_sim.native.counters import Counters, counters, left_counters, reset_counters
from tools.cann_sim.native.wheel import Wheel, find_wheel

__all__ = ["BuildFailed", "Counters", "Wheel", "build", "counters", "find_wheel", "left_counters", "objects", "reset_counters"]
