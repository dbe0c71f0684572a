"""Every documented option of ``torch.compile(backend="npugraph_ex", options={...})``: its type, range, default and need.

Promise: ``read_options`` accepts exactly the documented names and values; anything else is an ``OptionError`` that says what is
allowed and what was probably meant.  Nothing is applied here; ``unmet`` tells which of the user's wishes a device cannot fulfil.

Names, ranges and defaults are those of the public documentation of torch_npu's npugraph_ex (class CompilerConfig);
``static_kernel_wait`` is ours.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final

from npgxd.client.waiting import ALLOWED, Wait
from npgxd.errors import ConfigError, ProtocolError
from npgxd.wire.messages import CompileOptions

FxPass = Callable[..., object]
"""A user's pass over the graph: called with (graph module, example inputs, options); changes the module in place."""
Check = Callable[[str, object], Any]

_INT64_MAX: Final = 2**63 - 1


class OptionError(ConfigError):
    """An option's name or value is not one of those that npugraph_ex documents."""

    code = "OPTION"


# ---- the kinds of values ---------------------------------------------------------------------------------------------


def _flag(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _refused(name, value, "True or False")
    return value


def _integer(low: int, high: int) -> Check:
    def check(name: str, value: object) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise _refused(name, value, f"an integer from {low} to {high}")
        return value

    return check


def _word(*words: str) -> Check:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in words:
            near = difflib.get_close_matches(str(value), words, n=1)
            raise _refused(name, value, "one of " + ", ".join(repr(word) for word in words), near[0] if near else "")
        return value

    return check


def _integers(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or any(isinstance(i, bool) or not isinstance(i, int) for i in value):
        raise _refused(name, value, "None or a list of integers")
    return tuple(value)


def _settings(name: str, value: object) -> dict[str, object] | None:
    if value is None:
        return None
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise _refused(name, value, "None or a dict with text keys")
    try:
        CompileOptions.parse({"super_kernel": {key: setting(item) for key, item in value.items()}})
    except ProtocolError as error:
        raise _refused(name, value, f"a dict that op_compiler's --super_kernel_options can carry ({error.message})") from None
    return dict(value)


def setting(value: object) -> str:
    """One of the values in ``super_kernel_optimize_options`` as op_compiler reads it."""
    if isinstance(value, (list, tuple)):
        return ",".join(setting(item) for item in value)
    return str(value).lower() if isinstance(value, bool) else str(value)


def _callable(name: str, value: object) -> FxPass | None:
    if value is not None and not callable(value):
        raise _refused(name, value, "None or a callable that takes (graph module, example inputs, options)")
    return value


def _directory(name: str, value: object) -> str:
    if not isinstance(value, (str, os.PathLike)) or not Path(value).is_dir() or not os.access(value, os.R_OK | os.W_OK | os.X_OK):
        raise _refused(name, value, "an existing directory that this process may read and write")
    return os.fspath(value)


def _wait(name: str, value: object) -> str | float:
    try:
        Wait.parse(value)
    except ConfigError:
        raise _refused(name, value, ALLOWED) from None
    return value if isinstance(value, (str, float, int)) else ""


def _pool(name: str, value: object) -> tuple[int, int] | None:
    if value is not None and not (isinstance(value, tuple) and len(value) == 2 and all(isinstance(i, int) for i in value)):  # noqa: PLR2004 -- a pair
        raise _refused(name, value, "None or what torch.npu.graph_pool_handle() returns")
    return value


# ---- the options -----------------------------------------------------------------------------------------------------

CAPTURE: Final = "capture"
DEADLOCK: Final = "deadlock"
INPLACE: Final = "inplace"
FUSION: Final = "fusion"
CAT: Final = "cat"
SUPER_KERNEL: Final = "super_kernel"

WHY_UNMET: Final[Mapping[str, str]] = {
    CAPTURE: "graphs are not captured there",
    DEADLOCK: "captured streams are not checked there",
    INPLACE: "operators are not made in-place there",
    FUSION: "there are no fused operators there",
    CAT: "concatenations are not rewritten there",
    SUPER_KERNEL: "graphs are not fused into super kernels there",
}
"""Ends the sentence "option x has no effect on this device: ..." for each capability that an engine may lack."""


@dataclass(frozen=True, slots=True)
class Spec:
    """One option: how it is checked, its default, what it needs of a device or another option, and the value asking nothing."""

    check: Check
    default: object
    needs: str = ""
    off: object = False
    only_with: str = ""
    about: str = "True or False"


SPECS: Final[Mapping[str, Spec]] = {
    "static_kernel_compile": Spec(_flag, default=False),
    "disable_static_kernel_compile_cache": Spec(_flag, default=False, only_with="static_kernel_compile"),
    "static_kernel_wait": Spec(_wait, default="block", off="block", only_with="static_kernel_compile", about=ALLOWED),
    "force_eager": Spec(_flag, default=False),
    "force_recapture": Spec(_flag, default=False, needs=CAPTURE),
    "frozen_parameter": Spec(_flag, default=False, needs=CAPTURE),
    "clone_input": Spec(_flag, default=True, needs=CAPTURE, off=None),
    "clone_output": Spec(_flag, default=False, needs=CAPTURE),
    "capture_limit": Spec(_integer(1, _INT64_MAX), default=64, needs=CAPTURE, off=64, about=f"an integer from 1 to {_INT64_MAX}"),
    "use_graph_pool": Spec(_pool, default=None, needs=CAPTURE, off=None, about="None or a graph pool handle"),
    "reuse_graph_pool_in_same_fx": Spec(_flag, default=True, needs=CAPTURE, off=None),
    "capture_error_mode": Spec(
        _word("global", "thread_local", "relaxed"),
        default="global",
        needs=CAPTURE,
        off=None,
        about="'global', 'thread_local' or 'relaxed'",
    ),
    "deadlock_check": Spec(_flag, default=False, needs=DEADLOCK),
    "inplace_pass": Spec(_flag, default=True, needs=INPLACE),
    "input_inplace_pass": Spec(_flag, default=True, needs=INPLACE),
    "pattern_fusion_pass": Spec(_flag, default=True, needs=FUSION),
    "remove_noop_ops": Spec(_flag, default=True),
    "remove_cat_ops": Spec(_flag, default=True, needs=CAT),
    "post_grad_custom_pre_pass": Spec(_callable, default=None, about="None or a callable"),
    "post_grad_custom_post_pass": Spec(_callable, default=None, about="None or a callable"),
    "super_kernel_optimize": Spec(_flag, default=False, needs=SUPER_KERNEL),
    "super_kernel_optimize_options": Spec(
        _settings, default=None, off=None, only_with="super_kernel_optimize", about="None or a dict"
    ),
    "super_kernel_debug_options": Spec(
        _settings, default=None, off=None, only_with="super_kernel_optimize", about="None or a dict"
    ),
    "dump_tensor_data": Spec(_flag, default=False),
    "data_dump_stage": Spec(
        _word("original", "optimized"), default="optimized", only_with="dump_tensor_data", about="'original' or 'optimized'"
    ),
    "data_dump_dir": Spec(_directory, default="./", only_with="dump_tensor_data", about="an existing directory"),
    "mode": Spec(_word("npugraph_ex"), default="npugraph_ex", about="'npugraph_ex'"),
    "_vllm_aclnn_static_kernel_sym_index": Spec(_integer(0, _INT64_MAX), default=0, off=0, only_with="static_kernel_compile"),
    "_vllm_aclnn_static_kernel_sym_range": Spec(_integers, default=None, off=None, only_with="static_kernel_compile"),
}


@dataclass(frozen=True, slots=True)
class Options:
    """The checked options of one ``torch.compile`` call; ``given`` holds the names that the user wrote."""

    static_kernel_compile: bool = False
    disable_static_kernel_compile_cache: bool = False
    static_kernel_wait: str | float = "block"
    force_eager: bool = False
    force_recapture: bool = False
    frozen_parameter: bool = False
    clone_input: bool = True
    clone_output: bool = False
    capture_limit: int = 64
    use_graph_pool: tuple[int, int] | None = None
    reuse_graph_pool_in_same_fx: bool = True
    capture_error_mode: str = "global"
    deadlock_check: bool = False
    inplace_pass: bool = True
    input_inplace_pass: bool = True
    pattern_fusion_pass: bool = True
    remove_noop_ops: bool = True
    remove_cat_ops: bool = True
    post_grad_custom_pre_pass: FxPass | None = None
    post_grad_custom_post_pass: FxPass | None = None
    super_kernel_optimize: bool = False
    super_kernel_optimize_options: dict[str, object] | None = None
    super_kernel_debug_options: dict[str, object] | None = None
    dump_tensor_data: bool = False
    data_dump_stage: str = "optimized"
    data_dump_dir: str = "./"
    mode: str = "npugraph_ex"
    _vllm_aclnn_static_kernel_sym_index: int = 0
    _vllm_aclnn_static_kernel_sym_range: tuple[int, ...] | None = None
    given: frozenset[str] = frozenset()

    @property
    def wait(self) -> Wait:
        """``static_kernel_wait``, read."""
        return Wait.parse(self.static_kernel_wait)

    @property
    def symbol_index(self) -> int:
        """Which symbolic size ``symbol_range`` is about: 0 is the graph's first."""
        return self._vllm_aclnn_static_kernel_sym_index

    @property
    def symbol_range(self) -> tuple[int, ...] | None:
        """The values of that size for which static kernels are wanted; None: all."""
        return self._vllm_aclnn_static_kernel_sym_range


def read_options(given: Mapping[str, object] | None) -> Options:
    """Check what the user gave. OptionError names the option, what is allowed, and what was probably meant."""
    if given is None:
        return Options()
    if not isinstance(given, Mapping):
        raise OptionError(f"options must be a dict, not {type(given).__name__}", hint=_all_allowed())
    unknown = [str(name) for name in given if name not in SPECS]
    if unknown:
        raise _unknown(unknown[0])
    checked = {name: SPECS[name].check(name, value) for name, value in given.items()}
    options = Options(**checked, given=frozenset(checked))
    _check_together(options)
    return options


def unmet(options: Options, device: str, capabilities: Collection[str]) -> list[str]:
    """One sentence for each option that the user gave and that does nothing on ``device``, or not without another option."""
    told = ((name, _why_unmet(name, options, capabilities)) for name in sorted(options.given))
    return [f"option {name}={getattr(options, name)!r} has no effect on {device}: {why}" for name, why in told if why]


def _why_unmet(name: str, options: Options, capabilities: Collection[str]) -> str:
    spec, value = SPECS[name], getattr(options, name)
    if value is None or (spec.off is not None and value == spec.off):
        return ""
    if spec.only_with and not getattr(options, spec.only_with):
        return f"{spec.only_with} is not on"
    if name == "capture_limit" and options.static_kernel_compile:
        return ""  # it also bounds the shapes of one graph that get static kernels
    if spec.needs and spec.needs not in capabilities:
        return WHY_UNMET[spec.needs]
    return ""


def _check_together(options: Options) -> None:
    if options.super_kernel_optimize and not options.static_kernel_compile:
        raise OptionError(
            "option super_kernel_optimize=True needs static_kernel_compile=True",
            hint='Use options={"static_kernel_compile": True, "super_kernel_optimize": True, ...}',
            option="super_kernel_optimize",
        )


def _refused(name: str, value: object, allowed: str, near: str = "") -> OptionError:
    hint = f"Did you mean {near!r}?" if near else ""
    return OptionError(f"option {name}={value!r} is not valid: it must be {allowed}", hint=hint, option=name, allowed=allowed)


def _unknown(name: str) -> OptionError:
    near = difflib.get_close_matches(name, SPECS, n=1)
    meant = f"Did you mean {near[0]!r}? " if near else ""
    return OptionError(f"option {name!r} does not exist", hint=meant + _all_allowed(), option=name)


def _all_allowed() -> str:
    return "Allowed are: " + "; ".join(f"{name} ({spec.about})" for name, spec in SPECS.items() if not name.startswith("_"))


def _assert_complete() -> None:
    names = {item.name for item in fields(Options)} - {"given"}
    if names != set(SPECS):
        raise AssertionError(names ^ set(SPECS))


_assert_complete()
