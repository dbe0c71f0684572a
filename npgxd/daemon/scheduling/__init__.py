"""From a submission to its end: groups of ranks close, known keys are hits, missing ones wait for a worker, and each key has its outcome."""
