"""Staging a kernel: what a compiler left becomes a directory that can be published, in the worker that ran the compiler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npgxd.store.disk import DISK, Disk
from npgxd.store.index import check_stem
from npgxd.store.manifest import MANIFEST_NAME, KernelManifest, Making, ManifestEntry, Member, Origin, parse_manifest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class MadeFile:
    """One kernel file as a compiler left it: an index entry with its two files, below ``beneath``."""

    entry: ManifestEntry
    object: Path
    description: Path
    beneath: Path


def stage_kernel(
    target: Path, origin: Origin, making: Making, files: Sequence[MadeFile], *, disk: Disk = DISK, durable: bool = True
) -> KernelManifest:
    """Copy a kernel's files into the new directory ``target`` with their manifest, all of it on the disk on return.

    Only plain files are taken, through no link.  Called in a worker process; one that stages many kernels leaves ``durable`` off
    and ends with one ``disk.fsync_tree`` over all of them, which is many times faster.
    """
    disk.make_directory(target)
    members: list[Member] = []
    for made in sorted(files, key=lambda made: made.entry.stem):
        stem = check_stem(made.entry.stem)
        for suffix, source in ((".json", made.description), (".o", made.object)):
            digest, size = disk.copy_file(source, target / f"{stem}{suffix}", beneath=made.beneath, durable=False)
            members.append(Member(f"{stem}{suffix}", digest, size))
    entries = tuple(sorted((made.entry for made in files), key=lambda entry: entry.stem))
    manifest = parse_manifest(KernelManifest(origin, tuple(members), entries, making).to_json())
    disk.write_file(target / MANIFEST_NAME, manifest.to_json(), durable=False)
    if durable:
        disk.fsync_tree(target)
        disk.fsync_directory(target.parent)
    return manifest
