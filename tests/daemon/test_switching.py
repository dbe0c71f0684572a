"""At which call the ranks of a job change a graph: the daemon's decision, and the whole agreement whatever is lost, late or restarted."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from npgxd.client.changing import Calls, Change
from npgxd.daemon.refusals import Refused
from npgxd.daemon.serving import switching
from npgxd.daemon.serving.switching import PATIENCE_S, Agreements, Others
from npgxd.wire.switch_messages import Switch, SwitchStep

ALL = (0, 1, 2)


class Asking:
    """A rank that asks, and remembers what it was told."""

    def __init__(self, agreements: Agreements, rank: int, partners=ALL, job="job"):
        self.agreements, self.rank, self.partners, self.job = agreements, rank, partners, job
        self.turns = itertools.count()
        self.told = None

    def ask(self, now=0.0, others=None, **facts):
        said = Switch(
            member=f"{self.rank:032x}",
            turn=next(self.turns),
            graph="0",
            **({"call": 1} | facts),
            rank=self.rank,
            partners=self.partners,
        )
        others = others or Others(expected=len(ALL))
        self.told = self.agreements.hear(said, uid=1, job=self.job, session=str(self.rank), others=others, now=now)
        return self.told.step

    def arm(self, now=0.0, **facts):
        """Promise what was proposed."""
        return self.ask(now, ballot=self.told.ballot, at=self.told.at, **facts)


@pytest.fixture
def agreements():
    numbers = itertools.count(1)
    return Agreements(lambda: f"{next(numbers):032x}")


@pytest.fixture
def ranks(agreements):
    return [Asking(agreements, rank) for rank in ALL]


def test_a_call_is_proposed_when_all_are_ready_and_decided_when_all_have_promised(ranks):
    first, second, third = ranks
    assert [first.ask(), second.ask()] == [SwitchStep.WAIT] * 2
    assert third.ask(call=7, calls_per_s=10.0) is SwitchStep.ARM
    assert third.told.at == 7 + 15  # beyond the foremost, as far as the fastest gets in AHEAD_S
    assert [first.ask(), second.ask()] == [SwitchStep.ARM] * 2
    assert [first.arm(), second.arm()] == [SwitchStep.ARM] * 2
    assert third.arm() is SwitchStep.COMMIT
    assert [first.arm(), second.arm()] == [SwitchStep.COMMIT] * 2
    assert {rank.told.at for rank in ranks} == {22}


def test_whoever_was_faster_than_the_proposal_gets_another_one_farther_ahead(ranks):
    for rank in ranks:
        rank.ask()
    for rank in ranks:
        rank.ask()
    at = ranks[0].told.at
    assert ranks[0].arm() is SwitchStep.ARM
    assert ranks[1].ask(call=at + 5) is SwitchStep.ARM
    again = ranks[1].told
    assert again.at > at + 5
    assert again.ballot != ranks[0].told.ballot
    assert ranks[0].arm() is SwitchStep.ARM
    assert ranks[0].told.ballot == again.ballot


def test_ranks_that_cannot_be_caught_are_left_alone_in_the_end(ranks):
    calls = 1
    for _ in range(switching.MAX_TRIES + 2):
        steps = {rank.ask(call=calls) for rank in ranks}
        calls = (ranks[0].told.at or calls) + 1
    assert steps == {SwitchStep.NEVER}
    assert "tries" in ranks[0].told.reason


def test_a_rank_that_still_compiles_is_waited_for_however_long(ranks):
    compiling = Others(compiling=1, expected=3)
    for rank in ranks[:2]:
        rank.ask(0.0, compiling)
        assert rank.ask(1000.0, compiling) is SwitchStep.WAIT


def test_a_partner_that_says_nothing_is_named_after_a_while(ranks):
    for rank in ranks[:2]:
        rank.ask(0.0)
    assert ranks[0].ask(PATIENCE_S - 1) is SwitchStep.WAIT
    assert ranks[0].ask(PATIENCE_S) is SwitchStep.NEVER
    assert ranks[0].told.reason == "rank 2 did not ask to change this graph"


def test_a_partner_that_goes_on_as_it_is_ends_it_for_all_at_once(ranks):
    for rank in ranks:
        rank.ask()
    ranks[2].ask(over=True)
    assert [rank.ask() for rank in ranks[:2]] == [SwitchStep.NEVER] * 2
    assert "rank 2" in ranks[0].told.reason


def test_nothing_is_decided_without_a_partner_whose_connection_is_away(agreements, ranks):
    for _ in range(2):
        for rank in ranks:
            rank.ask()
    agreements.gone("2")
    for _ in range(2):
        assert [rank.arm() for rank in ranks[:2]] == [SwitchStep.ARM] * 2
    assert ranks[2].arm() is SwitchStep.COMMIT  # it came back, and keeps its promise


def test_a_decision_stays_for_those_who_promised_and_is_none_for_a_late_one(ranks, agreements):
    for _ in range(2):
        for rank in ranks:
            rank.ask()
    for rank in ranks:
        rank.arm()
    assert ranks[0].arm(5.0) is SwitchStep.COMMIT
    ranks[1].ask(over=True)
    assert ranks[0].arm(6.0) is SwitchStep.COMMIT
    assert Asking(agreements, 9, ()).ask(7.0) is SwitchStep.NEVER


def test_a_daemon_that_knows_nothing_finds_the_decision_in_what_the_ranks_say(ranks, agreements):
    ballot = "f" * 32
    assert ranks[0].ask(ballot=ballot, at=40) is SwitchStep.ARM or ranks[0].told.step is SwitchStep.WAIT
    assert ranks[1].ask(ballot=ballot, at=40, committed=True) is SwitchStep.COMMIT
    assert ranks[0].ask(ballot=ballot, at=40) is SwitchStep.COMMIT
    assert ranks[0].told.at == 40


def test_a_daemon_that_knows_nothing_decides_what_all_have_promised_to_an_earlier_one(ranks):
    steps = [rank.ask(ballot="f" * 32, at=40) for rank in ranks]
    assert steps == [SwitchStep.WAIT, SwitchStep.WAIT, SwitchStep.COMMIT]


def test_without_collectives_ranks_that_never_come_are_not_waited_for_long(agreements):
    first, second = (Asking(agreements, rank, ()) for rank in (0, 1))
    assert first.ask(0.0) is SwitchStep.WAIT
    assert second.ask(switching.LATE_S / 2) is SwitchStep.WAIT
    assert first.ask(switching.LATE_S) is SwitchStep.ARM


def test_an_overtaken_message_does_not_count(ranks):
    for _ in range(2):
        for rank in ranks:
            rank.ask()
    ranks[0].turns = iter([0])
    assert ranks[0].ask(call=10_000) is SwitchStep.ARM
    assert ranks[0].told.at < 10_000


def test_an_agreement_ends_with_its_members_and_a_users_are_bounded(agreements, monkeypatch):
    monkeypatch.setattr(switching, "MAX_AGREEMENTS_PER_UID", 1)
    one, other = Asking(agreements, 0), Asking(agreements, 0, job="another")
    one.ask()
    with pytest.raises(Refused, match="already"):
        other.ask()
    agreements.gone("0")
    assert len(agreements) == 0
    other.ask()


# ---- the whole of it, whatever happens -------------------------------------------------------------------------------


class SimulatedRank:
    """The client's own ``Calls`` and ``Change``, with a follower whose messages a test carries, or loses."""

    def __init__(self, number: int, box: dict[str, bool]) -> None:
        self.number = number
        self.calls = Calls()
        self.change = Change(self.calls, vote=box.setdefault, decision_s=0)
        self.session = str(number)
        self.turn = 0
        self.killed = False
        self.follows = True

    def say(self) -> Switch:
        self.turn += 1
        change = self.change
        return Switch(
            member=f"{self.number:032x}",
            turn=self.turn,
            graph="0",
            call=self.calls.begun,
            calls_per_s=4.0,
            rank=self.number,
            partners=ALL,
            ballot=change.ballot,
            at=change.at,
            committed=change.committed,
            over=change.is_over,
        )

    def hear(self, told) -> None:
        if told.step is SwitchStep.ARM:
            self.change.arm(told.ballot, told.at)
        elif told.step is SwitchStep.COMMIT:
            self.change.commit(told.ballot)
        elif told.step is SwitchStep.NEVER:
            self.give_up()

    def give_up(self) -> None:
        self.follows = False
        self.change.withdraw("no agreement")

    def call(self) -> None:
        """One call of the graph, as the backend does it."""
        if self.calls.begin():
            for change in self.calls.take():
                change.made()


class Node:
    """Three ranks in lock step through a collective; requests and answers are lost or late; connections, the daemon and ranks go."""

    def __init__(self):
        self.box: dict[str, bool] = {}
        self.ballots = itertools.count(1)
        self.ranks = [SimulatedRank(number, self.box) for number in ALL]
        self.now = 0.0
        self.late: list[tuple[SimulatedRank, str, Switch]] = []
        self.restart()

    def restart(self, _rank=None):
        self.agreements = Agreements(lambda: f"{next(self.ballots):032x}")
        for rank in self.ranks:
            self.reconnect(rank)

    def reconnect(self, rank):
        self.agreements.gone(rank.session)
        rank.session += "+"

    def call(self, rank):
        if not rank.killed and all(other.calls.begun >= rank.calls.begun for other in self.ranks):
            rank.call()  # the last call is over: everybody has begun it

    def ask(self, rank):
        if not rank.killed and rank.follows:
            rank.hear(self.deliver(rank, rank.say()))

    def ask_and_lose_the_answer(self, rank):
        if not rank.killed and rank.follows:
            self.deliver(rank, rank.say())

    def ask_and_give_up(self, rank):
        """The request comes later than one that is sent after it, and nobody waits for its answer."""
        if not rank.killed and rank.follows:
            self.late.append((rank, rank.session, rank.say()))

    def deliver_late(self, _rank):
        if self.late:
            rank, session, said = self.late.pop(0)
            if session == rank.session:  # what comes through a connection that is gone is refused
                self.deliver(rank, said)

    def give_up(self, rank):
        rank.give_up()

    def die(self, rank):
        rank.killed = True
        self.agreements.gone(rank.session)

    def wait(self, _rank):
        self.now += PATIENCE_S

    def deliver(self, rank, said):
        self.now += 0.1
        return self.agreements.hear(said, uid=1, job="j", session=rank.session, others=Others(expected=3), now=self.now)

    def check(self):
        """All change at one call, or none does: whoever has come to that call has changed."""
        made = {rank.change.made_at for rank in self.ranks} - {None}
        assert len(made) <= 1
        for at in made:
            for rank in self.ranks:
                assert rank.change.made_at == at or rank.calls.begun < at


OFTEN = [Node.ask] * 8 + [Node.call] * 4 + [Node.ask_and_lose_the_answer, Node.ask_and_give_up, Node.deliver_late]
SELDOM = [Node.reconnect, Node.restart, Node.give_up, Node.die, Node.wait]
ACTS = OFTEN * 16 + SELDOM


@settings(max_examples=400, deadline=None)
@given(st.integers(0, 2**32))
def test_whatever_happens_all_ranks_change_at_one_call_or_none_does(seed):
    """Long random runs, each from its seed: an agreement takes some dozen acts, and lists that hypothesis draws are short."""
    node, chance = Node(), random.Random(seed)
    for _ in range(160):
        act, rank = chance.choice(ACTS), chance.choice(node.ranks)
        act(node, rank)
        node.check()
    event("changed" if any(rank.change.made_at for rank in node.ranks) else "not changed")


def test_when_all_goes_well_every_rank_changes():
    node = Node()
    for _ in range(30):
        for rank in node.ranks:
            node.ask(rank)
        for rank in node.ranks:
            node.call(rank)
    node.check()
    assert all(rank.change.made_at for rank in node.ranks)
