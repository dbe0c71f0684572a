"""Inside the unmodified torch_npu: its bundled npugraph_ex gets its static kernels from the daemon, and no user code changes.

A ``.pth`` line installs one import hook (``hook``); when the bundled modules are loaded, their static-kernel functions are replaced
(``replacing``) by a journey through ``npgxd.client`` (``rounds``). Promise: an interpreter starts and a model runs whatever happens
here; the recording run leaves no trace in what the graph mutates; a process that the daemon serves installs and removes nothing
itself; and without a daemon the bundled flow runs only if every rank of the job on the node says so in one bounded vote.
``NPGXD_BRIDGE=off`` in a process's environment leaves everything as torch_npu has it.
"""
