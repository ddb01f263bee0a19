"""The raw tree: its scenes, and the paths and names of their files.

    <raw>/scans/<scene>/<scene><suffix>         train and val scenes, and own annotated scenes
    <raw>/scans_test/<scene>/<scene><suffix>    test scenes, and other own scenes
    <raw>/<scene>/<scene><suffix>               the same for scenes of the release
    <raw>/scannetv2-labels.combined.tsv         the label map
    <raw>/tasks/                                other files of no scene

A path that is a link to nothing counts as existing (`os.path.lexists`): reading the file then fails
with an error that names it, and the file is not overlooked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from scannet_prep.base.findings import Finding, Severity
from scannet_prep.errors import ContentError, FileError, MissingFileError
from scannet_prep.release.files import (
    AGGREGATION,
    HIGH_RESOLUTION_AGGREGATION,
    KINDS,
    LABEL_MAP,
    LABELS_MESH,
    MESH,
    SEGMENTS,
    SHARED_KINDS,
    SPLIT_DIRS,
    TASKS_DIR,
    FileKind,
)
from scannet_prep.release.scene import SceneId, Split
from scannet_prep.release.splits import find_official_split

_SCENE_DIRS = set(SPLIT_DIRS.values())
# Folders of the release that are not scenes.
_OTHER_FOLDERS = {*_SCENE_DIRS, TASKS_DIR}
# Endings of files by which a folder is taken for a scene.
_SCENE_SUFFIXES = (".ply", ".sens", ".segs.json", ".aggregation.json")
_HINT_LAYOUT = (
    "name the folder that holds scans/ and scans_test/, for example scans/scene0000_00/; "
    "to try the program without ScanNet data: scannet-prep demo"
)
_HINT_RELEASE = "remove the file if it is there, and download it: scannet-prep download"
_HINT_OWN_FILES = (
    "scenes of your own need binary PLY files of triangles, in metres; in scans/ they need "
    "segments and groups, too: for a mesh alone, move the folder to scans_test/"
)
_HINT_OWN = (
    "a scene of your own lies in scans_test/NAME/NAME_vh_clean_2.ply; NAME has up to 96 letters, "
    "digits, _ and -, and does not look like a scene id of the release"
)
_NOT_USED = "is not used: it lacks the name, the place or the files of a scene"
_NO_FOLDER = "is not a folder, or a link that leads nowhere"


@dataclass(frozen=True, slots=True)
class RawScene:
    """The files of one scan, whether they exist or not.

    Attributes:
        scene_id: Its name.
        directory: The folder that holds its files.
        problem: The reason why the scene cannot be used, without the folder's name; empty if it
            can be used.
    """

    scene_id: SceneId
    directory: Path
    problem: str = ""

    @property
    def is_own(self) -> bool:
        """Whether the scene is not from the release."""
        return SceneId.is_own(self.scene_id)

    @property
    def split(self) -> Split | None:
        """The split of the official lists; of an own scene, train in `scans`, test elsewhere.

        None for a scene that has the form of the release's, and that no list contains.
        """
        if not self.is_own:
            return find_official_split(self.scene_id)
        is_train = self.directory.absolute().parent.name == SPLIT_DIRS[Split.TRAIN]
        return Split.TRAIN if is_train else Split.TEST

    def path(self, kind: FileKind) -> Path:
        """Return the path of the file of one kind."""
        return self.directory / f"{self.scene_id}{kind.suffix}"

    def find_groups_kind(self) -> FileKind | None:
        """Find the aggregation file to use, which groups segments into objects.

        Returns:
            The kind of the aggregation of the mesh or, if the scene has none, of that of the
            high-resolution mesh; None if the scene has neither.
        """
        for kind in (AGGREGATION, HIGH_RESOLUTION_AGGREGATION):
            if os.path.lexists(self.path(kind)):
                return kind
        return None


def repair_hint(path: Path) -> str:
    """Return what to do about a raw file that is missing or damaged."""
    is_of_release = find_official_split(path.parent.name) or path.name in SHARED_KINDS
    return _HINT_RELEASE if is_of_release else _HINT_OWN_FILES


@contextmanager
def naming_file(path: Path) -> Iterator[None]:
    """Turn a ContentError of the enclosed code into a FileError of this file."""
    try:
        yield
    except ContentError as error:
        raise FileError(path, error.message, repair_hint(path)) from None


def find_raw_scenes(raw_dir: Path, *, may_be_empty: bool = False) -> dict[SceneId, RawScene]:
    """Find the scenes of a raw tree, without opening their files.

    A scene of the release is a folder with a scene id; an own scene is any other folder below
    `scans` or `scans_test` that holds files of its name. If a scene has several folders (the
    official download script leaves empty ones), the one with a mesh is used. A scene that cannot be
    used is found with its `problem`.

    Args:
        raw_dir: The tree, or the folder `scans` or `scans_test` of one.
        may_be_empty: Whether there may be no scene, as in a tree that holds only `tasks/`.

    Returns:
        Scenes by id, sorted.

    Raises:
        MissingFileError: `raw_dir` does not exist. It holds no scene, unless `may_be_empty`.
        FileError: A folder cannot be read, or `scans` or `scans_test` is not one.
    """
    if not raw_dir.is_dir():
        raise MissingFileError(raw_dir, "no such folder", _HINT_LAYOUT)
    scenes: dict[SceneId, RawScene] = {}
    for entry in _iter_entries(raw_dir):
        if _is_scene(entry):
            scene = RawScene(
                SceneId(entry.name), Path(entry), "" if _is_folder(entry) else _NO_FOLDER
            )
            other = scenes.get(scene.scene_id)
            scenes[scene.scene_id] = scene if other is None else _choose_scene(other, scene)
    if not scenes and not may_be_empty:
        problem = "; ".join(["holds no scene folders", *map(str, find_strangers(raw_dir)[:1])])
        raise MissingFileError(raw_dir, problem, _HINT_LAYOUT)
    return dict(sorted(scenes.items()))


def find_strangers(raw_dir: Path) -> list[Finding]:
    """Find the folders and meshes beside the scenes that are not used.

    Returns:
        For each, an error if it lies in `scans` or `scans_test` and looks like a scene; a note
        otherwise. Sorted by path.

    Raises:
        FileError: A folder cannot be read.
    """
    findings = []
    for entry in _iter_entries(raw_dir):
        if _is_scene(entry):
            continue
        is_folder = _is_folder(entry)
        names = [file.name for file in _list(Path(entry))] if is_folder else [entry.name]
        has_scene_files = any(name.endswith(_SCENE_SUFFIXES) for name in names)
        is_in_place = _is_place_for_own(entry)
        if has_scene_files or (is_in_place and (is_folder or entry.is_symlink())):
            severity: Severity = "error" if has_scene_files and is_in_place else "note"
            findings.append(
                Finding(
                    message=_NOT_USED,
                    subject=str(Path(entry)),
                    severity=severity,
                    hint=_HINT_OWN,
                )
            )
    return sorted(findings, key=lambda finding: finding.subject)


def find_shared_files(raw_dir: Path) -> dict[FileKind, Path]:
    """Find the files in `tasks/`, which belong to no scene. The label map is not among them."""
    paths = {}
    for kind in SHARED_KINDS.values():
        path = raw_dir / TASKS_DIR / kind.suffix
        if kind is not LABEL_MAP and os.path.lexists(path):
            paths[kind] = path
    return paths


def has_segmentation_files(scenes: Iterable[RawScene]) -> bool:
    """Whether any of the scenes has a mesh or a file of an annotation.

    If so, every scene should have the files that segmentation needs. If not, the tree may hold
    other files on purpose, for example only sensor streams.
    """
    kinds = (MESH, LABELS_MESH, SEGMENTS, AGGREGATION)
    return any(os.path.lexists(scene.path(kind)) for scene in scenes for kind in kinds)


def _iter_entries(raw_dir: Path) -> Iterator[os.DirEntry[str]]:
    """Iterate over everything that may be a scene, in the tree and in its folders of scenes."""
    for folder in (raw_dir, raw_dir / "scans", raw_dir / "scans_test"):
        if not os.path.lexists(folder):
            continue
        for entry in _list(folder):
            if entry.name not in _OTHER_FOLDERS:
                yield entry


def _list(folder: Path) -> list[os.DirEntry[str]]:
    """List the entries of a folder, without hidden ones."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not entry.name.startswith(".")]
    except OSError as error:
        raise FileError(folder, f"cannot be listed: {error.strerror or error}") from error


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether an entry is a folder, or a link to one; False if that cannot be found out."""
    with suppress(OSError):
        return entry.is_dir()
    return False


def _is_place_for_own(entry: os.DirEntry[str]) -> bool:
    """Whether an own scene may lie here: in `scans` or `scans_test`."""
    return Path(entry).absolute().parent.name in _SCENE_DIRS


def _is_scene(entry: os.DirEntry[str]) -> bool:
    """Whether an entry has a scene id of the release, or is a folder with an own scene."""
    if SceneId.is_of_release(entry.name):
        return True
    if not SceneId.is_own(entry.name) or not _is_place_for_own(entry) or not _is_folder(entry):
        return False
    names = {file.name for file in _list(Path(entry))}
    return any(f"{entry.name}{suffix}" in names for suffix in KINDS)


def _choose_scene(first: RawScene, second: RawScene) -> RawScene:
    """Choose the one of two folders of a scene that has a mesh; the first one if neither has.

    If both have one, the first is returned with a `problem`.
    """
    # A mesh that is a link to nothing does not make its folder a choice, so os.path.exists is used
    # here, not lexists. Unlike Path.exists, it returns False if access fails.
    if not os.path.exists(second.path(MESH)):  # noqa: PTH110
        return first
    if not os.path.exists(first.path(MESH)):  # noqa: PTH110
        return second
    problem = (
        f"has the same scene as {second.directory}, and both have a mesh; remove one of the two"
    )
    return replace(first, problem=problem)
