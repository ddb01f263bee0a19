"""The processed folder: the paths of its scenes, its notices, and its state.

The dataset, pack, verify and info all use `find_state` to decide whether a folder can be used.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from shlex import quote

import msgspec

from scannet_prep.base.files import (
    Fingerprint,
    make_directory,
    read_file,
    remove_file,
    write_atomically,
    write_if_changed,
)
from scannet_prep.errors import (
    FileError,
    MissingFileError,
    OldFormatError,
    ProcessedFileError,
)
from scannet_prep.processed.manifest import (
    MANIFEST_NAME,
    Manifest,
    SceneEntry,
    encode_manifest,
    read_manifest,
)
from scannet_prep.processed.npz import DAMAGE_HINT
from scannet_prep.processed.scene import (
    MAX_FILE_BYTES,
    ProcessOptions,
    check_meta,
    parse_processed,
    read_processed,
)
from scannet_prep.release.files import TERMS_URL
from scannet_prep.release.scene import SceneId, Split

TERMS_NAME = "TERMS.txt"
FAILED_NAME = "failed.txt"
UNFINISHED_NAME = "unfinished.txt"
_HINT_CONTINUE = "run the same scannet-prep process command again: it continues where it stopped"
_FAILED_HEADER = (
    "# Scenes that failed. "
    "To try them again: the same scannet-prep command with --scenes @failed.txt\n"
)

TERMS_TEXT = f"""\
The files in this folder derive from the ScanNet dataset (http://www.scan-net.org) and remain \
under the
ScanNet Terms of Use, which allow non-commercial research and education and forbid redistribution:
{TERMS_URL}
Give them only to people who have accepted those terms.
"""
_UNFINISHED_TEXT = b"""\
Scenes of this folder are being made or unpacked, or a run was interrupted: scenes may be missing, \
of two kinds, or
outdated. Run the same scannet-prep command again: it goes on where it stopped, \
and removes this file at its end.
A run for other scenes leaves it. These scenes were to be made:
"""


def mark_unfinished(out_dir: Path, scene_ids: Collection[str] = ()) -> None:
    """Mark a folder as unfinished, so that readers refuse it.

    Args:
        out_dir: The folder.
        scene_ids: The scenes that are being made, for the text of the file.

    Raises:
        OutputError: The folder cannot be written to.
    """
    text = _UNFINISHED_TEXT + "".join(f"{scene_id}\n" for scene_id in sorted(scene_ids)).encode()
    write_if_changed(out_dir / UNFINISHED_NAME, text)


def mark_finished(out_dir: Path, scene_ids: Collection[str]) -> None:
    """Remove scenes from the file of `mark_unfinished`, and the file itself if it lists no others.

    Raises:
        OutputError: It cannot be removed.
    """
    rest = read_unfinished(out_dir).difference(scene_ids)
    if rest:
        mark_unfinished(out_dir, rest)
    else:
        remove_file(out_dir / UNFINISHED_NAME)


def read_unfinished(out_dir: Path) -> set[str]:
    """Read the scenes that interrupted runs did not get to; empty if the folder has no mark."""
    with suppress(FileError):
        data = read_file(out_dir / UNFINISHED_NAME)
        names = data.removeprefix(_UNFINISHED_TEXT).decode("ascii", "replace").splitlines()
        return {name for name in names if SceneId.is_valid(name)}
    return set()


def processed_path(out_dir: Path, split: str, scene_id: str) -> Path:
    """Return the path of a processed scene."""
    return out_dir / split / f"{scene_id}.npz"


def iter_processed_scenes(out_dir: Path) -> Iterator[tuple[SceneId, Split, Path]]:
    """Iterate over the files of a processed folder that are named like scenes; none is opened.

    A scene may occur in two splits.
    """
    for split in Split:
        for path in sorted((out_dir / split).glob("*.npz"), key=attrgetter("name")):
            if SceneId.is_valid(path.stem):
                yield SceneId(path.stem), split, path


def find_scene_ids(out_dir: Path) -> set[str]:
    """Find the scenes that a folder holds, or that an interrupted run had still to make."""
    held = {str(scene_id) for scene_id, _, _ in iter_processed_scenes(out_dir)}
    return held | read_unfinished(out_dir)


def prepare_folder(out_dir: Path, splits: set[Split], *, has_terms: bool) -> None:
    """Create the folder and the folders of the splits.

    Args:
        out_dir: The folder.
        splits: The splits.
        has_terms: Whether to write the notice that the content derives from ScanNet.

    Raises:
        OutputError: They cannot be created.
    """
    make_directory(out_dir)
    for split in splits:
        make_directory(out_dir / split)
    path = out_dir / TERMS_NAME
    if has_terms and not path.exists():
        write_atomically(path, [TERMS_TEXT.encode()])


def write_failed_list(path: Path, scene_ids: Collection[str]) -> None:
    """Write a `failed.txt`, usable as `--scenes @failed.txt`, or remove it if nothing has failed.

    Raises:
        OutputError: It cannot be written.
    """
    if scene_ids:
        write_if_changed(path, encode_failed_list(scene_ids))
    else:
        remove_file(path)


def encode_failed_list(scene_ids: Collection[str]) -> bytes:
    """Encode `failed.txt`."""
    lines = "".join(f"{scene_id}\n" for scene_id in sorted(scene_ids))
    return (_FAILED_HEADER + lines).encode()


@dataclass(frozen=True, slots=True)
class FolderState:
    """The content of a processed folder, and whether it can be used.

    Attributes:
        manifest: The content of `manifest.json`; if the file is missing or damaged, a manifest made
            from the files of the scenes. It has no scenes if the folder has an older format.
        has_manifest: Whether `manifest` was read from `manifest.json`.
        faults: The reasons why the folder must not be used; empty if it can be used.
    """

    manifest: Manifest
    has_manifest: bool
    faults: tuple[FileError, ...]


def find_state(out_dir: Path) -> FolderState:
    """Inspect a processed folder.

    With a manifest, no scene is opened; without one, every scene is read.

    Raises:
        MissingFileError: There is no such folder, or it cannot be opened.
    """
    # Unlike Path.is_dir, this returns False if access to the parent fails.
    if not os.path.isdir(out_dir):  # noqa: PTH112
        raise MissingFileError(
            out_dir, "no such folder", f"make it: scannet-prep process -o {quote(str(out_dir))}"
        )
    faults: list[FileError] = []
    mark_path = out_dir / UNFINISHED_NAME
    if mark_path.exists():
        problem = "exists: processing has not finished"
        faults.append(FileError(mark_path, problem, _HINT_CONTINUE))
    manifest = None
    try:
        manifest = read_manifest(out_dir)
    except OldFormatError as error:
        # The scenes have the old format, too, so there is no use in reading them.
        return FolderState(Manifest(ProcessOptions()), has_manifest=False, faults=(error,))
    except FileError as error:
        faults.append(error)
    if manifest is not None:
        return FolderState(manifest, has_manifest=True, faults=tuple(faults))

    head = find_head(out_dir) or Manifest(ProcessOptions())
    scenes, unreadable = find_entries(out_dir, head)
    faults += unreadable
    if not scenes and not unreadable:
        faults.append(_no_scenes(out_dir))
    manifest = msgspec.structs.replace(head, scenes=scenes)
    return FolderState(manifest, has_manifest=False, faults=tuple(faults))


def find_head(out_dir: Path) -> Manifest | None:
    """Find the options and the label map of a folder without a manifest.

    Returns:
        A manifest without scenes. It has the options of the first whole scene, and the label map of
        the first one that depends on it. None if the folder holds no whole scene.
    """
    head = None
    for _, _, path in iter_processed_scenes(out_dir):
        try:
            meta = read_processed(path).meta
        except FileError:
            # It is damaged, or in another format. The next one may be whole.
            continue
        # Test scenes depend on no label map: keep the first options, and go on to find one.
        options = meta.options if head is None else head.options
        head = Manifest(options, meta.label_map)
        if meta.label_map:
            break
    return head


def find_entries(out_dir: Path, known: Manifest) -> tuple[dict[str, SceneEntry], list[FileError]]:
    """Find the entries of all scenes of a folder, reading the files of those without a known entry.

    Args:
        out_dir: The processed folder.
        known: The options of the folder, and entries by scene id. An entry is used if its split is
            that of the file. Scenes that are among its failures are omitted.

    Returns:
        The entries of all whole scenes, sorted by id; and the errors of the others.
    """
    scenes: dict[str, SceneEntry] = {}
    faults: list[FileError] = []
    for scene_id, split, path in iter_processed_scenes(out_dir):
        # The file of a scene that failed is from an earlier run, and no longer counts.
        if scene_id in known.failures:
            continue
        if scene_id in scenes:
            other = processed_path(out_dir, scenes[scene_id].split, scene_id)
            problem = f"is the scene of {other}, too"
            faults.append(ProcessedFileError(path, problem, "remove one of the two"))
            continue
        entry = known.scenes.get(scene_id)
        try:
            if entry is None or entry.split != split:
                entry = read_entry(path, scene_id, split, known)
            scenes[scene_id] = entry
        except FileError as error:
            faults.append(error)
    return dict(sorted(scenes.items())), faults


def read_entry(path: Path, scene_id: str, split: Split, head: Manifest) -> SceneEntry:
    """Make the entry of a scene from its file.

    Args:
        path: The file.
        scene_id: The scene that it must hold.
        split: The split that the scene must belong to.
        head: The options and the label map of the folder.

    Raises:
        FileError: It cannot be read, is damaged, or was made with other options or another label
            map.
    """
    data = read_file(path, MAX_FILE_BYTES)
    scene = parse_processed(data, path)
    check_meta(scene.meta, path, scene_id, split, head.options)
    # A scene without groups, such as one of the test split, depends on no label map.
    if head.label_map and scene.meta.label_map not in ("", head.label_map):
        problem = "was made with another label map than the folder"
        raise ProcessedFileError(path, problem, DAMAGE_HINT)
    return SceneEntry.from_scene(scene, Fingerprint.from_bytes(data))


def record(out_dir: Path, known: Manifest) -> None:
    """Write the manifest of a processed folder, and `failed.txt`.

    Args:
        out_dir: The folder.
        known: Its options and failures, and the scenes whose files need not be read. Other files
            are read; damaged ones are omitted, and `verify` reports them.

    Raises:
        OutputError: The folder cannot be written to.
    """
    scenes, _ = find_entries(out_dir, known)
    write_manifest(out_dir, msgspec.structs.replace(known, scenes=scenes))
    write_failed_list(out_dir / FAILED_NAME, known.failures)


def write_manifest(out_dir: Path, manifest: Manifest) -> None:
    """Write the manifest of a processed folder, unless the file has this content already.

    Raises:
        OutputError: The folder cannot be written to.
    """
    write_if_changed(out_dir / MANIFEST_NAME, encode_manifest(manifest), is_durable=True)


def _no_scenes(out_dir: Path) -> MissingFileError:
    """Describe a folder without processed scenes, which may be the folder of a split."""
    hint = f"make them, if these are raw scenes: scannet-prep process {quote(str(out_dir))}"
    resolved = out_dir.resolve()
    if resolved.name in set(Split):
        hint = f"give the folder above it, {resolved.parent}, and the split {resolved.name}"
    problem = f"holds no processed scenes: expected {out_dir}/train/scene*.npz"
    return MissingFileError(out_dir, problem, hint)
