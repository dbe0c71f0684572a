"""The installer inside a run package: copies the package and rewrites the root's total index in place, as the vendor's does.

Runs from ``<package>/scripts/`` with the standard library alone. It is no example to follow: readers of the root can meet
half-written files, which is what the daemon protects them from.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

_INDEX = "binary_info_config.json"
_ORDER = "config.ini"
_DIRECTORY_MODE = 0o770


def main(arguments: list[str]) -> int:
    """``install ROOT --family F [--lock] [--fail-halfway]``, ``uninstall PACKAGE_DIR`` or ``uninstall-all AI_CORE``."""
    command, where, *options = arguments
    if command == "install":
        family = options[options.index("--family") + 1]
        return install(Path(where), family, lock="--lock" in options, fail_halfway="--fail-halfway" in options)
    if command == "uninstall":
        return uninstall(Path(where))
    return uninstall_all(Path(where))


def install(root: Path, family: str, *, lock: bool, fail_halfway: bool) -> int:
    """Copy this package into ``root`` and merge its index into the total one; the later installed package wins."""
    package = Path(__file__).resolve().parents[1]
    ai_core = root / "static_kernel" / "ai_core"
    try:
        _make_directories(root, ai_core / "config" / family)
        held = _hold(ai_core / "config" / "static_kernel.lock") if lock else None
        _copy_package(package, ai_core / package.name, limit_to_half=fail_halfway)
        if fail_halfway:
            return _complain(f"install {package.name} failed: cannot copy all files (ordered failure)")
        for name in ("uninstall.sh", "version.info"):
            shutil.copy(package.parent / name, ai_core / name)
        _write_order(ai_core, [*(known for known in _read_order(ai_core) if known != package.name), package.name])
        total = ai_core / "config" / family / _INDEX
        _write_index(total, _merge(_read_index(total), _read_index(package / "config" / family / _INDEX)))
        if held is not None:
            os.close(held)
    except OSError as error:
        return _complain(f"install {package.name} into {root} failed: {error}")
    sys.stdout.write(f"[INFO] {package.name} installed into {root / 'static_kernel'} (simulated)\n")
    return 0


def uninstall(package: Path) -> int:
    """Remove one package and make the total index again from the others, in their order."""
    ai_core = package.parent
    try:
        shutil.rmtree(package)
        order = [name for name in _read_order(ai_core) if name != package.name]
        _write_order(ai_core, order)
        for total in (ai_core / "config").glob(f"*/{_INDEX}"):
            merged: dict[str, Any] = {}
            for name in order:
                merged = _merge(merged, _read_index(ai_core / name / "config" / total.parent.name / _INDEX))
            if merged:
                _write_index(total, merged)
            else:
                total.unlink()
    except OSError as error:
        return _complain(f"uninstall {package.name} failed: {error}")
    sys.stdout.write(f"[INFO] {package.name} uninstalled (simulated)\n")
    return 0


def uninstall_all(ai_core: Path) -> int:
    """Remove everything, also what others installed."""
    try:
        shutil.rmtree(ai_core.parent)
    except OSError as error:
        return _complain(f"uninstall failed: {error}")
    sys.stdout.write("[INFO] every static kernel package uninstalled (simulated)\n")
    return 0


def _copy_package(source: Path, final: Path, *, limit_to_half: bool) -> None:
    if final.exists():
        shutil.rmtree(final)
    files = [path for path in sorted(source.rglob("*")) if path.is_file()]
    for path in files[: len(files) // 2] if limit_to_half else files:
        target = final / path.relative_to(source)
        if not target.parent.is_dir():
            _make_directories(final.parent, target.parent)
        shutil.copy(path, target)


def _make_directories(above: Path, directory: Path) -> None:
    above.mkdir(parents=True, exist_ok=True)
    missing = [path for path in (directory, *directory.parents) if path != above and path.is_relative_to(above)]
    for path in reversed(missing):
        with contextlib.suppress(FileExistsError):  # another installer may be at it, too
            path.mkdir()
            path.chmod(_DIRECTORY_MODE)


def _hold(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o660)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _merge(total: dict[str, Any], package: dict[str, Any]) -> dict[str, Any]:
    """``total`` with the entries of ``package`` in place of those with the same keys."""
    for op_type, listed in package.items():
        entries = total.setdefault(op_type, {"staticList": []})["staticList"]
        new = {_keys(entry) for entry in listed["staticList"]}
        entries[:] = [entry for entry in entries if _keys(entry) not in new] + listed["staticList"]
    return total


def _keys(entry: dict[str, Any]) -> tuple[str, ...]:
    keys = entry["simplifiedKey"]
    return (keys,) if isinstance(keys, str) else tuple(keys)


def _read_index(path: Path) -> dict[str, Any]:
    try:
        index: dict[str, Any] = json.loads(path.read_bytes())
    except (FileNotFoundError, ValueError):
        return {}
    return index


def _write_index(path: Path, index: dict[str, Any]) -> None:
    with path.open("w") as stream:
        stream.write(json.dumps(index, sort_keys=True))


def _read_order(ai_core: Path) -> list[str]:
    try:
        lines = (ai_core / _ORDER).read_text().splitlines()
    except FileNotFoundError:
        return []
    return [line.partition("=")[2] for line in lines if line.startswith("package")]


def _write_order(ai_core: Path, names: list[str]) -> None:
    lines = ["[install_order]", *(f"package{number}={name}" for number, name in enumerate(names))]
    (ai_core / _ORDER).write_text("\n".join(lines) + "\n")


def _complain(message: str) -> int:
    sys.stderr.write(f"[ERROR] {message}\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
