"""Where the release's files lie, and what they are called."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from shlex import quote

from scannet_prep.base.errors import FileError, MissingFileError
from scannet_prep.base.files import describe_kind, is_hidden_or_temporary
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
_OTHER_FOLDERS = {*SPLIT_DIRS.values(), TASKS_DIR}  # of the release


@dataclass(frozen=True, slots=True)
class RawScene:
    """The files of one scan, whether they exist or not.

    Attributes:
        scene_id: Its name.
        parent: Where its folder lies.
        problem: Why the scene cannot be used, without the folder's name: it is not a folder, or there are two of that
            name; empty where nothing is wrong.
    """

    scene_id: SceneId
    parent: Path
    problem: str = ""

    @property
    def directory(self) -> Path:
        """The folder that holds its files."""
        return self.parent / self.scene_id

    def path(self, kind: FileKind) -> Path:
        """The file of one kind."""
        return self.directory / f"{self.scene_id}{kind.suffix}"

    def find_groups_kind(self) -> FileKind | None:
        """The groups that count: those for the mesh, else those for the high-resolution one; None where neither is."""
        kinds = (AGGREGATION, HIGH_RESOLUTION_AGGREGATION)
        return next((kind for kind in kinds if os.path.lexists(self.path(kind))), None)


def download_hint(path: Path) -> str:
    """Return the hint of an error about a raw file of a scene: the command that fetches the file again.

    Args:
        path: `<raw>/scans/<scene>/<scene><suffix>`, or `<raw>/<scene>/<scene><suffix>`.
    """
    scene_id = path.parent.name
    if not (SceneId.is_valid(scene_id) and path.name.startswith(scene_id)):
        return "download it again: scannet-prep download --types seg --verify"
    raw_dir = path.parents[2] if path.parents[1].name in SPLIT_DIRS.values() else path.parents[1]
    target = "" if raw_dir == Path("data/ScanNet") else f" -o {quote(str(raw_dir))}"
    suffix = path.name.removeprefix(scene_id)
    return f"download it again: scannet-prep download --types {suffix}{target} --scenes {scene_id} --verify"


def find_raw_scenes(raw_dir: Path, *, may_be_empty: bool = False) -> dict[SceneId, RawScene]:
    """Find the scenes of a release: `scans/<id>`, `scans_test/<id>`, or `<id>` directly below.

    Where a scene has several folders (the official download script leaves empty ones), the one with a mesh counts. What
    has the name of a scene and is not a folder is found too, with its `problem`, and so is a scene with two meshes.

    Args:
        raw_dir: The tree.
        may_be_empty: Whether there may be no scene folder, as in a tree that holds only `tasks/`.

    Returns:
        Scenes by id, sorted.

    Raises:
        MissingFileError: `raw_dir` does not exist, or holds no scene folder and must not be empty.
        FileError: A folder cannot be read, or `scans` or `scans_test` is not one.
    """
    scenes, is_there = dict[SceneId, RawScene](), raw_dir.is_dir()
    for parent in (raw_dir, raw_dir / "scans", raw_dir / "scans_test") if is_there else ():
        for scene in _iter_scenes(parent):
            other = scenes.setdefault(scene.scene_id, scene)
            if other is scene or not os.path.exists(scene.path(MESH)):  # noqa: PTH110 - which never raises
                continue
            if os.path.exists(other.path(MESH)):  # noqa: PTH110
                problem = f"has the same scene as {scene.directory}, and both have a mesh; remove one of the two"
                scene = replace(other, problem=problem)
            scenes[scene.scene_id] = scene
    if not scenes and not (is_there and may_be_empty):
        hint = (
            f"name the folder that holds scans/ and scans_test/ (expected, for example, {raw_dir}/scans/scene0000_00); "
            "to try the program without ScanNet data: scannet-prep demo"
        )
        raise MissingFileError(
            raw_dir, "holds no scene folders" if is_there else "no such folder", hint
        )
    return {scene_id: scenes[scene_id] for scene_id in sorted(scenes)}


def find_kind(name: str) -> FileKind | None:
    """Find the kind of a file by its name; None if it is not a file of the release."""
    if name in SHARED_KINDS:
        return SHARED_KINDS[name]
    scene_id, suffix = name[:_SCENE_ID_LENGTH], name[_SCENE_ID_LENGTH:]
    return KINDS.get(suffix) if SceneId.is_valid(scene_id) else None


def find_shared_files(raw_dir: Path) -> dict[FileKind, Path]:
    """Find the files in `tasks/`, which belong to no scene; the label map is not one of them."""
    paths = {
        kind: raw_dir / TASKS_DIR / kind.suffix
        for kind in SHARED_KINDS.values()
        if kind is not LABEL_MAP
    }
    return {kind: path for kind, path in paths.items() if os.path.lexists(path)}


def has_segmentation_files(scenes: Iterable[RawScene]) -> bool:
    """Whether any scene has a mesh or an annotation, so that every scene should have them.

    A tree may also hold only sensor streams, for example.
    """
    kinds = (MESH, LABELS_MESH, SEGMENTS, AGGREGATION)
    return any(os.path.lexists(scene.path(kind)) for scene in scenes for kind in kinds)


def find_strangers(scenes: Mapping[SceneId, RawScene]) -> list[Path]:
    """Find folders beside those of the scenes whose names are not scene ids, so that nobody reads them.

    Args:
        scenes: From `find_raw_scenes`.

    Raises:
        FileError: A folder cannot be read.
    """
    parents = {scene.parent for scene in scenes.values()}
    entries = [entry for parent in parents for entry in _list(parent) if entry.name not in scenes]
    # Links too, wherever they lead.
    folders = [
        entry for entry in entries if entry.is_dir(follow_symlinks=False) or entry.is_symlink()
    ]
    return sorted(
        Path(entry)
        for entry in folders
        if entry.name not in _OTHER_FOLDERS and not Path(entry).suffix
    )


def _iter_scenes(parent: Path) -> Iterator[RawScene]:
    if not os.path.lexists(parent):
        return
    if problem := _find_problem(parent):
        raise FileError(parent, problem)
    for entry in _list(parent):
        if SceneId.is_valid(entry.name):
            yield RawScene(SceneId(entry.name), parent, _find_problem(entry))


def _list(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return [entry for entry in entries if not is_hidden_or_temporary(entry.name)]
    except OSError as error:
        raise FileError(folder, f"cannot be read: {error.strerror or error}") from error


def _find_problem(entry: os.DirEntry[str] | Path) -> str:
    """What keeps a directory entry from being a folder; empty where nothing does."""
    try:
        if entry.is_dir():
            return ""
        return f"is {describe_kind(entry.stat().st_mode)}, expected a folder"
    except FileNotFoundError:
        return "is a link that leads nowhere, expected a folder"
    except OSError as error:  # a link to itself, or a stale handle of a network file system
        return f"cannot be looked at: {error.strerror or error}"
