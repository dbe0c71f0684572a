"""The error of the demo."""

from __future__ import annotations

from npgxd.errors import NpgxError


class DemoError(NpgxError):
    """The demo cannot go on; the message says what happened and where to look."""

    code = "DEMO_FAILED"
