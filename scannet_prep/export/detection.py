"""Arrays in the layout of VoteNet's script, and of those that ScanRefer and others made from it.

    <folder>/<scene>_vert.npy          float32 (N, 6 or 9): x y z, red green blue 0..255, normal
    <folder>/<scene>_sem_label.npy     uint32 (N,): nyu40 ids, 0 unannotated
    <folder>/<scene>_ins_label.npy     uint32 (N,): `objectId` + 1, 0 none
    <folder>/<scene>_bbox.npy          float64 (K, 7 or 8): centre, size, nyu40 id, `objectId`

N is the number of vertices, or 50,000 if a scene has more: then so many are drawn at random. The
box of an object always encloses all its vertices.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import ScanNetPrepError, UsageError
from scannet_prep.export import Setting
from scannet_prep.export.format import (
    ExportedScene,
    ExportFormat,
    ExportOptions,
    encode_npy,
)
from scannet_prep.export.objects import (
    ObjectBox,
    find_object_boxes,
    mask_objects,
    number_objects,
)
from scannet_prep.processed.groups import raw_ids_of_groups, table_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.files import AGGREGATION, INFO, SEGMENTS
from scannet_prep.release.irregularities import WarningKind
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split

_DEFAULT_POINTS = 50_000
# Parts of a scene that boxes need, by the warning that a part is missing: the name of the part, and
# the types of the raw files that contain it.
_NEEDED_PARTS = {
    WarningKind.NO_AGGREGATION: ("groups", f"{AGGREGATION.suffix} {SEGMENTS.suffix}"),
    WarningKind.NO_INFO: ("axis alignment", INFO.suffix),
}


class DetectionFormat(ExportFormat):
    """A flat folder of arrays, with a prefix per scene and without lists."""

    draws_points = True
    box_classes: ClassVar[Collection[int]]
    """The nyu40 ids of the classes that have boxes."""

    def __init__(self, options: ExportOptions) -> None:
        if options.label_set == SCANNET200:
            raise UsageError(
                f"the format {self.name} has no ScanNet200: its labels are nyu40 ids",
                "leave out --label-set",
            )
        if options.points == "all" and options.seed is not None:
            raise UsageError("all points need no seed", "leave out --seed")
        super().__init__(options)
        self._points = _DEFAULT_POINTS if options.points is None else options.points
        self._seed = options.seed or 0
        if self._points != "all" and not (isinstance(self._points, int) and self._points >= 1):
            raise UsageError(f"points is {self._points!r}, expected a positive number or 'all'")
        if self._seed < 0:
            raise UsageError(f"seed is {self._seed}, expected a number of at least 0")

    @property
    def settings(self) -> dict[str, Setting]:
        """The settings that all scenes of an export share, for its manifest."""
        return {**super().settings, "points": self._points, "seed": self._seed}

    def default_label_set(self, stored: LabelSet) -> LabelSet:  # noqa: ARG002 - as in ExportFormat
        """Return ScanNet20, whose raw ids are nyu40 ids."""
        return SCANNET20

    def encode_scene(self, scene: ProcessedScene) -> ExportedScene:
        """Make the files of a scene.

        Raises:
            ScanNetPrepError: It has no groups or no axis alignment because a file was missing.
        """
        _check_is_annotated(scene)
        arrays = self.make_arrays(scene, self.choose_vertices(scene))
        scene_id = scene.meta.scene_id
        return ExportedScene(
            {f"{scene_id}_{suffix}.npy": encode_npy(array) for suffix, array in arrays.items()}
        )

    @abstractmethod
    def make_arrays(
        self, scene: ProcessedScene, chosen: NDArray[np.intp]
    ) -> dict[str, NDArray[Any]]:
        """Make the arrays of a scene, by the suffix of their files.

        Args:
            scene: The scene, in the frame and the label set that it was processed with.
            chosen: intp (N,), the vertices that become points.
        """

    def choose_vertices(self, scene: ProcessedScene) -> NDArray[np.intp]:
        """Choose the vertices of a scene that become its points.

        The choice depends only on the seed, the scene id and the number of vertices. It uses the
        raw output of a bit generator, which is the same in all versions of NumPy.

        Returns:
            intp (N,), ascending.
        """
        vertex_count = len(scene.points)
        if self._points == "all" or self._points >= vertex_count:
            return np.arange(vertex_count)
        # One random number of 64 bits per vertex, (V,). The vertices with the smallest are chosen.
        generator = np.random.PCG64([self._seed, *scene.meta.scene_id.encode()])
        numbers = generator.random_raw(vertex_count)
        largest_chosen = np.partition(numbers, self._points - 1)[self._points - 1]
        # Without the slice, there would be too many if several vertices had the largest number.
        return np.flatnonzero(numbers <= largest_chosen)[: self._points]

    def find_boxes(self, scene: ProcessedScene) -> list[ObjectBox]:
        """Find the boxes of a scene, in the frame of its points and by ascending object id.

        They are computed in float32, as in the programs.
        """
        columns = np.ascontiguousarray(scene.points.T)
        object_ids = _number_objects(scene)
        return find_object_boxes(scene, columns, self.label_set, self.box_classes, object_ids)

    def label_vertices(
        self, scene: ProcessedScene, chosen: NDArray[np.intp]
    ) -> dict[str, NDArray[Any]]:
        """Return the nyu40 ids and the objects of chosen vertices, each uint32 (N,), by suffix.

        The nyu40 id of a vertex is that of its group, and 0 without a group, also if the labels of
        the scene are from `labels.ply`. The programs take the points without an object for one
        more object: if the first of them had a class with boxes, all of them would get votes.
        """
        instances = scene.instances[chosen]
        nyu40_id_of_group = table_by_group(
            raw_ids_of_groups(scene.meta.groups, self.label_set), none=0
        )
        return {
            "sem_label": nyu40_id_of_group.take(instances).astype(np.uint32),
            "ins_label": mask_objects(instances, _number_objects(scene)).astype(np.uint32),
        }


def stack_columns(
    scene: ProcessedScene, chosen: NDArray[np.intp], *, has_normals: bool
) -> NDArray[np.float32]:
    """Stack points, colours and perhaps normals of chosen vertices, float32 (N, 6 or 9)."""
    columns: list[NDArray[Any]] = [scene.points[chosen], scene.colors[chosen]]
    if has_normals:
        columns.append(scene.normals[chosen])
    return np.hstack(columns, dtype=np.float32)


def _number_objects(scene: ProcessedScene) -> dict[int, int]:
    """Return the `objectId` of each group, by the id of the group.

    In the programs, later groups replace earlier ones, and descriptions name objects by these
    numbers.
    """
    return number_objects(scene.meta.groups, uses_last_copies=True)


def _check_is_annotated(scene: ProcessedScene) -> None:
    """Check that a train or val scene was processed from all files that its boxes depend on.

    Raises:
        ScanNetPrepError: It has no groups or no axis alignment because a file was missing.
    """
    if scene.meta.split is Split.TEST:
        return
    scene_id = scene.meta.scene_id
    for warning in scene.meta.warnings:
        if warning.kind in _NEEDED_PARTS:
            part, suffixes = _NEEDED_PARTS[warning.kind]
            raise ScanNetPrepError(
                f"{scene_id} has no {part}, which its boxes need",
                f"download {suffixes}, then process the scene again",
            )
