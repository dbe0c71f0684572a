from __future__ import annotations

from tools.bench.fuzz import throw


def test_malformed_messages_are_understood_or_refused_and_nothing_else_comes_out() -> None:
    """A few; ``python -m tools.bench fuzz`` throws a million."""
    tally = throw(5_000, seed=7)
    assert tally.faults == []
    assert tally.understood > 100
    assert tally.refused > 1000
