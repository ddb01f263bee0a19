"""A scene to show: its vertices, and the colours of each of its colourings.

Pages, pictures and coloured meshes are made from the same `ViewedScene`, so they agree. Vertices,
their order and their frame are those of the processed scene or of the sample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.processed.annotate import AnnotatedGroup
from scannet_prep.processed.groups import classes_of_instances
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, SCANNET200, LabelSet
from scannet_prep.release.scene import Split
from scannet_prep.view.categories import Coloring, categorize, color_classes
from scannet_prep.view.difference import color_difference
from scannet_prep.view.instance_colors import choose_colors
from scannet_prep.view.predicted import Prediction, Truth, color_error, color_prediction

COLORINGS = (
    "rgb",
    "scannet20",
    "scannet200",
    "instances",
    "segments",
    "normals",
    "prediction",
    "error",
    "prediction-2",
    "error-2",
    "difference",
)
"""Names of all colourings, in the order in which pages list them."""


class Colorings(Mapping[str, Coloring]):
    """The colourings of a scene by name; each is made on its first use.

    Args:
        makers: A function for each colouring, in any order.
    """

    def __init__(self, makers: Mapping[str, Callable[[], Coloring]]) -> None:
        self._makers = {name: makers[name] for name in COLORINGS if name in makers}
        self._made: dict[str, Coloring] = {}

    def __getitem__(self, name: str) -> Coloring:
        """Return a colouring."""
        if name not in self._made:
            self._made[name] = self._makers[name]()
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in the order of `COLORINGS`."""
        return iter(self._makers)

    def __len__(self) -> int:
        """Return the number of colourings."""
        return len(self._makers)

    def __contains__(self, name: object) -> bool:
        """Whether there is a colouring of that name. Does not make it."""
        return name in self._makers


@dataclass(frozen=True, slots=True, eq=False)
class ViewedScene:
    """A scene to show.

    Attributes:
        scene_id: The scene; may be empty for a sample.
        split: The split; empty if it is unknown.
        frame: `axis-aligned` or `frame of the scan`; empty if it is unknown.
        points: float32 (V, 3), metres, finite; z is up.
        normals: float32 or float16 (V, 3), unit length, pointing to the side from which the surface
            was seen; (0, 0, 0) where undefined. None if there are none.
        faces: int32 (F, 3), indices of vertices; None if they were not kept.
        colorings: Its colourings by name, in the order of `COLORINGS`. Test scenes have only `rgb`
            and `normals`, and those of predictions that need no annotation.
    """

    scene_id: str
    split: str
    frame: str
    points: NDArray[np.float32]
    normals: NDArray[np.floating[Any]] | None
    faces: NDArray[np.int32] | None
    colorings: Mapping[str, Coloring]

    def check_coloring(self, name: str) -> None:
        """Check that the scene has a colouring.

        Raises:
            UsageError: It does not.
        """
        if name not in self.colorings:
            raise UsageError(
                f"{self.scene_id or 'the scene'}: cannot be coloured by {name!r}",
                f"it can be by: {', '.join(self.colorings)}",
            )

    def coloring(self, name: str) -> Coloring:
        """Return one of the colourings.

        Raises:
            UsageError: The scene has no colouring of that name.
        """
        self.check_coloring(name)
        return self.colorings[name]


def view_scene(
    scene: ProcessedScene,
    *,
    prediction: Prediction | None = None,
    second: Prediction | None = None,
) -> ViewedScene:
    """Make all colourings of a processed scene.

    Args:
        scene: The scene. Its points are finite and its faces refer to its vertices, as
            `find_problems` checks.
        prediction: The prediction of a program, for the same number of vertices.
        second: Another prediction to compare with it, of the same task and label set, but with
            another name.
    """
    meta = scene.meta
    is_annotated = meta.split != Split.TEST

    makers: dict[str, Callable[[], Coloring]] = {
        "rgb": lambda: Coloring("rgb", "colours of the scan", scene.colors),
        "normals": lambda: color_normals(scene.normals),
    }
    if is_annotated:
        makers["scannet20"] = lambda: color_labels(_read_train_ids(scene, SCANNET20), SCANNET20)
        makers["scannet200"] = lambda: color_labels(_read_train_ids(scene, SCANNET200), SCANNET200)
        makers["instances"] = lambda: color_instances(
            scene.points, scene.instances, meta.groups, meta.options.label_set
        )
    segments = scene.segments
    if segments is not None:
        is_computed = meta.segments_source == "computed"
        makers["segments"] = lambda: color_segments(segments, is_computed=is_computed)
    if prediction is not None:
        truth = None
        if is_annotated:
            truth = _read_truth(scene, prediction.label_set)
        makers |= _compare_predictions(scene.points, prediction, second, truth)
    return ViewedScene(
        scene_id=meta.scene_id,
        split=str(meta.split),
        frame="axis-aligned" if meta.options.align_axis else "frame of the scan",
        points=scene.points,
        normals=scene.normals,
        faces=scene.faces,
        colorings=Colorings(makers),
    )


def _read_train_ids(scene: ProcessedScene, label_set: LabelSet) -> NDArray[np.int64]:
    """Return the train id of each vertex, int64 (V,); -1 where unlabeled."""
    raw_ids = getattr(scene, label_set.raw_ids_key)
    return label_set.train_ids_from_raw_ids(raw_ids, -1)


def _read_truth(scene: ProcessedScene, label_set: LabelSet) -> Truth:
    """Return the annotation that predictions of a label set are compared with."""
    return Truth(
        labels=_read_train_ids(scene, label_set),
        instances=scene.instances,
        instance_labels=classes_of_instances(scene.instances, scene.meta.groups, label_set),
        names=_name_groups(scene.meta.groups, label_set),
    )


def _compare_predictions(
    points: NDArray[np.float32],
    first: Prediction,
    second: Prediction | None,
    truth: Truth | None,
) -> dict[str, Callable[[], Coloring]]:
    """Return functions that make the colourings of one or two predictions."""
    makers = {"prediction": lambda: color_prediction(first, points, truth)}
    if truth is not None:
        makers["error"] = lambda: color_error(first, truth)
    if second is None:
        return makers
    makers["prediction-2"] = lambda: color_prediction(
        second, points, truth, other=first, name="prediction-2"
    )
    if truth is not None:
        makers["error-2"] = lambda: color_error(second, truth, name="error-2")
    makers["difference"] = lambda: color_difference(first, second, truth)
    return makers


def color_labels(train_ids: NDArray[np.integer[Any]], label_set: LabelSet) -> Coloring:
    """Colour vertices by the official colour of their class; other numbers are unlabeled."""
    return color_classes(label_set.name.lower(), train_ids, label_set, title=label_set.name)


def color_instances(
    points: NDArray[np.floating[Any]],
    instances: NDArray[np.integer[Any]],
    groups: Sequence[AnnotatedGroup] = (),
    label_set: LabelSet = SCANNET20,
) -> Coloring:
    """Colour vertices by instance: neighbours have colours that differ.

    Args:
        points: (V, 3), metres.
        instances: Integers (V,), negative for none.
        groups: The annotated groups, by which instances are named.
        label_set: The label set of the names.
    """
    names = _name_groups(groups, label_set)

    def name_of(instance: int) -> str:
        return names.get(instance, f"instance {instance}")

    return categorize(
        "instances",
        instances,
        title="instances",
        name_of=name_of,
        color_of=choose_colors(points, instances).__getitem__,
        groups={group.id: group for group in groups},
        is_per_scene=True,
    )


def color_segments(segments: NDArray[np.integer[Any]], *, is_computed: bool = False) -> Coloring:
    """Colour vertices by segment; the title shows if the segments are not from the release."""
    title = "computed segments" if is_computed else "segments"
    return categorize(
        "segments", segments, title=title, name_of="segment {}".format, is_per_scene=True
    )


def color_normals(normals: NDArray[np.floating[Any]]) -> Coloring:
    """Colour vertices by their normal: -1..1 of x, y, z as 0..255 of red, green, blue."""
    scaled = normals.astype(np.float32) * np.float32(127.5) + np.float32(128)
    return Coloring("normals", "normals", scaled.clip(0, 255).astype(np.uint8))


def _name_groups(groups: Sequence[AnnotatedGroup], label_set: LabelSet) -> dict[int, str]:
    """Name groups after class and raw category, such as `chair 12 (office chair)`.

    A group without a class, or whose raw category is its class, has one name only: `chair 12`.
    """
    has_nyu40_ids = label_set.raw_ids_key == "nyu40_ids"
    raw_ids = [group.nyu40_id if has_nyu40_ids else group.scannet_id for group in groups]
    train_ids = label_set.train_ids_from_raw_ids(np.array(raw_ids, np.int64), -1)
    class_names = label_set.names
    names = {}
    for group, train_id in zip(groups, train_ids.tolist(), strict=True):
        if train_id < 0 or class_names[train_id] == group.raw_category:
            names[group.id] = f"{group.raw_category} {group.id}"
        else:
            names[group.id] = f"{class_names[train_id]} {group.id} ({group.raw_category})"
    return names
