"""Whether torch_npu has an ``npugraph_ex`` of its own, told without importing anything.

torch_npu 2.13 and later have one, in ``torch_npu/dynamo/npugraph_ex``, and claim that name for imports and in Dynamo.  It is then in charge
of graphs, and what npgxd has under that name steps back.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path


def bundled_package() -> Path | None:
    """The directory of torch_npu's own npugraph_ex; None where there is no torch_npu, or one without it."""
    try:
        spec = find_spec("torch_npu")
    except (ImportError, ValueError):  # something that is no module stands there under that name
        return None
    places = spec.submodule_search_locations if spec is not None else None
    inside = (Path(place) / "dynamo" / "npugraph_ex" for place in places or ())
    return next((path for path in inside if (path / "__init__.py").is_file()), None)
