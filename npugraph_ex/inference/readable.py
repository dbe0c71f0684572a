"""``readable_cache``: an entry as text, for whoever wants to know what it holds."""

from __future__ import annotations

import dis
import io
from pathlib import Path
from typing import TYPE_CHECKING, Final

from npgxd.client import entry_files as files
from npgxd.errors import ConfigError
from npugraph_ex.inference import calls_source, entry
from npugraph_ex.inference.facts import Facts

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from npugraph_ex.inference.entry import Entry

_WIDTH: Final = 100


def readable_cache(
    cache_bin: str | os.PathLike[str],
    print_output: bool = True,  # noqa: FBT001, FBT002 -- the documented signature
    file: str | os.PathLike[str] | None = None,
) -> str:
    """The account of the entry at the path ``cache_bin``: what it was made from, inputs, options, facts, bytecode, graph.

    It is printed unless ``print_output`` is False, and written to ``file`` if one is given: there all but the graph's source
    are comments, so that the file is Python. Nothing of the entry is run.

    ConfigError for a bad path, EntryRefused for a link or a file that is not safely this user's, EntryDamaged, EntryOutdated or
    EntryForeign for what cannot be read.
    """
    path = Path(cache_bin).absolute()
    try:
        read = entry.read(files.read(path.parent, (path.name,)))
    except OSError as error:
        raise ConfigError(
            f"there is no compile-cache entry at {path}: {error.strerror or error}",
            hint="Give the path of a compiled_module file, as cache_compile() logs it",
        ) from error
    account = _account(path, read)
    whole = f"{account}\n{_title('graph')}\n{read.source}"
    if file is not None:
        _write(Path(file).absolute(), account, read.source)
    if print_output:
        print(whole)  # noqa: T201 -- asked for
    return whole


def _account(path: Path, read: Entry) -> str:
    header = read.header
    facts = Facts.parse(read.facts)
    parts = [
        _title("compile-cache entry"),
        f"path: {path}",
        f"made from: {header.function} of {header.model}, {'dynamic' if header.dynamic else 'static'} sizes",
        *(f"{name}: {version}" for name, version in facts.versions.items()),
        _title("inputs"),
        *(f"{at}: {name} = {source}: {kind}" for at, (name, source, kind) in enumerate(header.inputs)),
        _title("constants"),
        *_or_none(f"{item['name']}: {item['dtype']}{item['shape']} on {item['device']}" for item in header.tensors),
        _title("options"),
        *_or_none(f"{name}={value}" for name, value in header.options.items()),
        _title("settings"),
        *(f"{name}: {value}" for name, value in facts.settings.items()),
        _title("facts"),
        calls_source.source(facts, read.check_code()),
        _title("bytecode"),
        _disassembled(read),
    ]
    return "\n".join(parts)


def _disassembled(read: Entry) -> str:
    told = io.StringIO()
    dis.dis(read.bytecode(), file=told)
    told_names = [*read.header.needs.items(), *((repr(text), name) for text, name in read.header.objects.items())]
    needs = "\n".join(f"{name} is {need}" for name, need in told_names)
    return f"{needs}\n{told.getvalue()}"


def _write(path: Path, account: str, source: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join(f"# {line}".rstrip() for line in account.splitlines()) + "\n\n" + source)
    except OSError as error:
        raise ConfigError(f"the account cannot be written to {path}: {error.strerror}", hint="Give another file") from error


def _or_none(lines: Iterable[str]) -> list[str]:
    return list(lines) or ["none"]


def _title(text: str) -> str:
    return f"---- {text} ".ljust(_WIDTH, "-")
