from __future__ import annotations

import logging

import pytest
import torch

from npgxd.errors import ConfigError
from npugraph_ex.options import SPECS, OptionError, Options, read_options, unmet

GOOD = {
    "static_kernel_compile": [True, False],
    "disable_static_kernel_compile_cache": [True, False],
    "static_kernel_wait": ["block", "background", 0, 30, 2.5, "12"],
    "force_eager": [True, False],
    "force_recapture": [True],
    "frozen_parameter": [True, False],
    "clone_input": [True, False],
    "clone_output": [True, False],
    "capture_limit": [1, 64, 2**63 - 1],
    "use_graph_pool": [None, (1, 2)],
    "reuse_graph_pool_in_same_fx": [False],
    "capture_error_mode": ["global", "thread_local", "relaxed"],
    "deadlock_check": [True],
    "inplace_pass": [False],
    "input_inplace_pass": [False],
    "pattern_fusion_pass": [False],
    "remove_noop_ops": [False],
    "remove_cat_ops": [False],
    "post_grad_custom_pre_pass": [None, print],
    "post_grad_custom_post_pass": [None, print],
    "super_kernel_optimize": [False],
    "super_kernel_optimize_options": [None, {"dcci_after_kernel_end": [".*"]}],
    "super_kernel_debug_options": [None, {"debug_per_op_max_core_num": 1}],
    "dump_tensor_data": [True],
    "data_dump_stage": ["original", "optimized"],
    "data_dump_dir": ["./", "."],
    "mode": ["npugraph_ex"],
    "_vllm_aclnn_static_kernel_sym_index": [0, 3],
    "_vllm_aclnn_static_kernel_sym_range": [None, [1, 2, 4]],
}
BAD = {
    "static_kernel_compile": [1, "True", None],
    "static_kernel_wait": [None, True, -1, "soon", float("inf"), float("nan"), [1]],
    "capture_limit": [0, -1, 2**63, True, 1.0, "64"],
    "use_graph_pool": [1, (1,), ("a", "b")],
    "capture_error_mode": ["globals", None, 1],
    "post_grad_custom_pre_pass": ["pass", 1],
    "super_kernel_optimize_options": [[], {1: 2}],
    "data_dump_stage": ["optimised", None],
    "data_dump_dir": ["/nowhere/at/all", 3, __file__],
    "mode": ["reduce-overhead"],
    "_vllm_aclnn_static_kernel_sym_range": [4, ["a"], [True]],
    "_vllm_aclnn_static_kernel_sym_index": [-1],
}


def test_every_documented_option_is_tried_here():
    assert set(GOOD) == set(SPECS)


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in GOOD.items() for value in values])
def test_an_allowed_value_is_taken(name, value):
    options = read_options({name: value})
    taken = getattr(options, name)
    assert taken == (tuple(value) if isinstance(value, list) else value)
    assert options.given == {name}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in BAD.items() for value in values])
def test_a_wrong_value_is_an_error_that_says_what_is_allowed(name, value):
    with pytest.raises(OptionError, match=f"option {name}=.* is not valid: it must be ") as raised:
        read_options({name: value})
    assert isinstance(raised.value, ConfigError)
    assert raised.value.data["option"] == name


def test_defaults_are_the_documented_ones():
    options = Options()
    assert {name: spec.default for name, spec in SPECS.items()} == {name: getattr(options, name) for name in SPECS}
    assert options.capture_limit == 64
    assert options.clone_input
    assert not options.static_kernel_compile


def test_an_unknown_name_lists_what_is_allowed_and_what_was_meant():
    with pytest.raises(OptionError, match="Did you mean 'static_kernel_compile'") as raised:
        read_options({"static_kernels_compile": True})
    assert "capture_error_mode ('global', 'thread_local' or 'relaxed')" in str(raised.value)


def test_a_wrong_word_says_what_was_meant():
    with pytest.raises(OptionError, match="Did you mean 'optimized'"):
        read_options({"data_dump_stage": "optimised"})


def test_options_that_are_no_dict_are_refused():
    with pytest.raises(OptionError, match="must be a dict"):
        read_options(["static_kernel_compile"])  # type: ignore[arg-type]


def test_super_kernels_need_static_kernels():
    with pytest.raises(OptionError, match="needs static_kernel_compile=True"):
        read_options({"super_kernel_optimize": True})
    assert read_options({"super_kernel_optimize": True, "static_kernel_compile": True}).super_kernel_optimize


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"disable_static_kernel_compile_cache": True}, "static_kernel_compile is not on"),
        ({"clone_output": True}, "graphs are not captured there"),
        ({"clone_input": False}, "graphs are not captured there"),
        ({"capture_limit": 3}, "graphs are not captured there"),
        ({"inplace_pass": True}, "operators are not made in-place there"),
        ({"pattern_fusion_pass": True}, "there are no fused operators there"),
        ({"data_dump_stage": "original"}, "dump_tensor_data is not on"),
        ({"super_kernel_debug_options": {}}, "super_kernel_optimize is not on"),
        ({"static_kernel_compile": True, "super_kernel_optimize": True}, "not fused into super kernels"),
        ({"_vllm_aclnn_static_kernel_sym_range": [1]}, "static_kernel_compile is not on"),
    ],
)
def test_an_option_without_effect_is_named(given, why):
    (sentence,) = unmet(read_options(given), "cpu", frozenset())
    assert why in sentence
    assert " has no effect on cpu" in sentence


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"static_kernel_compile": True, "disable_static_kernel_compile_cache": True},
        {"remove_noop_ops": False, "inplace_pass": False, "force_eager": True},
        {"static_kernel_compile": True, "capture_limit": 3},
        {"dump_tensor_data": True, "data_dump_stage": "original"},
    ],
)
def test_nothing_is_said_of_options_that_are_met(given):
    assert unmet(read_options(given), "cpu", frozenset()) == []


def test_the_error_shows_through_dynamo():
    compiled = torch.compile(lambda x: x + 1, backend="npugraph_ex", options={"clone_inputs": True})
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match="Did you mean 'clone_input'"):
        compiled(torch.ones(2))


def test_a_mode_is_refused_with_what_to_use_instead():
    compiled = torch.compile(lambda x: x + 1, backend="npugraph_ex", mode="reduce-overhead")
    with pytest.raises(torch._dynamo.exc.BackendCompilerFailed, match=r"mode=\.\.\.\) is not supported"):
        compiled(torch.ones(2))


def test_what_has_no_effect_is_said_once(caplog):
    with caplog.at_level(logging.WARNING, "npugraph_ex"):
        for number in (1, 2):
            torch.compile(lambda x, n=number: x + n, backend="npugraph_ex", options={"clone_output": True})(torch.ones(2))
    assert [record.getMessage() for record in caplog.records] == [
        "npugraph_ex: option clone_output=True has no effect on cpu: graphs are not captured there"
    ]


@pytest.mark.parametrize("settings", [{"a b": 1}, {"x": "y;z"}, {"x": {"y": 1}}, {"": "1"}])
def test_super_kernel_settings_that_op_compiler_cannot_be_given_are_refused(settings):
    with pytest.raises(OptionError, match="super_kernel_optimize_options"):
        read_options({"static_kernel_compile": True, "super_kernel_optimize": True, "super_kernel_optimize_options": settings})
