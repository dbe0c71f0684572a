"""Screens of npgxctl for docs/screens.md: ``python -m tools.screens`` takes them anew, from a real terminal of a simulated node.

Promise: each is what the program printed, letter for letter; ``shape`` is what of it must not differ from one node, or one day, to another.
"""
