"""Recording: the first real run of a graph, told operator by operator in CANN's record schema.

Promise: the run that is recorded is the user's own call, so in-place state and random generators advance once; its outputs are
the user's; and nothing that goes wrong while an operator is being described reaches the user: it is named and counted instead.
"""

from npugraph_ex.recording.recorded import DumpSwitchHeld, Recorded, Recorder

__all__ = ["DumpSwitchHeld", "Recorded", "Recorder"]
