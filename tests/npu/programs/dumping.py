"""The operator dump, switched as torch_npu switches it: ``dumping REPORT DIRECTORY``."""

import contextlib
import ctypes
import os
from pathlib import Path

import torch_npu
import work

from reporting import arguments, report

directory = Path(arguments()[0])
work.step()  # the first operators of a process are not of interest
torch_npu._C._aclop_start_dump(str(directory))
second_start = ctypes.CDLL("libascendcl.so").aclopStartDumpArgs(1, str(directory).encode())
work.step()
before = sorted(path.name for path in directory.iterdir()) if directory.exists() else []
torch_npu._C._aclop_stop_dump()
second_stop = ctypes.CDLL("libascendcl.so").aclopStopDumpArgs(1)
with contextlib.suppress(FileNotFoundError):
    modes = {str(path.relative_to(directory)): oct(path.stat().st_mode & 0o777) for path in directory.rglob("*")}
report(pid=os.getpid(), before=before, second_start=second_start, second_stop=second_stop, modes=modes)
