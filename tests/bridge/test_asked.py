from __future__ import annotations

import pytest

from npgxd.bridge.asked import asked


def test_the_bundled_options_are_read():
    told = asked({"config": {"disable_static_kernel_compile_cache": True}, "build_dir": "/b"})
    assert (told.build_dir, told.beside_cache, told.recompile, told.options.super_kernel) == ("/b", False, True, {})


def test_a_compile_cache_has_its_outputs_beside_it_unless_the_graph_is_eager():
    config = {"static_kernel_compile.use_cache_compile": True, "static_kernel_compile.compile_cache_dir": "/cache"}
    assert asked({"config": config}).build_dir == "/cache"
    assert asked({"config": config}).beside_cache
    eager = asked({"config": {**config, "force_eager": True}})
    assert (eager.build_dir, eager.beside_cache) == (None, False)


def test_torchairs_keyword_arguments_are_read_as_well():
    told = asked({"use_cache_compile": "1", "compile_cache_dir": "/cache", "super_kernel_optimize": True})
    assert (told.build_dir, told.beside_cache, told.options.super_kernel) == ("/cache", True, {"enable": "true"})


def test_super_kernel_settings_are_spelled_as_the_portable_backend_spells_them():
    config = {
        "super_kernel_optimize": True,
        "super_kernel_optimize_options": "{'dcci-before-kernel-start': ['a', 'b'], 'x': True}",
        "super_kernel_debug_options": {"y": 3},
    }
    assert asked({"config": config}).options.super_kernel == {
        "dcci-before-kernel-start": "a,b",
        "x": "true",
        "y": "3",
        "enable": "true",
    }


def test_super_kernel_options_that_cannot_be_read_are_an_error():
    with pytest.raises((ValueError, SyntaxError)):
        asked({"config": {"super_kernel_optimize": True, "super_kernel_optimize_options": "no dictionary"}})
