"""What the chaos scenarios ask of a start in which something was killed, and of the start after it."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from tools.cann_sim import Run
from tools.demo.chaos import Survival
from tools.demo.node import Counters
from tools.demo.reports import Graph, RankReport
from tools.demo.serving import Start

RECORDS = {"a" * 64: b"{}", "b" * 64: b"{}", "c" * 64: b"{}"}


def rank(number: int, *, state: str = "INSTALLED", hits: int = 2, compiled: int = 1, equal: bool = True) -> RankReport:
    graph = Graph(
        name="0",
        batch=1,
        state=state,
        reason="compiled",
        detail="",
        records=3,
        unique=3,
        hits=hits,
        compiled=compiled,
        view=None,
        outputs=None,
        submitted=RECORDS,
    )
    return RankReport(
        rank=number,
        local_rank=number,
        pid=1,
        local_world_size="2",
        equal=equal,
        max_difference=0.0,
        graphs=(graph,),
        reader_problems=(),
        reader_selected=3,
    )


def start(*reports: RankReport, codes: tuple[int, ...] = (0, 0), compiled: tuple[str, ...] = ("k",)) -> Start:
    run = Run(pid=1, argv=(), cwd="/", ops=(), started=0.0, status=0, compiled=compiled, seconds=1.0)
    return Start(
        name="x",
        nproc=2,
        batch_sizes=(1,),
        exit_codes=codes,
        reports=reports,
        wall_s=1.0,
        before=Counters(0, 2, 0, 2),
        after=Counters(0, 2 + len(compiled), 0, 3),
        runs=(run,),
    )


FOLLOWING = start(rank(0), rank(1))


def test_ranks_that_went_on_degraded_and_a_start_that_compiles_the_rest_survived() -> None:
    hurt = start(rank(0, state="DEGRADED"), rank(1))
    assert Survival("worker", 7, hurt, FOLLOWING, kept=2).untrue() == []


def test_a_killed_rank_is_the_only_one_missing() -> None:
    hurt = start(rank(0), codes=(0, -signal.SIGKILL))
    assert Survival("rank", 7, hurt, FOLLOWING, kept=2).untrue() == []
    told = Survival("rank", 7, start(rank(0), rank(1)), FOLLOWING, kept=2).untrue()
    assert len(told) == 2
    assert all(line.startswith("kill -9 of rank: ") for line in told)


@pytest.mark.parametrize(
    ("hurt", "sentence"),
    [
        (start(rank(0), rank(1), codes=(0, 1)), "exit codes are [0, 1], not [0, 0]"),
        (start(rank(0)), "1 ranks reported, not 2"),
        (start(rank(0), rank(1), compiled=("k", "l", "k")), "more than once: ['k']"),
        (start(rank(0), rank(1, equal=False)), "outputs differ"),
        (start(rank(0), rank(1, state="QUEUED")), "rank 1 is QUEUED"),
    ],
)
def test_each_hurt_that_spread_is_told(hurt: Start, sentence: str) -> None:
    told = Survival("daemon", 7, hurt, FOLLOWING, kept=2).untrue()
    assert len(told) == 1
    assert sentence in told[0]


def test_compiling_what_was_there_is_told() -> None:
    told = Survival("daemon", 7, FOLLOWING, FOLLOWING, kept=3).untrue()
    assert told == ["kill -9 of daemon: 0 kernels were missing, the daemon compiled 1 and op_compiler 1"]


def test_the_following_start_must_install_everything() -> None:
    following = replace(FOLLOWING, reports=(rank(0), rank(1, state="DEGRADED")))
    told = Survival("daemon", 7, FOLLOWING, following, kept=2).untrue()
    assert len(told) == 1
    assert "not INSTALLED" in told[0]
