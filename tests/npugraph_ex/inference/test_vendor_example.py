"""The vendor's example, in one process and in several ranks: the second start traces nothing."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

RANKS = 4 if os.environ.get("NPGXD_CRASH_LONG") else 2


def test_the_second_start_of_the_vendors_example_loads_prompt_and_decode_without_dynamo(start, tmp_path):
    cold = start("vendor_example.py", tmp_path)
    warm = start("vendor_example.py", tmp_path)
    assert (cold["origins"], warm["origins"]) == (["compiled"] * 2, ["file"] * 2)
    assert (cold["dynamo"], warm["dynamo"]) == (True, False)
    assert cold["equal"]
    assert warm["equal"]
    assert cold["result"] == warm["result"]
    assert cold["paths"] == warm["paths"]


def test_ranks_have_each_their_documented_path_equal_bytes_and_no_trace_at_the_second_start(start, tmp_path):
    def job(name):
        with ThreadPoolExecutor(RANKS) as pool:
            return list(
                pool.map(lambda rank: start("vendor_example.py", tmp_path / "cache", tmp_path / name, rank, RANKS), range(RANKS))
            )

    cold, warm = job("first"), job("second")
    assert all(rank["origins"] == ["compiled"] * 2 and rank["equal"] for rank in cold)
    assert all(rank["origins"] == ["file"] * 2 and rank["equal"] and not rank["dynamo"] for rank in warm)
    assert len({str(rank["result"]) for rank in cold + warm}) == 1
    for number, rank in enumerate(warm):
        for path, function in zip(map(Path, rank["paths"]), ("prompt", "decode"), strict=True):
            assert path.parts[-3:] == (f"world{RANKS}global_rank{number}", function, "compiled_module")
    assert len({Path(rank["paths"][0]).read_bytes() for rank in warm}) == 1
