"""Paths and names of the files of the release.

A path that is a link to nothing counts as existing (`os.path.lexists`): reading the file then fails
with an error that names it, and the file is not overlooked.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from scannet_prep.base.files import describe_kind, is_hidden_or_temporary
from scannet_prep.errors import FileError, MissingFileError
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
from scannet_prep.release.scene import SceneId

_SCENE_ID_LENGTH = len("scene0000_00")
# Folders of the release that are not scenes.
_OTHER_FOLDERS = {*SPLIT_DIRS.values(), TASKS_DIR}
# The default folder of `scannet-prep download`, which a hint need not name.
_DEFAULT_RAW_DIR = Path("data/ScanNet")


@dataclass(frozen=True, slots=True)
class RawScene:
    """The files of one scan, whether they exist or not.

    Attributes:
        scene_id: Its name.
        parent: The folder that contains its folder.
        problem: The reason why the scene cannot be used, without the folder's name; empty if it
            can be used. Either the path of the scene is not a folder, or two folders have its name.
    """

    scene_id: SceneId
    parent: Path
    problem: str = ""

    @property
    def directory(self) -> Path:
        """The folder that holds its files."""
        return self.parent / self.scene_id

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


def download_hint(path: Path) -> str:
    """Return the hint of an error about a raw file: the command that downloads it again.

    Args:
        path: `<raw>/scans/<scene>/<scene><suffix>`, or `<raw>/<scene>/<scene><suffix>`.
    """
    scene_id = path.parent.name
    if not (SceneId.is_of_release(scene_id) and path.name.startswith(scene_id)):
        return "download it again: scannet-prep download --types seg --verify"
    raw_dir = path.parents[1]
    if raw_dir.name in SPLIT_DIRS.values():
        raw_dir = raw_dir.parent
    target = "" if raw_dir == _DEFAULT_RAW_DIR else f" -o {quote(str(raw_dir))}"
    suffix = path.name.removeprefix(scene_id)
    return (
        f"download it again: scannet-prep download --types {suffix}{target} "
        f"--scenes {scene_id} --verify"
    )


def find_raw_scenes(raw_dir: Path, *, may_be_empty: bool = False) -> dict[SceneId, RawScene]:
    """Find the scenes of a release: `scans/<id>`, `scans_test/<id>`, or `<id>` directly below.

    If a scene has several folders (the official download script leaves empty ones), the one with a
    mesh is used. A scene with two meshes is found with a `problem`, and so is a file or a broken
    link that has the name of a scene.

    Args:
        raw_dir: The tree.
        may_be_empty: Whether there may be no scene folder, as in a tree that holds only `tasks/`.

    Returns:
        Scenes by id, sorted.

    Raises:
        MissingFileError: `raw_dir` does not exist. It holds no scene folder, unless `may_be_empty`.
        FileError: A folder cannot be read, or `scans` or `scans_test` is not one.
    """
    hint = (
        "name the folder that holds scans/ and scans_test/ "
        f"(expected, for example, {raw_dir}/scans/scene0000_00); "
        "to try the program without ScanNet data: scannet-prep demo"
    )
    if not raw_dir.is_dir():
        raise MissingFileError(raw_dir, "no such folder", hint)

    scenes: dict[SceneId, RawScene] = {}
    for parent in (raw_dir, raw_dir / "scans", raw_dir / "scans_test"):
        for scene in _iter_scenes(parent):
            other = scenes.get(scene.scene_id)
            chosen = scene if other is None else _choose_scene(other, scene)
            scenes[scene.scene_id] = chosen
    if not scenes and not may_be_empty:
        raise MissingFileError(raw_dir, "holds no scene folders", hint)
    return {scene_id: scenes[scene_id] for scene_id in sorted(scenes)}


def _choose_scene(first: RawScene, second: RawScene) -> RawScene:
    """Choose the one of two folders of a scene that has a mesh; the first one if neither has.

    If both have one, the first is returned with a `problem`.
    """
    # A mesh that is a link to nothing is no reason to choose its folder, so os.path.exists is used
    # here, not lexists. Unlike Path.exists, it returns False if access fails.
    if not os.path.exists(second.path(MESH)):  # noqa: PTH110
        return first
    if not os.path.exists(first.path(MESH)):  # noqa: PTH110
        return second
    problem = (
        f"has the same scene as {second.directory}, and both have a mesh; remove one of the two"
    )
    return replace(first, problem=problem)


def find_kind(name: str) -> FileKind | None:
    """Find the kind of a file by its name; None if it is not a file of the release."""
    if name in SHARED_KINDS:
        return SHARED_KINDS[name]
    scene_id = name[:_SCENE_ID_LENGTH]
    suffix = name[_SCENE_ID_LENGTH:]
    return KINDS.get(suffix) if SceneId.is_of_release(scene_id) else None


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


def find_strangers(scenes: Mapping[SceneId, RawScene]) -> list[Path]:
    """Find the folders that are ignored because their names are not scene ids.

    Only folders that contain a scene are searched. Other folders of the release, such as `tasks`,
    are not listed, nor are folders whose names have a suffix.

    Args:
        scenes: From `find_raw_scenes`.

    Returns:
        Their paths, sorted.

    Raises:
        FileError: A folder cannot be read.
    """
    parents = {scene.parent for scene in scenes.values()}
    strangers = []
    for parent in parents:
        for entry in _list(parent):
            if entry.name in scenes or entry.name in _OTHER_FOLDERS:
                continue
            # Links are not followed and count as folders. A link to a file, such as the label map,
            # is recognized by the suffix of its name.
            path = Path(entry)
            may_be_folder = entry.is_dir(follow_symlinks=False) or entry.is_symlink()
            if may_be_folder and not path.suffix:
                strangers.append(path)
    return sorted(strangers)


def _iter_scenes(parent: Path) -> Iterator[RawScene]:
    """Iterate over the scenes directly below a folder, which need not exist."""
    if not os.path.lexists(parent):
        return
    problem = _find_problem(parent)
    if problem:
        raise FileError(parent, problem)
    for entry in _list(parent):
        if SceneId.is_of_release(entry.name):
            yield RawScene(SceneId(entry.name), parent, _find_problem(entry))


def _list(folder: Path) -> list[os.DirEntry[str]]:
    """List the entries of a folder, without hidden and temporary ones."""
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not is_hidden_or_temporary(entry.name)]
    except OSError as error:
        raise FileError(folder, f"cannot be read: {error.strerror or error}") from error


def _find_problem(entry: os.DirEntry[str] | Path) -> str:
    """Describe why a directory entry cannot be used as a folder; empty if it can."""
    try:
        if entry.is_dir():
            return ""
        return f"is {describe_kind(entry.stat().st_mode)}, expected a folder"
    except FileNotFoundError:
        return "is a link that leads nowhere, expected a folder"
    except OSError as error:
        # For example, a link to itself, or a stale handle of a network file system.
        return f"cannot be accessed: {error.strerror or error}"
