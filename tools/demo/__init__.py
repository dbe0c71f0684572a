"""The demo: a real model's kernels compiled once for all ranks, on a simulated CANN, with a private daemon.

``python -m tools.demo`` starts a small decoder three times through torchrun and shows what npgxd did; every claim in its table is
checked against the ranks' own reports, the simulated compiler's own log and a reader that loads the views as the runtime would.
It promises to leave no process behind, however it ends, and to exit non-zero if anything it shows is untrue.
"""
