from __future__ import annotations

import pytest

from npugraph_ex.recording import DumpSwitchHeld
from npugraph_ex.recording.switch import DumpSwitch


def test_one_recording_at_a_time():
    switch = DumpSwitch()
    with switch.hold("graph 0"):
        assert switch.recording_here()
        with (
            pytest.raises(DumpSwitchHeld, match="held by graph 0, so graph 1 cannot be recorded") as raised,
            switch.hold("graph 1"),
        ):
            pass
        assert raised.value.data["ours"]
    assert not switch.recording_here()
    with switch.hold("graph 1"):
        pass


def test_a_holder_from_outside_is_named():
    switch = DumpSwitch()
    assert switch.ask("the profiler")
    with pytest.raises(DumpSwitchHeld, match="held by the profiler") as raised, switch.hold("graph 0"):
        pass
    assert raised.value.holder == "the profiler"
    assert not raised.value.data["ours"]
    assert switch.give_back()
    with switch.hold("graph 0"):
        pass


def test_a_second_holder_from_outside_is_refused():
    switch = DumpSwitch()
    assert switch.ask("one")
    assert not switch.ask("another")


def test_whoever_asks_during_a_recording_is_refused_and_remembered(caplog):
    switch = DumpSwitch()
    with switch.hold("graph 0") as hold:
        assert hold.problem() is None
        assert not switch.ask("the profiler")
        assert not switch.give_back()
        problem = hold.problem()
    assert problem is not None
    assert "the profiler asked for the operator dump while graph 0 was being recorded" in str(problem)
    assert "it is refused" in caplog.text
    assert switch.ask("the profiler")


def test_the_switch_is_free_after_a_run_that_failed():
    switch = DumpSwitch()
    with pytest.raises(ZeroDivisionError), switch.hold("graph 0"):
        raise ZeroDivisionError
    assert not switch.recording_here()
