"""The demo's checks: silent about a start that is as it must be, and a sentence for each thing that is not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from tools.cann_sim import Run
from tools.demo.checks import outputs_untrue, untrue
from tools.demo.node import Counters
from tools.demo.reports import Graph, RankReport
from tools.demo.serving import Start
from tools.demo.table import COLUMNS, describe, row

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = {"a" * 64: b"{}", "b" * 64: b"{}"}
NOTHING_KNOWN: frozenset[str] = frozenset()


def graph(**facts: object) -> Graph:
    usual = {
        "name": "0",
        "batch": 1,
        "state": "INSTALLED",
        "reason": "compiled",
        "detail": "",
        "records": 3,
        "unique": 2,
        "hits": 0,
        "compiled": 2,
        "view": "/store/views/x",
        "outputs": None,
        "submitted": RECORDS,
    }
    return Graph(**{**usual, **facts})


def report(rank: int = 0, **facts: object) -> RankReport:
    usual = {
        "rank": rank,
        "local_rank": rank,
        "pid": 100 + rank,
        "local_world_size": "2",
        "equal": True,
        "max_difference": 0.0,
        "graphs": (graph(),),
        "reader_problems": (),
        "reader_selected": 2,
    }
    return RankReport(**{**usual, **facts})


def run(*compiled: str) -> Run:
    return Run(pid=1, argv=(), cwd="/", ops=(), started=0.0, status=0, compiled=compiled, seconds=1.0)


def start(**facts: object) -> Start:
    usual = {
        "name": "first",
        "nproc": 2,
        "batch_sizes": (1,),
        "exit_codes": (0,),
        "reports": (report(0), report(1)),
        "wall_s": 12.34,
        "before": Counters(0, 0, 0, 0),
        "after": Counters(0, 2, 0, 2),
        "runs": (run("k1", "k2"),),
    }
    return Start(**{**usual, **facts})


def test_a_start_as_it_must_be_gives_no_sentence() -> None:
    assert untrue(start(), NOTHING_KNOWN) == []


def test_a_second_start_that_compiles_nothing_is_true_only_if_all_was_known() -> None:
    served = (graph(reason="hit", hits=2, compiled=0),)
    second = start(reports=(report(0, graphs=served), report(1, graphs=served)), after=Counters(4, 0, 0, 2), runs=())
    assert untrue(second, frozenset(RECORDS)) == []
    assert untrue(second, frozenset(["a" * 64])) == [
        "first: the daemon compiled 0 kernels, 1 records were new",
        "first: op_compiler's own log has 0 kernels, 1 records were new",
        "first: 0 runs of op_compiler for 1 new records",
    ]


@pytest.mark.parametrize(
    ("facts", "sentence"),
    [
        ({"reports": (report(0),)}, "1 of 2 ranks reported"),
        ({"reports": (report(0), report(1, graphs=()))}, "no graph asked"),
        ({"reports": (report(0), report(1, graphs=(graph(state="DEGRADED", reason="deadline"),)))}, "DEGRADED(deadline)"),
        ({"reports": (report(0), report(1, graphs=(graph(compiled=1),)))}, "do not make 2 unique"),
        ({"reports": (report(0), report(1, equal=False, max_difference=0.5))}, "differ from eager's by up to 0.5"),
        ({"reports": (report(0), report(1, reader_problems=("torn: x",)))}, "the reader says: torn: x"),
        ({"reports": (report(0), report(1, reader_selected=3))}, "select 3 kernels for 2"),
        ({"after": Counters(0, 3, 0, 3)}, "the daemon compiled 3 kernels, 2 records"),
        ({"runs": (run("k1"),)}, "log has 1 kernels"),
        ({"runs": (run("k1"), run("k2"))}, "2 runs of op_compiler for 1 graphs"),
        ({"runs": (run("k1", "k2"), run("k2"))}, "compiled more than once: {'k2': 2}"),
    ],
)
def test_each_untruth_is_told(facts: dict[str, object], sentence: str) -> None:
    told = untrue(start(**facts), NOTHING_KNOWN)
    assert any(sentence in line and line.startswith("first: ") for line in told), told


def tree(path: Path, *, gathered: bool = True, packages: int = 1) -> str:
    directory = path / "static_kernel_compile_outputs" / "ts1_pid1_outputs"
    directory.mkdir(parents=True)
    if gathered:
        (directory / "1_opcompile_gathered").mkdir()
        (directory / "1_opcompile_gathered" / "MatMulV2_0.json").write_text("{}")
    for number in range(packages):
        (directory / f"static_kernel_{number}.run").touch()
    return str(directory)


def test_the_documented_outputs_are_on_local_rank_0_alone(tmp_path: Path) -> None:
    mine, theirs = tree(tmp_path / "0"), tree(tmp_path / "1", gathered=False, packages=0)
    reports = (report(0, graphs=(graph(outputs=mine),)), report(1, graphs=(graph(outputs=theirs),)))
    assert outputs_untrue(start(reports=reports)) == []
    told = outputs_untrue(start(reports=(replace(reports[0], local_rank=1), replace(reports[1], local_rank=0))))
    assert len(told) == 3
    assert "belongs to local rank 0" in told[0]
    assert "no _opcompile_gathered" in told[1]
    assert "0 run packages" in told[2]


def test_a_second_package_is_right_for_a_later_graph_only(tmp_path: Path) -> None:
    one, two = tree(tmp_path / "0"), tree(tmp_path / "1", packages=2)
    assert outputs_untrue(start(reports=(report(0, graphs=(graph(outputs=one), graph(outputs=two))),))) == []
    assert len(outputs_untrue(start(reports=(report(0, graphs=(graph(outputs=two), graph(outputs=one))),)))) == 1


def test_missing_outputs_are_told(tmp_path: Path) -> None:
    assert "has no outputs directory" in outputs_untrue(start(reports=(report(graphs=(graph(outputs=str(tmp_path / "x")),)),)))[0]


def test_a_row_says_what_was_seen() -> None:
    cells = dict(zip(COLUMNS, row(start(reports=(report(0), report(1, equal=False, max_difference=0.5)))), strict=True))
    assert cells["records"] == "6 from 2 ranks"
    assert cells["unique"] == "2"
    assert cells["compiled"] == "2"
    assert cells["INSTALLED"] == "2 of 2"
    assert cells["as eager"] == "NO, ±0.5"


def test_progress_says_who_does_what() -> None:
    status = {
        "jobs": [{"ranks": [{"state": "COMPILING"}, {"state": "QUEUED"}, {"state": "COMPILING"}]}],
        "workers": {"jobs": [{"done": 3, "keys": 9}]},
    }
    assert describe(status) == "3 ranks COMPILING/QUEUED, compiling 3 of 9"
    assert describe({"jobs": [], "workers": {"jobs": []}}) == "0 ranks starting"
    assert describe(None) == "the daemon does not answer"
