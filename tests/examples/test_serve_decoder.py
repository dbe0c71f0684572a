"""The serving example in one process, without a daemon."""

from __future__ import annotations

import argparse
import json
import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch

import serve_decoder

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_it_compares_every_batch_size_with_eager_and_reports(tmp_path: Path) -> None:
    report = tmp_path / "rank{rank}.json"
    arguments = ["--batch-sizes", "1,3", "--steps", "2", "--layers", "1", "--backend", "eager", "--report", str(report)]
    assert serve_decoder.main(arguments) == 0
    facts = json.loads((tmp_path / "rank0.json").read_bytes())
    assert facts["pid"] == os.getpid()
    assert [(batch["batch"], batch["equal"], batch["graphs"]) for batch in facts["batches"]] == [(1, True, []), (3, True, [])]


def test_a_wrong_output_is_told_by_the_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = serve_decoder.Server.compiled_step

    def wrong(server: serve_decoder.Server) -> serve_decoder.Step:
        step = right(server)
        return lambda inputs, positions, cache: step(inputs, positions, cache) + 1e-3

    monkeypatch.setattr(serve_decoder.Server, "compiled_step", wrong)
    assert serve_decoder.main(["--batch-sizes", "1", "--steps", "1", "--layers", "1", "--backend", "eager"]) == 1
    assert "DIFFERENT from eager, largest difference 0.001" in capsys.readouterr().out


def test_a_wrong_cache_is_seen_although_outputs_are_right() -> None:
    served = serve_decoder.Served(1)
    served.compare(torch.zeros(2), torch.zeros(2))
    assert served.equal
    served.compare(torch.tensor([0.0, 1e-3]), torch.zeros(2))
    assert not served.equal


def test_local_world_size_is_unset_before_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    arguments = ["--batch-sizes", "1", "--steps", "1", "--layers", "1", "--backend", "eager"]
    serve_decoder.main(arguments)
    assert os.environ["LOCAL_WORLD_SIZE"] == "1"
    serve_decoder.main([*arguments, "--no-local-world-size"])
    assert "LOCAL_WORLD_SIZE" not in os.environ


@pytest.mark.parametrize(("layers", "ranks"), [(4, 4), (5, 2), (7, 3), (3, 1)])
def test_pipeline_stages_share_out_every_layer_once(layers: int, ranks: int) -> None:
    stages = [serve_decoder.stage(layers, rank, ranks) for rank in range(ranks)]
    assert stages[0][0] == 0
    assert stages[-1][1] == layers
    assert all(before[1] == after[0] for before, after in pairwise(stages))
    assert all(last > first for first, last in stages)


@pytest.mark.parametrize("sizes", ["0", "1,-2", "1,,2", "x"])
def test_batch_sizes_that_are_none_are_refused(sizes: str) -> None:
    with pytest.raises((argparse.ArgumentTypeError, ValueError)):
        serve_decoder.batch_sizes(sizes)
