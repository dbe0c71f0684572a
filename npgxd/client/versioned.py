"""Which code the versions of Python, torch and torch_npu account for; all other code is accounted for by what it says.

Promise: only what is Python's own or within torch's own directories; a package that is installed beside either (also where
site-packages lies within Python's library, as outside a virtual environment) is not.  Nothing here imports torch.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path
from typing import Final

_STDLIB: Final = sysconfig.get_paths()["stdlib"] + os.sep
_INSTALLED: Final = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")
_PACKAGES: Final = ("torch", "torch_npu")


def is_versioned(file: object) -> bool:
    """Whether the code of that file, a ``co_filename`` or ``__file__``, changes only with a version. What has no file does."""
    if not isinstance(file, str) or file.startswith("<frozen"):
        return True
    if file.startswith(_STDLIB) and not any(part in file for part in _INSTALLED):
        return True
    homes = (getattr(sys.modules.get(name), "__file__", None) for name in _PACKAGES)
    return any(home and file.startswith(str(Path(home).parent) + os.sep) for home in homes)
