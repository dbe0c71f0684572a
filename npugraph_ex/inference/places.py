"""Where an entry lies: ``<cache_dir>/<model info>[/<ranks>]/<function>/compiled_module``, as the vendor documents it.

Promise: the path is the same in every process that starts the same script on the same rank, and is known without any trace; nothing
that a user passes can lead out of ``cache_dir``.

The parts are those of the public documentation of ``cache_compile``: ``.torchair_cache`` in the working directory by default, the
model's class, ``dynamic`` or ``static``, the word ``aclgraphcache`` and a digest in the model info, ``world<n>global_rank<r>``
where several processes work together. That ``tp_rank`` and ``pp_rank`` are appended with ``_``, and that ``TORCHAIR_CACHE_HOME`` names
another default, is what its public source code does.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import torch

from npgxd.client import entry_files as files
from npgxd.errors import ConfigError
from npugraph_ex.inference.facts_given import UNDECIDING

if TYPE_CHECKING:
    from torch import nn

    from npugraph_ex.options import Options

FILE: Final = "compiled_module"
DEFAULT: Final = ".torchair_cache"
HOME: Final = "TORCHAIR_CACHE_HOME"
_OTHER: Final = re.compile(r"\W", re.ASCII)


@dataclass(frozen=True, slots=True)
class Ranks:
    """Where this process stands, as far as the user said so."""

    global_rank: int | None = None
    tp_rank: int | None = None
    pp_rank: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """One function's directory: ``base`` is the user's, ``parts`` lead to it from there."""

    base: Path
    parts: tuple[str, ...]

    @property
    def directory(self) -> Path:
        """The directory that holds ``compiled_module``."""
        return self.base.joinpath(*self.parts)

    @property
    def file(self) -> Path:
        """The documented path of the entry."""
        return self.directory / FILE


def base_of(cache_dir: object) -> Path:
    """The directory that ``cache_dir`` means now, made if it is missing. ConfigError if entries cannot be kept there."""
    if cache_dir is None:
        cache_dir = os.environ.get(HOME) or DEFAULT
    if not isinstance(cache_dir, (str, os.PathLike)) or not os.fspath(cache_dir):
        raise ConfigError(f"cache_dir={cache_dir!r} is not valid: it must be a path", hint="Leave it out to use " + DEFAULT)
    base = Path(cache_dir).absolute()
    try:
        files.make_base(base)
    except OSError as error:
        raise ConfigError(
            f"cache_dir={os.fspath(cache_dir)!r} cannot be used: {error.strerror or error}",
            hint=f"{base} must be a directory that this process may read and write",
            path=str(base),
        ) from error
    return base


def check_ranks(ranks: Ranks) -> None:
    """ConfigError if a rank is none; global_rank is compared with the job's size where that is known already."""
    for name in ("global_rank", "tp_rank", "pp_rank"):
        rank = getattr(ranks, name)
        if rank is not None and (isinstance(rank, bool) or not isinstance(rank, int) or rank < 0):
            raise ConfigError(f"{name}={rank!r} is not valid: it must be an integer from 0", hint="Leave it out to have it found")
    size = _world_size()
    if ranks.global_rank is not None and size and ranks.global_rank >= size:
        raise ConfigError(
            f"global_rank={ranks.global_rank} is not valid: {size} processes work together, so it must be from 0 to {size - 1}",
            hint="Leave it out to have it found by torch.distributed",
        )


def place_of(base: Path, instance: nn.Module, function: str, options: Options, *, dynamic: bool, ranks: Ranks) -> Place:
    """Where the entry of ``instance``'s method called ``function`` lies. ConfigError if ``ranks`` do not suit the job."""
    check_ranks(ranks)
    rank = _rank_part(ranks)
    parts = (model_info(instance, options, dynamic=dynamic), rank, _OTHER.sub("_", function))
    return Place(base, tuple(part for part in parts if part))


def model_info(instance: nn.Module, options: Options, *, dynamic: bool) -> str:
    """The model's class, how it is traced, and a digest of its structure and options."""
    told = "\n".join(
        [repr(instance), *(f"{name}={_plain(getattr(options, name))}" for name in sorted(set(options.given) - UNDECIDING))]
    )
    digest = hashlib.sha256(told.encode()).hexdigest()[:32]
    return f"{_OTHER.sub('_', type(instance).__name__)}_{'dynamic' if dynamic else 'static'}_aclgraphcache_{digest}"


def _plain(value: object) -> str:
    """An option without an address."""
    return getattr(value, "__qualname__", "") or repr(value)


def _rank_part(ranks: Ranks) -> str:
    size, parts = _world_size(), []
    if size > 1:
        rank = torch.distributed.get_rank() if ranks.global_rank is None else ranks.global_rank
        parts.append(f"world{size}global_rank{rank}")
    elif size == 0 and ranks.global_rank is not None:
        parts.append(f"global_rank{ranks.global_rank}")  # a job that is none of torch.distributed's
    if ranks.tp_rank is not None:
        parts.append(f"tp_rank{ranks.tp_rank}")
    if ranks.pp_rank is not None:
        parts.append(f"pp_rank{ranks.pp_rank}")
    return "_".join(parts)


def _world_size() -> int:
    """How many processes torch.distributed has brought together; 0 if it has not been asked to."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return int(torch.distributed.get_world_size())
    return 0
