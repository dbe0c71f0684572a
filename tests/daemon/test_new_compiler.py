"""A compiler that takes its time to say what options it takes: nobody waits for it, and nothing is compiled with wrong ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npgxd.daemon.keeping.keyer import MISSING_S, REFRESH_S
from npgxd.daemon.refusals import Refused
from npgxd.wire.messages import CompileOptions, ToolchainIdentity
from tests.compile.conftest import until
from tools.cann_sim import records

if TYPE_CHECKING:
    from pathlib import Path

    from npgxd.daemon.keeping.keyer import Keyer

BARE = "  -f, --follow_op_params_jit  follow"
NEITHER = "usage: op_compiler -p DIR"
WITH_VALUE = "  -f [true], --follow_op_params_jit [true]"


def slow(compiler: Path, says: str) -> Path:
    """Put a compiler there that answers when the file that is given back exists."""
    go = compiler.with_name(f"go{len(list(compiler.parent.iterdir()))}")
    new = compiler.with_name("new")
    new.write_text(f"#!/bin/sh\nwhile [ ! -e {go} ]; do sleep 0.05; done\necho '{says}'\n")
    new.chmod(0o755)
    new.replace(compiler)
    return go


def looked(keyer: Keyer, now: float) -> bool:
    """Look, and say whether nobody is being asked any more."""
    keyer.refresh(now)
    keyer.find_if_missing(now)
    return keyer._asking is None


def need(keyer: Keyer):
    parsed, _ = keyer.parse([("a.json", records.encode(records.matmul(16, 32, 64)))])
    return keyer.needs(parsed, CompileOptions(), 0)[0]


@pytest.mark.parametrize(
    ("says", "form", "moves", "holds"), [(WITH_VALUE, "true", 1, True), (BARE, "bare", 2, True), (NEITHER, "", 2, False)]
)
def test_another_compiler_serves_while_it_is_asked_and_keys_hold_if_its_options_mean_the_same(
    parts, says, form, moves, holds
) -> None:
    keyer = parts.keyer
    before = need(keyer)
    go = slow(parts.cann.op_compiler, says)
    assert not looked(keyer, 10.0)
    assert keyer.toolchain is not None
    assert not keyer.is_current(before), "it is another compiler"
    since = need(keyer)
    assert keyer.is_current(since)
    go.touch()
    until(lambda: looked(keyer, 10.0 + REFRESH_S), "it has answered")
    assert (keyer.moves, keyer.flags.follow_op_params_jit) == (moves, form)
    assert keyer.is_current(since) is holds
    assert keyer.is_current(need(keyer))


def test_a_compiler_that_was_missing_is_served_from_when_it_has_answered(parts) -> None:
    keyer, compiler = parts.keyer, parts.cann.op_compiler
    compiler.rename(compiler.with_name("away"))
    keyer.find()
    go = slow(compiler, WITH_VALUE)
    assert not looked(keyer, 10.0)
    with pytest.raises(Refused, match="is being asked for its options"):
        keyer.serves(ToolchainIdentity(), 11.0)
    go.touch()
    until(lambda: looked(keyer, 12.0), "it has answered")
    assert keyer.serves(ToolchainIdentity(), 12.0) is keyer.toolchain
    assert keyer.moves == 1


def test_a_compiler_that_does_not_answer_is_no_toolchain_and_is_left_alone_for_a_while(parts, monkeypatch) -> None:
    keyer = parts.keyer
    slow(parts.cann.op_compiler, BARE)
    assert not looked(keyer, 10.0)
    monkeypatch.setattr(keyer._asking, "_timeout_s", 0.0)
    assert looked(keyer, 11.0)
    assert keyer.toolchain is None
    assert "did not end within" in keyer.problem
    assert looked(keyer, 11.0 + MISSING_S / 2), "it is not asked again yet"
    assert not looked(keyer, 1e6)
    keyer.close()
    assert looked(keyer, 1e6)
