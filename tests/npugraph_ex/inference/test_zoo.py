"""Models of many kinds, in two processes: the first compiles each, the second loads each without Dynamo, and both equal eager."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import zoo


def test_every_model_is_loaded_by_the_second_start_without_dynamo_and_equals_eager(start, tmp_path):
    cold = start("zoo.py", tmp_path / "cache")
    assert set(cold["cases"]) == set(zoo.CASES)
    assert {name: case for name, case in cold["cases"].items() if not case["equal"] or case["origin"] != "compiled"} == {}
    warm = start("zoo.py", tmp_path / "cache")
    assert {name: case for name, case in warm["cases"].items() if not case["equal"] or case["origin"] != "file"} == {}
    assert not any(case["usual"] for told in (cold, warm) for case in told["cases"].values())
    assert warm["dynamo"] is False


def test_equal_graphs_give_equal_bytes_in_every_process(start, tmp_path):
    chosen = ("decoder", "outputs", "closure")
    start("zoo.py", tmp_path / "one", *chosen, PYTHONHASHSEED="1")
    start("zoo.py", tmp_path / "two", *chosen, PYTHONHASHSEED="2", LOCAL_RANK="3", OMP_NUM_THREADS="2")
    one, two = (
        {file.relative_to(tmp_path / side): file.read_bytes() for file in (tmp_path / side).rglob("*") if file.is_file()}
        for side in ("one", "two")
    )
    assert len(one) == len(chosen)
    assert one == two
