"""Captured graphs on a GPU. The same cases run on a simulated NPU in tests/npu/test_capture.py."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))

from capture_cases import CASES

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="NOT TESTED HERE: captured graphs on CUDA need a GPU")


@pytest.mark.parametrize("name", CASES)
def test_a_captured_graph_keeps_its_promise_on_cuda(name):
    CASES[name]("cuda")
    torch.cuda.synchronize()
