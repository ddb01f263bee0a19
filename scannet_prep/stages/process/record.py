"""Brings manifest and lists of a processed folder up to date, at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from scannet_prep.errors import FileError
from scannet_prep.failures import SceneFailure
from scannet_prep.files import Fingerprint, output_error, read_file
from scannet_prep.processed.folder import find_processed_scenes, mark_finished, processed_path, write_lists
from scannet_prep.processed.manifest import Manifest, SceneEntry, write_manifest
from scannet_prep.processed.scene import MAX_FILE_BYTES, parse_processed
from scannet_prep.scene import Split
from scannet_prep.splits import find_official_split
from scannet_prep.stages.process.scene_worker import FinishedScene
from scannet_prep.version import VERSION


def update_folder(
    out_dir: Path,
    previous: Manifest,
    finished: Mapping[str, FinishedScene],
    failures: Mapping[str, SceneFailure],
    *,
    is_restricted: bool,
    was_unfinished: bool,
) -> Manifest:
    """Write manifest and lists, and take the mark of an unfinished folder away; writes nothing where nothing changed.

    Args:
        out_dir: The processed folder.
        previous: What its manifest said.
        finished: Scenes that the run made or kept.
        failures: Scenes that the run could not make.
        is_restricted: Whether the run was about a part of the scenes only; then older failures remain on record.
        was_unfinished: Whether an earlier run was interrupted, so that files may be others than the manifest says.

    Raises:
        OutputError: The folder cannot be written to.
    """
    _remove_from_other_splits(out_dir, finished)
    older = previous.failures if is_restricted else {}
    failed = {name: item for name, item in older.items() if name not in finished} | dict(failures)
    known = {} if was_unfinished else previous.scenes
    manifest = Manifest(_find_scenes(out_dir, known, finished, failed), failed, program_version=VERSION)
    if manifest != previous:
        write_manifest(out_dir, manifest)
    write_lists(out_dir, manifest)
    mark_finished(out_dir)
    return manifest


def _remove_from_other_splits(out_dir: Path, finished: Mapping[str, FinishedScene]) -> None:
    """A scene that no official list names lies in the split it was put into last, and in no other."""
    for scene_id, item in finished.items():
        if find_official_split(scene_id) is not None:
            continue
        for split in set(Split) - {item.entry.split}:
            path = processed_path(out_dir, split, scene_id)
            if path.exists():
                try:
                    path.unlink()
                except OSError as error:
                    raise output_error(path, error) from error


def _find_scenes(
    out_dir: Path,
    recorded: Mapping[str, SceneEntry],
    finished: Mapping[str, FinishedScene],
    failures: Mapping[str, SceneFailure],
) -> dict[str, SceneEntry]:
    """Tell what the folder holds: from the run, else from the manifest, else from the file itself."""
    scenes: dict[str, SceneEntry] = {}
    for scene_id, (split, path) in find_processed_scenes(out_dir).items():
        known = recorded.get(scene_id)
        if scene_id in finished:
            scenes[scene_id] = finished[scene_id].entry
        elif scene_id in failures:
            continue  # an older result may be whole, but nobody knows whether it is still right
        elif known is not None and known.split == split:
            scenes[scene_id] = known
        else:
            with suppress(FileError):  # damaged, and not asked for now: `verify` names it
                data = read_file(path, MAX_FILE_BYTES)
                scenes[scene_id] = SceneEntry.from_scene(parse_processed(data, path), Fingerprint.from_bytes(data))
    return scenes
