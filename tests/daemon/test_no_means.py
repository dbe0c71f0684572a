"""A daemon that has no descriptors left for a while: ranks are told, and no kernel that is there is compiled again."""

from __future__ import annotations

from npgxd.client.fetch import Fetched
from npgxd.client.refusals import settled_outcome
from npgxd.wire.states import ClientState, KeyOutcome, Reason
from tests.store.made import names, no_descriptors, refused


def test_kernels_that_cannot_be_looked_at_are_told_and_the_next_process_has_them(parts) -> None:
    made = parts.submit(parts.session(run_id="earlier"), 16, 32)
    parts.drive(lambda: made.result is not None)
    parts.stores.kernels._recent.clear()
    with no_descriptors():
        told = parts.submit(parts.session(run_id="now"), 16, 32)
    assert (told.result.state, told.result.reason) == (ClientState.DEGRADED, Reason.STORE_FAILED)
    assert {each.outcome for each in told.settlements.values()} == {KeyOutcome.FAILED}
    outcome = settled_outcome(told.progress(0.0), Fetched())
    assert outcome.detail.startswith("2 of 2 kernels could not be read or kept: ")
    assert "Too many open files. The daemon is out of file descriptors: raise LimitNOFILE" in outcome.detail
    assert not len(parts.coordinator.flights), "nothing is compiled in vain"
    again = parts.submit(parts.session(run_id="later"), 16, 32)
    assert (again.result.state, again.result.hits) == (ClientState.INSTALLED, 2)
    assert names(parts.stores.state.quarantine) == []


def test_a_round_that_an_earlier_life_took_does_not_have_its_kernels_compiled_again(parts) -> None:
    made = parts.submit(parts.session(run_id="earlier"), 16)
    parts.drive(lambda: made.result is not None)
    parts.stores.kernels._recent.clear()
    with no_descriptors():
        parts.coordinator.resume([made.entry], 0.0)
        assert not len(parts.coordinator.flights)


def test_a_view_that_cannot_be_made_for_want_of_descriptors_costs_no_kernel(parts) -> None:
    made = parts.submit(parts.session(run_id="earlier"), 16, 32)
    parts.drive(lambda: made.result is not None)
    parts.stores.views.drop_unleased(set())
    with no_descriptors():
        told = parts.submit(parts.session(run_id="now"), 16, 32)
        for _ in range(100):
            parts.coordinator.settle(0.0)
    assert (told.result.state, told.result.reason) == (ClientState.DEGRADED, Reason.STORE_FAILED)
    again = parts.submit(parts.session(run_id="later"), 16, 32)
    assert (again.result.state, again.result.hits) == (ClientState.INSTALLED, 2)
    assert names(parts.stores.state.quarantine) == []


def test_what_a_process_has_loaded_is_told_later_and_no_kernel_counts_as_installed_before(parts) -> None:
    made = parts.submit(parts.session(run_id="earlier"), 16, 32)
    parts.drive(lambda: made.result is not None)
    wanted = parts.session(run_id="earlier")
    parts.coordinator.loaded(wanted, made.result.view)
    again = parts.session(run_id="again")
    with refused("view.json"):
        parts.coordinator.loaded(again, made.result.view)
        told = parts.submit(again, 16, 32)
        for _ in range(100):
            parts.coordinator.settle(0.0)
        assert (told.result.state, told.result.reason) == (ClientState.DEGRADED, Reason.STORE_FAILED)
    told = parts.submit(again, 16, 32)
    for _ in range(100):
        parts.coordinator.settle(0.0)
    assert again.loaded == wanted.loaded
    assert (told.result.state, told.result.view) == (ClientState.INSTALLED, None), "it has loaded both already"
