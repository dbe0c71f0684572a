"""The daemon: one process that owns the node's op library and answers every rank.

Promise: an accepted round is durable; a key is compiled at most once at a time on the node; every follower hears something at least every
second until its round is settled, and what it hears is true; a stop finishes what runs, keeps what waits, and exits 0.  One
thread, one poll loop: sockets, sessions, groups and jobs are all driven by it, and whatever could block it runs in a worker process.
"""
