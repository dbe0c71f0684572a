from __future__ import annotations

import pytest
import torch

import npugraph_ex


def model(x):
    return (x + 1)[:] * 2


@pytest.mark.parametrize(("stage", "operators"), [("optimized", {"add", "mul"}), ("original", {"add", "slice_1", "mul"})])
def test_inputs_and_every_operators_output_are_saved(tmp_path, stage, operators):
    options = {"dump_tensor_data": True, "data_dump_stage": stage, "data_dump_dir": str(tmp_path)}
    compiled = torch.compile(model, backend="npugraph_ex", options=options, fullgraph=True)
    x = torch.randn(3)
    for _ in range(2):
        assert torch.equal(compiled(x), model(x))
    folder = tmp_path / "worldsize1_global_rank0"
    names = {path.name.split("_device_")[0] for path in folder.iterdir()}
    assert names == operators | {"arg0_1"}
    assert torch.equal(torch.load(folder / "mul_device_0_1.pt"), model(x))
    assert torch.equal(torch.load(folder / "arg0_1_device_0_0.pt"), x)


def test_ranks_have_folders_of_their_own_and_recording_dumps_too(tmp_path, monkeypatch, client):
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    options = {"dump_tensor_data": True, "data_dump_dir": str(tmp_path), "static_kernel_compile": True}
    x = torch.randn(3)
    assert torch.equal(torch.compile(model, backend="npugraph_ex", options=options, fullgraph=True)(x), model(x))
    assert (tmp_path / "worldsize4_global_rank3" / "mul_device_0_0.pt").exists()
    assert len(npugraph_ex.static_kernel_report()[0].submitted) == 2
