"""The daemon: one process that owns the node's op library and answers every rank.

Promise: an accepted round is durable; a key is compiled at most once at a time on the node; every follower hears something at least every
second until its round is settled, and what it hears is true; a stop finishes what runs, keeps what waits, and exits 0.  One
poll loop drives sockets, sessions, groups and jobs; compiles run in worker processes, and what a shared op root needs in one thread.

Rooms, each of which knows only those below it: ``administering``, ``serving`` and ``telling``, ``compiling`` and ``caching``, ``scheduling``,
``library``, ``keeping``, ``demand``.  ``service`` is the loop that drives them, ``main`` the command.
"""
