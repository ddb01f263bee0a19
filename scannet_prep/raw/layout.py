"""Where the release's files lie, and what they are called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from scannet_prep.errors import FileError, MissingFileError
from scannet_prep.files import is_hidden_or_temporary
from scannet_prep.release import (
    AGGREGATION,
    HIGH_RESOLUTION_AGGREGATION,
    INFO,
    LABELS_MESH,
    MESH,
    SEGMENTS,
)
from scannet_prep.scene import SceneId

MESH_SUFFIX = MESH.suffix
LABELS_MESH_SUFFIX = LABELS_MESH.suffix
SEGMENTS_SUFFIX = SEGMENTS.suffix
AGGREGATION_SUFFIX = AGGREGATION.suffix
HIGH_RESOLUTION_AGGREGATION_SUFFIX = HIGH_RESOLUTION_AGGREGATION.suffix
INFO_SUFFIX = INFO.suffix


@dataclass(frozen=True, slots=True)
class RawScene:
    """The files of one scan, whether they exist or not.

    Attributes:
        scene_id: Its name.
        directory: The folder that holds its files.
        rival_directory: A second folder of the same name that holds a mesh too, so that it is unclear which one counts.
    """

    scene_id: SceneId
    directory: Path
    rival_directory: Path | None = None

    def path(self, suffix: str) -> Path:
        """The file of one kind, by what follows the scene id in its name."""
        return self.directory / f"{self.scene_id}{suffix}"

    @property
    def mesh_path(self) -> Path:
        """Decimated mesh with colour."""
        return self.path(MESH_SUFFIX)

    @property
    def labels_mesh_path(self) -> Path:
        """The same mesh with a nyu40 id per vertex; train and val only."""
        return self.path(LABELS_MESH_SUFFIX)

    @property
    def segments_path(self) -> Path:
        """Over-segmentation of the mesh; train and val only."""
        return self.path(SEGMENTS_SUFFIX)

    @property
    def aggregation_path(self) -> Path:
        """Annotated groups for that over-segmentation; train and val only."""
        return self.path(AGGREGATION_SUFFIX)

    @property
    def high_resolution_aggregation_path(self) -> Path:
        """Annotated groups for the high-resolution mesh; train and val only."""
        return self.path(HIGH_RESOLUTION_AGGREGATION_SUFFIX)

    def find_aggregation(self) -> Path | None:
        """The groups that count: those for the mesh, else those for the high-resolution one; None where neither is."""
        paths = (self.aggregation_path, self.high_resolution_aggregation_path)
        return next((path for path in paths if path.exists()), None)

    @property
    def info_path(self) -> Path:
        """Metadata: axis alignment and scene type."""
        return self.path(INFO_SUFFIX)


def find_raw_scenes(raw_dir: Path) -> dict[SceneId, RawScene]:
    """Find the scene folders of a release: `scans/<id>`, `scans_test/<id>`, or `<id>` directly below.

    Where a scene has several folders (the official download script leaves empty ones), the one with a mesh counts;
    where several have one, the scene's `rival_directory` is set.

    Returns:
        Scenes by id, sorted.

    Raises:
        MissingFileError: `raw_dir` does not exist or holds no scene folder.
        FileError: A folder cannot be read.
    """
    if not raw_dir.is_dir():
        raise MissingFileError(raw_dir, "no such folder", _where_to_get_scenes(raw_dir))
    scenes: dict[SceneId, RawScene] = {}
    for parent in (raw_dir, raw_dir / "scans", raw_dir / "scans_test"):
        for scene in _iter_scene_folders(parent):
            other = scenes.setdefault(scene.scene_id, scene)
            if other is scene or not scene.mesh_path.exists():
                continue
            if other.mesh_path.exists():
                scene = replace(other, rival_directory=scene.directory)
            scenes[scene.scene_id] = scene
    if not scenes:
        raise MissingFileError(raw_dir, "holds no scene folders", _where_to_get_scenes(raw_dir))
    return dict(sorted(scenes.items()))


def _iter_scene_folders(parent: Path) -> Iterator[RawScene]:
    if not parent.is_dir():
        return
    try:
        paths = list(parent.iterdir())
    except OSError as error:
        raise FileError(parent, f"cannot be read: {error.strerror or error}") from error
    for path in paths:
        if not is_hidden_or_temporary(path.name) and SceneId.is_valid(path.name) and path.is_dir():
            yield RawScene(SceneId(path.name), path)


def _where_to_get_scenes(raw_dir: Path) -> str:
    return (
        f"give the folder that holds scans/ and scans_test/ (expected, for example, {raw_dir}/scans/scene0000_00); "
        "to see the program at work without ScanNet data: scannet-prep demo"
    )


def find_orphans(directory: Path) -> list[Path]:
    """Files that the official download script leaves behind where it is interrupted."""
    return sorted(path for path in directory.glob("tmp*") if path.is_file())
