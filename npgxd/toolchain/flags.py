"""What op_compiler's own options are on this node: how it was probed, and part of every kernel key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FollowForm = Literal["", "bare", "true"]


@dataclass(frozen=True, slots=True)
class CompilerFlags:
    """The forms of op_compiler's options that differ between CANN versions, as its ``--help`` tells them.

    ``follow_op_params_jit``: ``"true"`` for ``-f true``, ``"bare"`` for ``-f`` without a value, empty where there is no such
    option (then every op is compiled twice, d0 and d1).
    """

    follow_op_params_jit: FollowForm = ""

    def canonical(self) -> dict[str, object]:
        """The form that is hashed into the kernel key: whether records are followed, not how the command line spells it."""
        return {"follow": bool(self.follow_op_params_jit)}
