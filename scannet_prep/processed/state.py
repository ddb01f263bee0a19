"""Is this processed folder usable? The one answer that the dataset, pack, verify and info give."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from scannet_prep.errors import FileError, ManifestError, MissingFileError, ProcessedFileError
from scannet_prep.files import Fingerprint, open_file, read_file
from scannet_prep.processed.folder import UNFINISHED_NAME, is_unfinished, processed_path
from scannet_prep.processed.manifest import MANIFEST_NAME, Manifest, SceneEntry, read_manifest
from scannet_prep.processed.npz import NpzReader
from scannet_prep.processed.options import ProcessOptions
from scannet_prep.processed.scene import MAX_FILE_BYTES, check_identity, parse_meta, parse_processed
from scannet_prep.scene import SceneId, Split

_AGAIN = "run the same scannet-prep process command again: it goes on where it stopped"


@dataclass(frozen=True, slots=True)
class SceneFile:
    """One scene of a processed folder.

    Attributes:
        split: The split folder it lies in.
        vertex_count: V.
        options: How it was made.
    """

    split: Split
    vertex_count: int
    options: ProcessOptions


@dataclass(frozen=True, slots=True)
class FolderState:
    """What a processed folder holds, and whether it can be used.

    Attributes:
        manifest: What the manifest says; None where there is none, or a damaged one.
        scenes: By id: from the manifest; without one, from the files themselves.
        fault: Why the folder must not be used; None where it may be.
    """

    manifest: Manifest | None
    scenes: Mapping[str, SceneFile] = field(hash=False)
    fault: FileError | None


def find_state(out_dir: Path) -> FolderState:
    """Look at a processed folder. With a manifest, no scene is opened.

    Raises:
        MissingFileError: There is no such folder, or it cannot be looked at.
    """
    try:
        is_folder = out_dir.is_dir()
    except OSError as error:  # a name that is too long, or somewhere where nobody may look
        raise MissingFileError(out_dir, f"cannot be looked at: {error.strerror}", "is the path right?") from error
    if not is_folder:
        raise MissingFileError(out_dir, "no such folder", f"make it: scannet-prep process -o {out_dir}")
    manifest, fault = None, None
    try:
        manifest = read_manifest(out_dir)
    except FileError as error:
        fault = error
    if manifest is not None:
        scenes = {
            scene_id: SceneFile(entry.split, entry.vertex_count, entry.options)
            for scene_id, entry in manifest.scenes.items()
        }
    elif fault is None:
        scenes, fault = _look_at_files(out_dir)
    else:
        scenes = {}
    mixture = find_mixture(out_dir, {scene_id: scene.options for scene_id, scene in scenes.items()})
    return FolderState(manifest, scenes, _find_interruption(out_dir, manifest) or fault or mixture)


def find_mixture(out_dir: Path, options: Mapping[str, ProcessOptions]) -> ManifestError | None:
    """Tell of scenes that were made in different ways that a sample shows; None where all were made in the same way.

    Args:
        out_dir: The processed folder, for the message.
        options: How each scene was made, by id.
    """
    kinds: dict[tuple[bool, str], str] = {}
    for scene_id, item in options.items():
        kinds.setdefault((item.align_axis, item.labels_from), scene_id)
    if len(kinds) < 2:
        return None
    found = "; ".join(
        f"{scene_id} with align_axis={is_aligned}, labels_from={source}"
        for (is_aligned, source), scene_id in kinds.items()
    )
    hint = "make all of them with the same options: scannet-prep process, without --scenes and --splits"
    return ManifestError(out_dir / MANIFEST_NAME, f"scenes were made with different options: {found}", hint)


def check_mixture(out_dir: Path, manifest: Manifest) -> None:
    """Refuse scenes of a manifest that were made in different ways that a sample shows.

    Raises:
        ManifestError: They were.
    """
    fault = find_mixture(out_dir, {scene_id: entry.options for scene_id, entry in manifest.scenes.items()})
    if fault is not None:
        raise fault


def read_scene_file(path: Path, split: Split) -> SceneFile:
    """Read size and options of a processed scene; only a few pages of its file are touched.

    Raises:
        FileError: It cannot be read.
        ProcessedFileError: It is damaged, was written by another program, or is of another scene or split.
    """
    with open_file(path, MAX_FILE_BYTES) as file:
        try:
            data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except ValueError:
            raise ProcessedFileError(path, "is empty", _AGAIN) from None
    reader = NpzReader(data, path)
    meta, points = parse_meta(reader, path), reader.read("points")
    check_identity(reader, path, path.stem, len(points) if points.ndim else 0)
    if meta.split != split:
        raise ProcessedFileError(path, f"was made for {meta.split}, but lies in {split}", _AGAIN)
    return SceneFile(split, len(points), meta.options)


def _find_interruption(out_dir: Path, manifest: Manifest | None) -> ManifestError | None:
    if is_unfinished(out_dir):
        path = out_dir / UNFINISHED_NAME
    elif manifest is not None and not manifest.is_complete:
        path = out_dir / MANIFEST_NAME
    else:
        return None
    return ManifestError(path, "says that processing has not finished", _AGAIN)


def _look_at_files(out_dir: Path) -> tuple[dict[str, SceneFile], FileError | None]:
    """Read size and options of every scene, for a folder without a manifest."""
    scenes: dict[str, SceneFile] = {}
    fault: FileError | None = None
    for split in Split:
        for path in sorted((out_dir / split).glob("scene*.npz")):
            if not SceneId.is_valid(path.stem):
                continue
            if path.stem in scenes:
                other = processed_path(out_dir, scenes[path.stem].split, path.stem)
                fault = fault or ProcessedFileError(path, f"is the scene of {other}, too", "remove one of the two")
                continue
            try:
                scenes[path.stem] = read_scene_file(path, split)
            except FileError as error:
                fault = fault or error
    if not scenes and fault is None:
        hint = f"make them: scannet-prep process -o {out_dir}"
        if out_dir.resolve().name in set(Split) and any(out_dir.glob("scene*.npz")):
            hint = f"give the folder above it, {out_dir.resolve().parent}, and the split {out_dir.resolve().name}"
        elif (out_dir / "scans").is_dir():
            hint = f"make processed scenes from it: scannet-prep process {out_dir}"
        fault = MissingFileError(out_dir, f"holds no processed scenes: expected {out_dir}/train/scene*.npz", hint)
    return scenes, fault


def read_entry(path: Path) -> SceneEntry:
    """Make the manifest's entry of a processed scene from its file.

    Raises:
        FileError: It cannot be read.
        ProcessedFileError: It is damaged, or was written by another program.
    """
    data = read_file(path, MAX_FILE_BYTES)
    return SceneEntry.from_scene(parse_processed(data, path), Fingerprint.from_bytes(data))
