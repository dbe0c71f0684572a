"""The training example in one process, without a daemon."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import torch

import train

if TYPE_CHECKING:
    from pathlib import Path


def test_the_loss_falls_and_equals_eagers(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    report = tmp_path / "rank{rank}.json"
    assert train.main(["--steps", "12", "--backend", "aot_eager", "--report", str(report)]) == 0
    torch.set_num_threads(before)
    facts = json.loads((tmp_path / "rank0.json").read_bytes())
    losses = [ours for ours, _eager in facts["losses"]]
    assert facts["equal"]
    assert len(losses) == 12
    assert sum(losses[-3:]) < sum(losses[:3])


def test_equal_seeds_give_equal_data_and_ranks_have_their_own() -> None:
    options = train.parser().parse_args([])
    one, same, other = train.Training(options, 0), train.Training(options, 0), train.Training(options, 1)
    text = one.next_text()
    assert torch.equal(text, same.next_text())
    assert not torch.equal(text, other.next_text())
    assert text.shape == (options.batch, 3)
