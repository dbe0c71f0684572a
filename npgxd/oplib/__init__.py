"""The op library: views that a process can reselect from, or the shared root of older CANN, the leases that hold what is needed, clean-up.

Promise: a reader of a view, at any instant, sees a complete state whose index names only files that are there, with the bytes of
their manifests; nothing that a living process has leased is changed or removed.  In a shared root that holds against our own acts;
what others do there is noticed and mended.
"""
