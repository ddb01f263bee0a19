"""Names of an earlier form of the manifest, for the rooms that still use them."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import msgspec

from scannet_prep.base.files import Fingerprint, read_file, remove_file, write_if_changed
from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    check_complete,
    encode_manifest,
    processed_path,
    read_manifest,
    write_manifest,
)
from scannet_prep.processed.scene import MAX_FILE_BYTES, ProcessOptions, parse_processed
from scannet_prep.release.files import NOTICE_TEXT as TERMS_TEXT
from scannet_prep.release.scene import Split

__all__ = ["FAILED_NAME", "TERMS_TEXT", "processed_path"]

FAILED_NAME = "failed.txt"


def find_manifest(out_dir: Path) -> Manifest | None:
    """Read the manifest of a folder; None if it has none."""
    try:
        return read_manifest(out_dir)
    except MissingFileError:
        return None


def set_unfinished(out_dir: Path, scene_ids: Collection[str], head: Manifest) -> None:
    """Record the scenes that are still to be made."""
    manifest = find_manifest(out_dir) or Manifest(head.options, head.label_map)
    scenes = {name: entry for name, entry in manifest.scenes.items() if name not in scene_ids}
    unfinished = tuple(sorted(scene_ids))
    write_manifest(out_dir, msgspec.structs.replace(manifest, scenes=scenes, unfinished=unfinished))


def write_failed_list(path: Path, scene_ids: Collection[str]) -> None:
    """Write a list for `--scenes @failed.txt`, or remove it if nothing has failed."""
    if scene_ids:
        write_if_changed(path, encode_failed_list(scene_ids))
    else:
        remove_file(path)


def encode_failed_list(scene_ids: Collection[str]) -> bytes:
    """Encode `failed.txt`."""
    header = "# Scenes that failed. To try them again: --scenes @failed.txt\n"
    return "".join([header, *(f"{name}\n" for name in sorted(scene_ids))]).encode()


@dataclass(frozen=True, slots=True)
class FolderState:
    """The content of a processed folder, and the reasons why it must not be used."""

    manifest: Manifest
    has_manifest: bool
    faults: tuple[FileError, ...]


def find_state(out_dir: Path) -> FolderState:
    """Inspect a processed folder."""
    if not os.path.isdir(out_dir):  # noqa: PTH112 - False if access fails
        raise MissingFileError(out_dir, "no such folder", "make it: scannet-prep process")
    try:
        manifest = read_manifest(out_dir)
    except FileError as error:
        return FolderState(Manifest(ProcessOptions()), has_manifest=False, faults=(error,))
    try:
        check_complete(manifest, out_dir)
    except FileError as error:
        return FolderState(manifest, has_manifest=True, faults=(error,))
    return FolderState(manifest, has_manifest=True, faults=())


def record(out_dir: Path, known: Manifest, scenes: dict[str, Split]) -> None:
    """Write the manifest, with entries from the files of scenes that have none."""
    entries = dict(known.scenes)
    for name, split in scenes.items():
        if name not in entries:
            path = processed_path(out_dir, split, name)
            data = read_file(path, MAX_FILE_BYTES)
            entries[name] = SceneEntry.from_scene(
                parse_processed(data, path), Fingerprint.from_bytes(data)
            )
    manifest = msgspec.structs.replace(known, scenes=entries)
    write_if_changed(out_dir / MANIFEST_NAME, encode_manifest(manifest))
    write_failed_list(out_dir / FAILED_NAME, known.failures)
