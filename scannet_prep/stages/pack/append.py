"""Adds to an archive: what it has is taken over as it is, and nobody else may add at the same time."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from scannet_prep.archive.contents import Contents, SourceFile, SourceGroup
from scannet_prep.archive.index import FORMAT_NAME, ArchiveKind
from scannet_prep.archive.reader import Archive, ArchivedGroup
from scannet_prep.errors import ArchiveError, MissingFileError, OutputError, UsageError
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, parse_manifest
from scannet_prep.processed.state import check_mixture
from scannet_prep.raw.lock import LOCK_NAME, encode_lock, parse_lock
from scannet_prep.stages.pack.contents import FoundContents
from scannet_prep.stages.pack.processed import is_same, merge_manifests, replace_lists


def append_contents(archive: Archive, found: FoundContents) -> Contents:
    """Join what an archive holds and what is to be added.

    Args:
        archive: The archive.
        found: What is to be added; scenes that the archive has already must be the same ones.

    Raises:
        UsageError: They are of different kinds.
        ArchiveError: A scene is in both, and not the same; or the archive is damaged.
        ManifestError: The processed scenes were made in different ways.
        SourceError: A scene that is in both cannot be read.
    """
    head = found.contents.head
    if archive.index.head.kind != head.kind:
        raise UsageError(
            f"{archive.name}: holds {archive.index.head.kind} scenes; what is to be added is {head.kind}",
            "choose another -o, or another folder",
        )
    kept = {entry.scene_id: ArchivedGroup(archive, entry) for entry in archive.index.scenes}
    scenes: dict[str, SourceGroup | ArchivedGroup] = dict(kept)
    for scene in found.contents.scenes:
        if scene.scene_id not in kept:
            scenes[scene.scene_id] = scene
        elif isinstance(scene, SourceGroup) and not _is_same(scene, kept[scene.scene_id]):
            raise ArchiveError(
                archive.name,
                f"holds another {scene.scene_id} than the folder",
                "pack everything again, without --append, or leave that scene out",
            )
    old_files = {file.name: file for file in _read_files(archive)}
    files = {file.name: file for file in (*old_files.values(), *found.contents.files)}
    failures = {**archive.index.failures, **found.contents.failures}
    if found.manifest is not None:
        manifest = _merge(archive, old_files, found.manifest)
        files = {file.name: file for file in replace_lists(files.values(), manifest)}
        options = {key: value for key, value in head.options.items() if archive.index.head.options.get(key) == value}
        head = replace(head, options=options or archive.index.head.options)
    elif head.kind is ArchiveKind.RAW and LOCK_NAME in old_files and LOCK_NAME in files:
        files[LOCK_NAME] = _merge_locks(old_files[LOCK_NAME], files[LOCK_NAME])
    return Contents(
        head,
        tuple(sorted(files.values(), key=lambda file: file.name)),
        tuple(scene for _, scene in sorted(scenes.items())),
        {name: message for name, message in failures.items() if name not in scenes},
    )


@contextmanager
def locked_archive(path: Path) -> Iterator[Callable[[], None]]:
    """Hold an archive, so that of two processes that add to it none loses what the other added.

    Yields:
        A function that checks that the archive is still the file that is held, and raises `OutputError` if not.

    Raises:
        MissingFileError: There is no such archive.
        OutputError: Another process is adding to it.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise MissingFileError(path, "no such archive to add to", "make it first: leave out --append") from None
    except OSError as error:
        raise ArchiveError(path, f"cannot be read: {error.strerror or error}") from error

    def check() -> None:
        if not path.exists() or not os.path.samestat(path.stat(), os.fstat(descriptor)):
            raise OutputError(f"{path}: was replaced by another process meanwhile", "run the same command again")

    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(
                f"{path}: another process is adding to it", "wait until it has ended, then run the same command again"
            ) from None
        except OSError:
            pass  # a network file system without locks: the check is what remains
        yield check
    finally:
        os.close(descriptor)


def _is_same(scene: SourceGroup, kept: ArchivedGroup) -> bool:
    if all(file.fingerprint for file in scene.files):
        return is_same(scene, kept)
    members = [(member.name, member.size_bytes) for member in kept.entry.members]
    if members != [(file.name, file.size_bytes) for file in scene.files]:
        return False
    return all(
        file.compute_fingerprint().crc32 == member.crc32
        for file, member in zip(scene.files, kept.entry.members, strict=True)
    )


def _read_files(archive: Archive) -> Iterator[SourceFile]:
    group = archive.index.files
    for member in group.members:
        if member.name != FORMAT_NAME:
            yield SourceFile.from_content(member.name, bytes(archive.read_member(group, member)))


def _merge(archive: Archive, old_files: dict[str, SourceFile], added: Manifest) -> Manifest:
    path = Path(f"{archive.name}: {MANIFEST_NAME}")
    old_file = old_files.get(MANIFEST_NAME)
    if old_file is None or old_file.content is None:
        raise ArchiveError(archive.name, f"holds no {MANIFEST_NAME}", "pack everything again, without --append")
    manifest = merge_manifests(parse_manifest(old_file.content, path), added)
    check_mixture(path.parent, manifest)
    return manifest


def _merge_locks(old: SourceFile, new: SourceFile) -> SourceFile:
    entries = parse_lock(old.read_whole(), old.path) | parse_lock(new.read_whole(), new.path)
    return SourceFile.from_content(LOCK_NAME, encode_lock(entries))
