"""Models of many kinds, in two processes: the first compiles each, the second loads each without Dynamo, and both equal eager."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import zoo


@pytest.mark.slow
def test_every_model_is_loaded_by_the_second_start_without_dynamo_equals_eager_and_has_equal_bytes_everywhere(start, tmp_path):
    cold = start("zoo.py", tmp_path / "cache")
    assert set(cold["cases"]) == set(zoo.CASES)
    assert {name: case for name, case in cold["cases"].items() if not case["equal"] or case["origin"] != "compiled"} == {}
    warm = start("zoo.py", tmp_path / "cache")
    assert {name: case for name, case in warm["cases"].items() if not case["equal"] or case["origin"] != "file"} == {}
    assert not any(case["usual"] for told in (cold, warm) for case in told["cases"].values())
    assert warm["dynamo"] is False

    chosen = ("decoder", "outputs", "closure")  # equal graphs give equal bytes, whatever the hash seed and the rank
    start("zoo.py", tmp_path / "other", *chosen, PYTHONHASHSEED="2", LOCAL_RANK="3", OMP_NUM_THREADS="2")
    others = [file.relative_to(tmp_path / "other") for file in (tmp_path / "other").rglob("*") if file.is_file()]
    assert len(others) == len(chosen)
    for file in others:
        assert (tmp_path / "other" / file).read_bytes() in {
            one.read_bytes() for one in (tmp_path / "cache" / file).parent.iterdir()
        }
