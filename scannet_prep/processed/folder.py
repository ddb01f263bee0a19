"""The processed folder: where each scene lies, the notices beside the split folders, and its state.

Whether a folder is usable has one answer, which the dataset, pack, verify and info give.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from shlex import quote

import msgspec

from scannet_prep.errors import FileError, ManifestError, MissingFileError, ProcessedFileError
from scannet_prep.files import (
    Fingerprint,
    make_directory,
    read_file,
    remove_file,
    write_atomically,
    write_if_changed,
)
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    encode_manifest,
    read_manifest,
    shards_of,
)
from scannet_prep.processed.scene import MAX_FILE_BYTES, check_meta, parse_processed
from scannet_prep.release import TERMS_URL
from scannet_prep.scene import SceneId, Split

TERMS_NAME = "TERMS.txt"
FAILED_NAME = "failed.txt"
UNFINISHED_NAME = "unfinished.txt"
_AGAIN = "run the same scannet-prep process command again: it goes on where it stopped"

TERMS_TEXT = f"""\
The files in this folder derive from the ScanNet dataset (http://www.scan-net.org) and remain under the
ScanNet Terms of Use, which allow non-commercial research and education and forbid redistribution:
{TERMS_URL}
Give them only to people who have accepted those terms.
"""


_UNFINISHED_TEXT = b"""\
Scenes of this folder are being made or unpacked, or a run was interrupted: scenes may be missing, of two kinds, or
outdated. Run the same scannet-prep command again: it goes on where it stopped, and removes this file at its end.
A run for other scenes leaves it. These scenes were to be made:
"""


def mark_unfinished(out_dir: Path, scene_ids: Collection[str] = ()) -> None:
    """Put a file into the folder that says which scenes are being made; readers then refuse it.

    Raises:
        OutputError: The folder cannot be written to.
    """
    text = _UNFINISHED_TEXT + "".join(f"{scene_id}\n" for scene_id in sorted(scene_ids)).encode()
    write_if_changed(out_dir / UNFINISHED_NAME, text)


def mark_finished(out_dir: Path, scene_ids: Collection[str]) -> None:
    """Take scenes from the file of `mark_unfinished`, and remove it where it names no others.

    Raises:
        OutputError: It cannot be removed.
    """
    if rest := read_unfinished(out_dir).difference(scene_ids):
        mark_unfinished(out_dir, rest)
    else:
        remove_file(out_dir / UNFINISHED_NAME)


def read_unfinished(out_dir: Path) -> set[str]:
    """Read which scenes runs that were interrupted had still to make; empty where there is no such file."""
    with suppress(FileError):
        words = read_file(out_dir / UNFINISHED_NAME).decode("ascii", "replace").split()
        return {word for word in words if SceneId.is_valid(word)}
    return set()


def processed_path(out_dir: Path, split: Split, scene_id: str) -> Path:
    """Where a processed scene lies."""
    return out_dir / split / f"{scene_id}.npz"


def iter_processed_scenes(out_dir: Path) -> Iterator[tuple[SceneId, Split, Path]]:
    """Go through the scenes of a processed folder by their names, unopened; a scene may lie in two splits."""
    for split in Split:
        for path in sorted((out_dir / split).glob("scene*.npz"), key=attrgetter("name")):
            if SceneId.is_valid(path.stem):
                yield SceneId(path.stem), split, path


def prepare_folder(out_dir: Path, splits: set[Split]) -> None:
    """Create the folder with the terms notice, and the folders of the splits.

    Raises:
        OutputError: They cannot be created.
    """
    for folder in (out_dir, *(out_dir / split for split in splits)):
        make_directory(folder)
    path = out_dir / TERMS_NAME
    if not path.exists():
        write_atomically(path, [TERMS_TEXT.encode()])


def write_failed_list(path: Path, scene_ids: Collection[str]) -> None:
    """Write a `failed.txt`, usable as `--scenes @failed.txt`, or remove it where nothing has failed.

    Raises:
        OutputError: It cannot be written.
    """
    if scene_ids:
        write_if_changed(path, encode_failed_list(scene_ids))
    else:
        remove_file(path)


def encode_failed_list(scene_ids: Collection[str]) -> bytes:
    """Encode `failed.txt`."""
    lines = ["# scenes that failed; to try them again: the same scannet-prep command with --scenes @failed.txt\n"]
    return "".join([*lines, *(f"{scene_id}\n" for scene_id in sorted(scene_ids))]).encode()


@dataclass(frozen=True, slots=True)
class FolderState:
    """What a processed folder holds, and whether it can be used.

    Attributes:
        manifest: What the manifest says; where it cannot be read, or is not there, what the files say.
        has_manifest: Whether it is the manifest that says so.
        faults: Why the folder must not be used; none where it may be.
    """

    manifest: Manifest
    has_manifest: bool
    faults: tuple[FileError, ...]


def find_state(out_dir: Path) -> FolderState:
    """Look at a processed folder. With a manifest, no scene is opened; without one, each is read.

    Raises:
        MissingFileError: There is no such folder, or it cannot be looked at.
    """
    if not os.path.isdir(out_dir):  # noqa: PTH112 - also where nobody may look
        raise MissingFileError(out_dir, "no such folder", f"make it: scannet-prep process -o {quote(str(out_dir))}")
    manifest, faults = None, list[FileError](shards_of(out_dir).find_faults())
    has_parts = bool(faults)
    try:
        manifest = read_manifest(out_dir)
    except FileError as error:
        faults.append(error)
    is_marked = (out_dir / UNFINISHED_NAME).exists()
    if is_marked or not (manifest is None or manifest.is_complete or has_parts):
        path = out_dir / (UNFINISHED_NAME if is_marked else MANIFEST_NAME)
        faults.insert(0, ManifestError(path, "says that processing has not finished", _AGAIN))
    has_manifest = manifest is not None
    if manifest is None:
        scenes, unreadable = find_entries(out_dir, {})
        manifest = Manifest(scenes)
        faults += unreadable or ([] if scenes else [_no_scenes(out_dir)])
    if mixture := find_mixture(out_dir, manifest.scenes):
        faults.append(mixture)
    return FolderState(manifest, has_manifest, tuple(faults))


def find_mixture(out_dir: Path, scenes: Mapping[str, SceneEntry]) -> ManifestError | None:
    """Tell of scenes that were made in different ways that a sample shows; None where all were made in the same way."""
    kinds = dict[str, str]()
    for scene_id, entry in scenes.items():
        made = entry.options
        kinds.setdefault(f"align_axis={made.align_axis}, labels_from={made.labels_from}", scene_id)
    if len(kinds) < 2:
        return None
    problem = "scenes were made with different options: "
    problem += "; ".join(f"{scene_id} with {kind}" for kind, scene_id in kinds.items())
    hint = "make all of them with the same options: scannet-prep process, without --scenes and --splits"
    return ManifestError(out_dir / MANIFEST_NAME, problem, hint)


def find_entries(
    out_dir: Path, known: Mapping[str, SceneEntry], left_out: Collection[str] = ()
) -> tuple[dict[str, SceneEntry], list[FileError]]:
    """Tell what a folder holds: of each scene what is known of it, else what its file says.

    Args:
        out_dir: The processed folder.
        known: Entries by scene id; those of other splits than the file's do not count.
        left_out: Ids of scenes that are passed over.

    Returns:
        The entries of all whole scenes, sorted by id; and what is wrong with the others.
    """
    scenes: dict[str, SceneEntry] = {}
    faults: list[FileError] = []
    for name, split, path in iter_processed_scenes(out_dir):
        entry = known.get(name)
        if name in scenes:
            other = processed_path(out_dir, scenes[name].split, name)
            faults.append(ProcessedFileError(path, f"is the scene of {other}, too", "remove one of the two"))
        elif name not in left_out:
            try:
                if entry is None or entry.split != split:
                    data = read_file(path, MAX_FILE_BYTES)
                    scene = parse_processed(data, path)
                    check_meta(scene.meta, path, name, split)
                    entry = SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))
                scenes[name] = entry
            except FileError as error:
                faults.append(error)
    return dict(sorted(scenes.items())), faults


def record(out_dir: Path, previous: Manifest, known: Manifest) -> None:
    """Write what a processed folder holds now into one manifest, merging shards, and `failed.txt`.

    An older result of a scene that failed may be whole, but nobody knows whether it is still right: it is left out.

    Args:
        out_dir: The folder.
        previous: What its manifest says, with what shards have added.
        known: What is known of its scenes. Others are read if they are there; what is damaged, `verify` names.

    Raises:
        OutputError: The folder cannot be written to.
    """
    scenes, _ = find_entries(out_dir, known.scenes, known.failures)
    manifest, shards = msgspec.structs.replace(known, scenes=scenes), shards_of(out_dir)
    if manifest != previous or shards.exists():
        write_if_changed(out_dir / MANIFEST_NAME, encode_manifest(manifest), is_durable=True)
    shards.remove()
    write_failed_list(out_dir / FAILED_NAME, manifest.failures)


def _no_scenes(out_dir: Path) -> MissingFileError:
    hint = f"make them, if these are raw scenes: scannet-prep process {quote(str(out_dir))}"
    if out_dir.resolve().name in set(Split):
        hint = f"give the folder above it, {out_dir.resolve().parent}, and the split {out_dir.resolve().name}"
    return MissingFileError(out_dir, f"holds no processed scenes: expected {out_dir}/train/scene*.npz", hint)
