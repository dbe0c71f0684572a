from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def document() -> dict[str, Any]:
    """A status document as a daemon gives it (schema 1), written by hand."""
    return json.loads((Path(__file__).parent / "status.json").read_text())
