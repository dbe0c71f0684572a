"""Inside the unmodified torch_npu: the daemon behind its bundled npugraph_ex, for static kernels and compile cache; no user code changes.

A ``.pth`` line installs one import hook (``hook``); when the bundled modules are loaded, their static-kernel functions are replaced
(``replacing``) by a journey through ``npgxd.client`` (``rounds``), and what its ``cache_compile`` does at a first call by another
(``caching``, ``first_call``, ``building``). Promise: an interpreter starts and a model runs whatever happens
here; the recording run leaves no trace in what the graph mutates; a process that the daemon serves installs and removes nothing
itself; an entry of its compile cache is used only if a sidecar says that its source still holds, and is never removed with its directory;
and without a daemon the bundled flow of static kernels runs only if every rank of the job on the node says so in one bounded vote.
``NPGXD_BRIDGE=off`` in a process's environment leaves everything as torch_npu has it.
"""
