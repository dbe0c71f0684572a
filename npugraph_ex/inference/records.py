"""The operator records of a cached graph, kept beside its entry, so that a later start asks for its kernels without recording again.

Promise: records are used only for the entry, the sizes, the device and the settings that they were made of; without them, or where
they cannot be read safely, the run is recorded as usual.  A run that was not recorded runs as any other: not node by node.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from npgxd.client import entry_files as files
from npgxd.errors import NpgxError
from npugraph_ex.inference.container import pack, unpack
from npugraph_ex.recording.recorded import Recorded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from npugraph_ex.inference.places import Place
    from npugraph_ex.recording.recorded import GraphRun, Recorder, RecordFile

logger = logging.getLogger("npugraph_ex")

PREFIX: Final = "operator_records."
KEPT: Final = 64
"""Files, one for each graph and each of its shapes, the newest ones: as many shapes as have static kernels by default."""
_FOLDERS: Final = ("target", "debug", "compilable")


class KeptRecords:
    """One entry's records, by what they depend on. ``entry`` is the digest of the entry's bytes."""

    def __init__(self, place: Place, entry: str) -> None:
        self._place = place
        self._entry = entry

    def recorder(self, recorder: Recorder, made_for: Sequence[object], sizes: tuple[int, ...]) -> Recorder:
        """``recorder``, unless there are records of such a run. ``made_for``: what else than the sizes decides them."""
        told = json.dumps([self._entry, list(sizes), [_plain(item) for item in made_for]], sort_keys=True)
        return _Remembering(recorder, self._place, PREFIX + hashlib.sha256(told.encode()).hexdigest()[:32])


class _Remembering:
    """Keeps the contract of ``Recorder``."""

    def __init__(self, recorder: Recorder, place: Place, name: str) -> None:
        self._recorder = recorder
        self._place = place
        self._name = name

    def record(self, run: GraphRun, *, label: str, directory: Path | None) -> tuple[object, Recorded]:
        """Run once; what ran is remembered from an earlier start, or recorded now and remembered."""
        known = self._known()
        if known is not None:
            return run(()), known
        outputs, recorded = self._recorder.record(run, label=label, directory=directory)
        if recorded.problem is None:
            self._keep(recorded)
        return outputs, recorded

    def _known(self) -> Recorded | None:
        try:
            data = files.read(self._place.base, (*self._place.parts, self._name))
            return _read(json.loads(bytes(unpack(data)["records"])))
        except FileNotFoundError:
            return None
        except (NpgxError, OSError, ValueError, KeyError, TypeError) as error:
            logger.warning("npugraph_ex: %s is not used: %s", self._place.directory / self._name, error)
            return None

    def _keep(self, recorded: Recorded) -> None:
        told = {name: [[file, raw.decode()] for file, raw in getattr(recorded, name)] for name in _FOLDERS}
        data = pack({"records": json.dumps({**told, "undescribed": recorded.undescribed}).encode()})
        try:
            files.save(self._place.base, (*self._place.parts, self._name), data)
            kept = [name for name in files.newest(self._place.base, self._place.parts) if name.startswith(PREFIX)]
            for name in kept[KEPT:]:
                files.remove(self._place.base, self._place.parts, name)
        except (NpgxError, OSError) as error:
            logger.warning("npugraph_ex: operator records could not be kept for later starts: %s", error)


def _read(told: dict[str, Any]) -> Recorded:
    target, debug, compilable = (_files(told[name]) for name in _FOLDERS)
    undescribed = tuple((str(name), int(times), str(why)) for name, times, why in told["undescribed"])
    return Recorded(target, debug, compilable, undescribed)


def _files(told: list[Any]) -> tuple[RecordFile, ...]:
    return tuple((str(name), str(text).encode()) for name, text in told)


def _plain(value: object) -> object:
    return dataclasses.asdict(value) if dataclasses.is_dataclass(value) and not isinstance(value, type) else str(value)
