"""The op library in service: what is in a shared op root, what others do to it, whom that hurts, and which round's kernels go in next."""
