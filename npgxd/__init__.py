"""npgxd: the node's owner of CANN static kernels and compile caches.

One daemon for a node takes operator shape records from every rank, compiles each kernel once, publishes kernels atomically and
hands every process a root that it can reselect from.  Nothing in this package imports torch.
"""

__version__ = "0.1.0"
