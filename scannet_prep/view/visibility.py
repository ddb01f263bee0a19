"""The part of a scene that a picture shows: without hidden classes, without the ceiling."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

import numpy as np
from numpy.typing import NDArray

from scannet_prep.errors import UsageError
from scannet_prep.release.label_sets import SCANNET20, SCANNET200
from scannet_prep.view.camera import NEAR
from scannet_prep.view.categories import UNLABELED, Coloring
from scannet_prep.view.coloring import ViewedScene

_FLOOR_QUANTILE = 0.01
_CLASS_COLORINGS = ("scannet20", "scannet200")
_CLASS_NAMES = {UNLABELED, *SCANNET20.names, *SCANNET200.names}


@dataclass(frozen=True, slots=True)
class Visibility:
    """What is hidden.

    Attributes:
        hidden: Names of categories of the colouring, or of classes, which are hidden in every
            colouring.
        only: Names of the categories of the colouring to show; None for all.
        hidden_numbers: Numbers of hidden categories of the colouring.
        ceiling: Everything higher above the floor is hidden, in metres; None to hide nothing.
        clip: Everything outside of this box is hidden: both ends of x, of y and of z, in metres;
            None to hide nothing.
        others: What is hidden of other colourings, by name.
    """

    hidden: Collection[str] = ()
    only: Collection[str] | None = None
    hidden_numbers: Collection[int] = ()
    ceiling: float | None = None
    clip: tuple[float, ...] | None = None
    others: Mapping[str, Visibility] = field(default_factory=dict)

    @property
    def has_numbers(self) -> bool:
        """Whether categories of any colouring are hidden by number."""
        parts = (self, *self.others.values())
        return any(part.hidden_numbers for part in parts)

    def find_shown(self, scene: ViewedScene, coloring: Coloring) -> NDArray[np.bool_]:
        """Return which vertices are shown, bool (V,).

        Raises:
            UsageError: A hidden name is neither a category of the colouring nor a class, or the
                scene does not have one of the other colourings.
        """
        is_shown = np.ones(len(scene.points), np.bool_)
        if self.ceiling is not None:
            is_shown &= scene.points[:, 2] <= find_floor(scene.points) + self.ceiling
        if self.clip is not None:
            is_shown &= _find_inside(scene.points, self.clip)
        if coloring.indices is not None and (self.only is not None or self.hidden_numbers):
            is_listed = [
                number not in self.hidden_numbers and (self.only is None or each.name in self.only)
                for number, each in enumerate(coloring.categories)
            ]
            is_shown &= np.array(is_listed, np.bool_)[coloring.indices]
        for name in self.hidden:
            is_shown &= ~_find_named(name, scene, coloring)
        for other, visibility in self.others.items():
            if other not in scene.colorings:
                raise UsageError(
                    f"categories of {other!r} cannot be hidden: the scene has no such colouring",
                    f"its colourings: {', '.join(scene.colorings)}",
                )
            is_shown &= visibility.find_shown(scene, scene.colorings[other])
        return is_shown


def find_floor(points: NDArray[np.float32]) -> float:
    """Estimate the height of the floor, in metres: 1 % of the points are lower."""
    return float(np.quantile(points[:, 2], _FLOOR_QUANTILE))


def _find_inside(points: NDArray[np.float32], box: Sequence[float]) -> NDArray[np.bool_]:
    """Return which points are inside a clip box, bool (V,)."""
    start = points.min(axis=0).astype(np.float64)
    size = points.max(axis=0) - start
    # The handles of a page move by centimetres from the lowest corner of the scene, but links are
    # rounded. At its ends, a handle cuts nothing off.
    ends = np.round((np.array(box).reshape(3, 2) - start[:, np.newaxis]), 2)
    low = np.where(ends[:, 0] > 0, start + ends[:, 0], -np.inf)
    high = np.where(ends[:, 1] < size, start + ends[:, 1], np.inf)
    return np.asarray(((points >= low) & (points <= high)).all(axis=1))


def clip_near(
    scene: ViewedScene, coloring: Coloring, depths: NDArray[np.float32]
) -> tuple[ViewedScene, Coloring]:
    """Cut off the parts of triangles that are nearer to the camera than NEAR, or behind it.

    Args:
        scene: A scene; without triangles, it is returned unchanged.
        coloring: One of its colourings.
        depths: float32 (V,), the distances of the vertices in front of the camera, in metres.

    Returns:
        The scene and its colouring, with new vertices where triangles are cut.
    """
    faces = scene.faces
    if faces is None:
        return scene, coloring
    is_near = depths[faces] < NEAR
    near_counts = is_near.sum(axis=1)
    whole = faces[near_counts == 0]

    # Of triangles with one near corner, a part with four corners remains; near corner first.
    one_near = _rotate_first(faces[near_counts == 1], is_near[near_counts == 1])
    # Of triangles with two near corners, a triangle remains; far corner first.
    two_near = _rotate_first(faces[near_counts == 2], ~is_near[near_counts == 2])
    if not len(one_near) and not len(two_near):
        return replace(scene, faces=whole), coloring

    # The cut edges: from a far corner to a near one.
    far = np.concatenate([one_near[:, 1], one_near[:, 2], two_near[:, 0], two_near[:, 0]])
    near = np.concatenate([one_near[:, 0], one_near[:, 0], two_near[:, 1], two_near[:, 2]])
    shares = (depths[far] - np.float32(NEAR)) / (depths[far] - depths[near])
    cuts = scene.points[far] + (scene.points[near] - scene.points[far]) * shares[:, np.newaxis]
    # The number of the new vertex of each edge.
    numbers = (len(scene.points) + np.arange(len(far))).astype(faces.dtype)
    ends = np.cumsum([len(one_near), len(one_near), len(two_near)])
    first, second, third, fourth = np.split(numbers, ends)
    new_faces = np.concatenate(
        [
            whole,
            np.stack([first, one_near[:, 1], one_near[:, 2]], axis=1),
            np.stack([first, one_near[:, 2], second], axis=1),
            np.stack([two_near[:, 0], third, fourth], axis=1),
        ]
    )
    # New vertices have the colour and the normal of the far corner.
    vertices = np.concatenate([np.arange(len(scene.points)), far])
    clipped = replace(
        scene,
        points=np.concatenate([scene.points, cuts]),
        normals=None if scene.normals is None else scene.normals[vertices],
        faces=new_faces,
    )
    indices = None if coloring.indices is None else coloring.indices[vertices]
    return clipped, replace(coloring, colors=coloring.colors[vertices], indices=indices)


def _rotate_first(faces: NDArray[np.int32], is_first: NDArray[np.bool_]) -> NDArray[np.int32]:
    """Rotate triangles so that the marked corner is first, which does not turn them over."""
    rotations = (is_first.argmax(axis=1)[:, np.newaxis] + np.arange(3)) % 3
    return np.take_along_axis(faces, rotations, axis=1)


def _find_named(name: str, scene: ViewedScene, coloring: Coloring) -> NDArray[np.bool_]:
    """Find the vertices of a category of the colouring, or of a class, bool (V,).

    Raises:
        UsageError: There is no category and no class of that name.
    """
    class_colorings = [
        scene.colorings[each] for each in _CLASS_COLORINGS if each in scene.colorings
    ]
    known = set(_CLASS_NAMES) if class_colorings else set()
    for candidate in (coloring, *class_colorings):
        names = [category.name for category in candidate.categories]
        if candidate.indices is not None and name in names:
            numbers = [number for number, each in enumerate(names) if each == name]
            return np.isin(candidate.indices, numbers)
        known.update(names)
    if name in known:
        # A class that the scene does not have.
        return np.zeros(len(scene.points), np.bool_)
    hint = "" if known else "the scene has no classes"
    close = get_close_matches(name, known, 3)
    if close:
        hint = f"similar names: {', '.join(close)}"
    raise UsageError(f"{name!r:.80} cannot be hidden: it is not a class", hint)
