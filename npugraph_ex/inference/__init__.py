"""npugraph_ex.inference: compiled graphs kept on disk, so that a process which starts later skips tracing.

Promise: an entry is used only if everything it was made from is as it was, and only for calls that it fits; whatever does not fit
is compiled as usual, with its reason told.  A process that finds its entries never imports Dynamo.
"""

from npugraph_ex.inference.api import cache_compile
from npugraph_ex.inference.readable import readable_cache

__all__ = ["cache_compile", "readable_cache"]
