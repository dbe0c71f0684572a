"""npgxctl: what a person at a terminal, and a script, can see and do on a node.

Promise: data goes to stdout and talk to stderr; every command has a small, stable table of exit codes (``npgxd.cli.exits``);
output fits a narrow terminal, and is plain, one fact a line, where it is not one; nothing that a client sent can act on the
terminal that shows it.  A command is one module with a ``COMMAND``; ``npgxd.cli.commands`` lists them.
"""
