"""The store: kernels and run packages by digest, accepted rounds, and the catalog that finds them.

Promise: what is published is whole and immutable, what is acknowledged survives a crash, and files are the truth: the catalog is an
index that can be made anew.  ``disk`` is the only module that renames, fsyncs or removes any of it.
"""
