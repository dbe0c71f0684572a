"""The configuration of the daemon, as it reads it and as ``npgxctl config`` shows it.

Promise: a value is what its key allows, or the error names the file or the variable that sets it, and what is allowed; nothing
that is written down is ignored; and every value can say where it is written.
"""

from npgxd.config._config import SYSTEM_STATE, Config, load
from npgxd.config._layers import SYSTEM_CONFIG
from npgxd.config._sections import (
    SECTIONS,
    CacheSection,
    CompileSection,
    DaemonSection,
    GroupSection,
    LibrarySection,
    LimitsSection,
    MetricsSection,
    StoreSection,
    ToolchainSection,
)
from npgxd.config._settings import Change, Settings, needs_restart
from npgxd.config._values import address_of, from_text

__all__ = [
    "SECTIONS",
    "SYSTEM_CONFIG",
    "SYSTEM_STATE",
    "CacheSection",
    "Change",
    "CompileSection",
    "Config",
    "DaemonSection",
    "GroupSection",
    "LibrarySection",
    "LimitsSection",
    "MetricsSection",
    "Settings",
    "StoreSection",
    "ToolchainSection",
    "address_of",
    "from_text",
    "load",
    "needs_restart",
]
