"""The simulated op_compiler: what a simulated CANN home carries as its compiler.

This package is copied into every home that ``tools.cann_sim.create`` makes and runs there alone: standard library only,
relative imports only, nothing of this repository at run time.  It promises that a kernel's bytes are decided by the record, the
flags, the SoC, the versions and the files that the op resolves to, and by nothing else; see ``docs/cann.md`` for the behaviour
it stands in for.
"""
