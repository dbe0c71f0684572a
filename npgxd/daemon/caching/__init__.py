"""The compile cache: look-ups, one build of a key at a time, publications, and whose entry goes to whom."""
