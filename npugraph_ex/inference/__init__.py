"""npugraph_ex.inference: compiled graphs kept on disk, so that a process which starts later skips tracing.

Promise: an entry is used only if everything it was made from is as it was, and only for calls that it fits; whatever does not fit
is compiled as usual, with its reason told.
"""
