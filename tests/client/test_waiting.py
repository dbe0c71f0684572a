from __future__ import annotations

import pytest

from npgxd.client.waiting import Wait, WaitMode, wait_of
from npgxd.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "wait"),
    [
        ("block", Wait()),
        ("background", Wait(WaitMode.BACKGROUND)),
        (" background ", Wait(WaitMode.BACKGROUND)),
        (0, Wait(WaitMode.DEADLINE, 0.0)),
        (2.5, Wait(WaitMode.DEADLINE, 2.5)),
        ("30", Wait(WaitMode.DEADLINE, 30.0)),
    ],
)
def test_the_three_ways_of_waiting(value, wait):
    assert Wait.parse(value) == wait


@pytest.mark.parametrize("value", [None, True, -1, "-1", "nan", "inf", "later", "", 10**400, [3]])
def test_anything_else_is_refused_with_what_is_allowed(value):
    with pytest.raises(ConfigError, match="'block', 'background' or a number of seconds"):
        Wait.parse(value)


def test_the_variable_counts_before_the_option():
    option = Wait(WaitMode.DEADLINE, 5.0)
    assert wait_of(option, {}) == option
    assert wait_of(option, {"NPGXD_WAIT": ""}) == option
    assert wait_of(option, {"NPGXD_WAIT": "background"}) == Wait(WaitMode.BACKGROUND)
    assert wait_of(option, {"NPGXD_WAIT": "7"}) == Wait(WaitMode.DEADLINE, 7.0)


def test_a_variable_that_says_nothing_valid_is_warned_of_once_and_does_not_count(caplog):
    option = Wait(WaitMode.DEADLINE, 5.0)
    assert wait_of(option, {"NPGXD_WAIT": "soon"}) == option
    assert wait_of(option, {"NPGXD_WAIT": "soon"}) == option
    (warning,) = caplog.records
    assert "NPGXD_WAIT='soon' is not valid" in warning.getMessage()
