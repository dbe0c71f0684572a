"""What is replaced in the bundled modules, and what is put back around their execution.

Found in torch_npu 2.13: ``acl_graph`` takes ``compile_static_kernel`` from the module ``static_kernel`` when it is itself imported,
which is later; the package installs SIGTERM and SIGINT handlers and an exit hook that uninstall packages and keep a process alive.
"""

from __future__ import annotations

import atexit
import functools
import logging
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from npgxd.bridge import caching, uninstalling
from npgxd.bundled import bundled_package

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import ModuleType

    Execute = Callable[[ModuleType], None]

log = logging.getLogger("npgxd")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def _around_static_kernel(module: ModuleType, execute: Execute) -> None:
    execute(module)
    try:
        replace_functions(module)
    except Exception as error:  # noqa: BLE001 -- the bundled flow stays; its user hears why
        log.warning("npgxd: static kernels of %s do not go through the daemon: %r", module.__name__, error)
        uninstall = getattr(module, "uninstall_static_kernel", None)
        if callable(uninstall):
            atexit.register(uninstall)  # what the package's own exit hook would have called


def _around_package(module: ModuleType, execute: Execute) -> None:
    with _signal_handlers_kept():
        execute(module)
    finalize = getattr(module, "_finalize", None)
    if callable(finalize):
        atexit.unregister(finalize)


def _around_torch_npu(module: ModuleType, execute: Execute) -> None:
    """One without an npugraph_ex of its own gets ours at the documented name, ``torch.npu.npugraph_ex``, whichever is imported first."""
    execute(module)
    try:
        uninstalling.spare_neighbours()
        if bundled_package() is None:
            import npugraph_ex  # noqa: PLC0415 -- imports no torch, and nothing of it is wanted elsewhere

            npugraph_ex.join_torch_npu()
    except Exception as error:  # noqa: BLE001 -- torch_npu is loaded, and works without us
        log.warning("npgxd: the bridge is not whole in this process: %r", error)


def _around_compile_cache(module: ModuleType, execute: Execute) -> None:
    execute(module)
    try:
        caching.replace_cache(module)
    except Exception as error:  # noqa: BLE001 -- the bundled flow stays; its user hears why
        log.warning("npgxd: the compile cache of %s does not go through the daemon: %r", module.__name__, error)


AROUND: Final[dict[str, Callable[[ModuleType, Execute], None]]] = {
    "static_kernel": _around_static_kernel,
    "compile_cache": _around_compile_cache,
    "package": _around_package,
    "torch_npu": _around_torch_npu,
}
"""How a followed module is executed; keys are the values of ``hook.TARGETS``."""


def replace_functions(module: Any) -> None:
    """Let ``module.compile_static_kernel`` go through the daemon, and ``uninstall_static_kernel`` remove what is the process's own alone.

    Replacing twice changes nothing. AttributeError where the module has not these functions: another torch_npu than is known here.
    """
    compile_, uninstall = module.compile_static_kernel, module.uninstall_static_kernel
    if getattr(compile_, "npgxd_bridge", None):
        return
    from npgxd.bridge.rounds import Rounds  # noqa: PLC0415 -- loads the client, which only a process with static kernels needs

    rounds = Rounds(module, bundled=compile_, bundled_uninstall=uninstall)

    @functools.wraps(compile_)
    def compile_static_kernel(*args: Any, **kwargs: Any) -> None:
        rounds.compile(*args, **kwargs)

    @functools.wraps(uninstall)
    def uninstall_static_kernel() -> None:
        rounds.uninstall()

    compile_static_kernel.npgxd_bridge = uninstall_static_kernel.npgxd_bridge = True  # type: ignore[attr-defined]
    module.compile_static_kernel, module.uninstall_static_kernel = compile_static_kernel, uninstall_static_kernel


@contextmanager
def _signal_handlers_kept() -> Iterator[None]:
    """What handles SIGTERM and SIGINT is afterwards what it was before; outside the main thread nobody can change it anyway."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None and signal.getsignal(number) is not handler:
                signal.signal(number, handler)
