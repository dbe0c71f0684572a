"""What the daemon answers when it does not do what was asked."""

from __future__ import annotations

from typing import ClassVar

from npgxd.errors import NpgxError, StoreError
from npgxd.wire.messages import Refusal


class Refused(NpgxError):
    """A request that is refused, with the code that crosses the wire (docs/protocol.md lists them)."""

    code: ClassVar[str] = "REFUSED"

    def __init__(self, refusal: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint, refusal=refusal)
        self.refusal = refusal

    def __reduce__(self) -> tuple[object, ...]:
        return (_refused, (self.refusal, self.message, self.hint))


def _refused(refusal: str, message: str, hint: str) -> Refused:
    return Refused(refusal, message, hint=hint)


def refusal_of(error: NpgxError) -> Refusal:
    """Any error of the tree as the reply that a client gets."""
    code = error.refusal if isinstance(error, Refused) else error.code
    if isinstance(error, StoreError) and error.no_space:
        code = "NO_SPACE"
    return Refusal(code=code, message=error.message[:2000], hint=error.hint[:2000])
