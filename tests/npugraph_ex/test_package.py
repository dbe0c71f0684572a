from __future__ import annotations

import subprocess
import sys

import npgxd
import npugraph_ex
from npugraph_ex import ranks


def python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100, check=True).stdout.strip()


def test_importing_the_package_imports_no_torch_and_leaves_the_process_alone():
    code = """
import signal, sys, threading
before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
import atexit
count = atexit._ncallbacks()
import npugraph_ex
print(npugraph_ex.static_kernel_report(), "torch" in sys.modules, atexit._ncallbacks() - count, threading.active_count(),
      before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)])
"""
    assert python(code) == "() False 0 1 True"


def test_the_backend_is_known_to_dynamo_by_name():
    code = """
import gc
gc.disable()  # or a third of the time goes into a search of what is imported
import torch._dynamo as d
print('npugraph_ex' in d.list_backends(()))
gc.freeze()
"""
    assert python(code) == "True"


def test_the_version_is_the_projects():
    assert npugraph_ex.__version__ == npgxd.__version__


def test_ranks_are_labels_that_may_be_missing_or_damaged():
    assert ranks.local_rank({}) == 0
    assert ranks.local_rank({"LOCAL_RANK": "3"}) == 3
    assert ranks.local_rank({"LOCAL_RANK": "x"}) == 0
    assert ranks.local_world_size({}) is None
    assert ranks.local_world_size({"LOCAL_WORLD_SIZE": "0"}) is None
    assert ranks.local_world_size({"LOCAL_WORLD_SIZE": " 8 "}) == 8
    assert ranks.global_rank({}) == (0, 1)
    assert ranks.global_rank({"RANK": "1", "WORLD_SIZE": "2"}) == (1, 2)
