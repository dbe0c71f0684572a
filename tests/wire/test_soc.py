from __future__ import annotations

import pytest

from npgxd.errors import ToolchainError
from npgxd.wire.soc import soc_family


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        ("Ascend910b3", "did you mean Ascend910B3?"),
        ("ascend910_9391", "did you mean Ascend910_9391?"),
        ("910B3", "known: Ascend310P1"),
    ],
)
def test_a_soc_that_is_not_known_is_answered_with_the_one_that_was_meant(typed: str, told: str) -> None:
    with pytest.raises(ToolchainError, match="unknown SoC") as refused:
        soc_family(typed)
    assert told in refused.value.hint
