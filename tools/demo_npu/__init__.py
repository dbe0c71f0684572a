"""The demo on simulated NPUs: the unmodified torch_npu serves a decoder through its own backend, with the bridge and without.

``python -m tools.demo_npu`` starts four ranks three times with the bridge and three times with ``NPGXD_BRIDGE=off``, and shows side by
side what was compiled, how long it took and what is left behind. What it says of the bridge is checked: it exits non-zero if any of
that is untrue.
"""
