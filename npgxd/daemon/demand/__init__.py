"""What ranks ask for: rounds with their keys, keys in flight, and the lines they wait in. Pure state: no sockets, processes or disk."""
