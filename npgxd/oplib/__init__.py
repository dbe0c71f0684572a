"""The op library: views that a process can reselect from, the leases that hold them, and their clean-up after a crash.

Promise: a reader of a view, at any instant, sees a complete state whose index names only files that are there, with the bytes of
their manifests; nothing that a living process has leased is changed or removed.
"""
