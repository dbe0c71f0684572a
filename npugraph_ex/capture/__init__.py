"""Captured graphs: a compiled graph's launches are captured once for each shape, and replayed at the calls that follow.

Promise: a replayed call gives what an eager one would, in its outputs, in what it writes to, and in what shares memory with what; a graph
that cannot be captured, or whose capture fails, runs operator by operator, which is said once; and a capture waits for no other rank, except
for one bounded vote where the graph exchanges data with other ranks.  The first run of a shape is never captured: it is the one that is
recorded, and watched for what it writes to.
"""

from npugraph_ex.capture.device import CAPTURING, CaptureDevice
from npugraph_ex.capture.runner import CaptureRunner

__all__ = ["CAPTURING", "CaptureDevice", "CaptureRunner"]
