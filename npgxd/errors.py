"""The one error tree of the project.

Every error says what happened (its message), what to do about it (``hint``) and carries the facts as ``data``, so that a
terminal, a log line and a wire reply can each show it in their own way.  ``code`` is the stable name that crosses the wire,
``exit_code`` what a command line tool ends with (the values of ``sysexits.h`` where one fits).
"""

from __future__ import annotations

import errno
from typing import ClassVar, Final

NO_MEANS: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""What the system says where it, or this process, has no descriptor or no memory left just now."""


class NpgxError(Exception):
    """Base of all errors that this project raises on purpose."""

    code: ClassVar[str] = "ERROR"
    exit_code: ClassVar[int] = 70

    def __init__(self, message: str, *, hint: str = "", **data: object) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.data = data

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.message, self.hint, self.data))


def _rebuild(kind: type[NpgxError], message: str, hint: str, data: dict[str, object]) -> NpgxError:
    return kind(message, hint=hint, **data)


class ConfigError(NpgxError):
    """The configuration, an option or a path given by the user cannot be used."""

    code = "CONFIG"
    exit_code = 78


class AlreadyRunning(NpgxError):
    """Another daemon owns this state directory."""

    code = "ALREADY_RUNNING"
    exit_code = 75


class StateRefused(NpgxError):
    """The state directory is of an unknown or newer format, or lies where it cannot be kept safely."""

    code = "STATE_REFUSED"
    exit_code = 78


class NoThreads(NpgxError):
    """The operating system refuses threads that this program cannot be without."""

    code = "NO_THREADS"
    exit_code = 71


class StoreError(NpgxError):
    """Published state is damaged, or could not be written."""

    code = "STORE"
    exit_code = 74

    @property
    def no_space(self) -> bool:
        """Whether the disk was full, or its owner's quota."""
        return self.data.get("errno") in {errno.ENOSPC, errno.EDQUOT}

    @property
    def no_means(self) -> bool:
        """Whether descriptors or memory were lacking to look at it: that says nothing of what lies there."""
        return self.data.get("errno") in NO_MEANS


class ToolchainError(NpgxError):
    """No usable CANN toolchain: not found, incomplete, or of a version or SoC that is not supported."""

    code = "NO_TOOLCHAIN"
    exit_code = 69


class RecordError(NpgxError):
    """One operator shape record cannot be used; the message names the file and the reason."""

    code = "BAD_RECORD"
    exit_code = 65


class CompileError(NpgxError):
    """An op_compiler run, or what it produced, failed."""

    code = "COMPILE"
    exit_code = 70


class ProtocolError(NpgxError):
    """A message that the protocol does not allow; nothing of it was acted on."""

    code = "BAD_REQUEST"
    exit_code = 76


class DaemonUnavailable(NpgxError):
    """No daemon answers: not running, not reachable, silent, or restarting for too long."""

    code = "UNAVAILABLE"
    exit_code = 69


class RequestRefused(NpgxError):
    """The daemon answered, and refused. ``refusal`` is the daemon's code for the reason."""

    code = "REFUSED"
    exit_code = 69

    def __init__(self, message: str, *, hint: str = "", refusal: str = "REFUSED", **data: object) -> None:
        super().__init__(message, hint=hint, refusal=refusal, **data)
        self.refusal = refusal
