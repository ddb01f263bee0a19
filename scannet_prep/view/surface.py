"""The surfaces of a picture: the vertices and triangles that are drawn, in the picture."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scannet_prep.view.camera import NEAR, Camera, Projected
from scannet_prep.view.categories import Coloring
from scannet_prep.view.coloring import ViewedScene
from scannet_prep.view.picture_options import PictureOptions
from scannet_prep.view.raster import Seen, draw_points, draw_triangles, estimate_spacing
from scannet_prep.view.splats import draw_splats, estimate_radii, project_radii
from scannet_prep.view.visibility import clip_near


@dataclass(frozen=True, slots=True, eq=False)
class Surface:
    """The vertices and triangles of a picture.

    Attributes:
        scene: The scene, without hidden triangles, and cut off near the camera.
        coloring: Its colouring.
        projected: Its vertices in the picture, in samples.
        is_drawn: bool (V,), the vertices to draw if there are no triangles.
        facing: float32 (V,), how much their surfaces face the camera, as `draw_splats` takes it;
            empty if there are triangles.
        spacing: Distance between neighbours, in metres; for points that are drawn as squares.
        radii: float32 (V,), the radii of points in samples, if they are drawn as discs.
        width: Width of the picture, in samples.
        options: Options of the picture.
    """

    scene: ViewedScene
    coloring: Coloring
    projected: Projected
    is_drawn: NDArray[np.bool_]
    facing: NDArray[np.float32]
    spacing: float
    radii: NDArray[np.float32]
    width: int
    options: PictureOptions

    @classmethod
    def of(
        cls,
        scene: ViewedScene,
        coloring: Coloring,
        is_shown: NDArray[np.bool_],
        width: int,
        options: PictureOptions,
    ) -> Surface:
        """Select what is drawn, and project it.

        Args:
            scene: The scene.
            coloring: Its colouring.
            is_shown: bool (V,), the vertices that are not hidden.
            width: Width of the picture, in pixels.
            options: Options of the picture.
        """
        camera = options.camera
        size = (width * options.samples, options.height * options.samples)
        projected = camera.project(scene.points, *size)
        depths = _find_depths(scene.points, projected, camera)
        faces = scene.faces
        # Triangles need none of these.
        facing = np.empty(0, np.float32)
        radii = np.empty(0, np.float32)
        spacing = 0.0
        if options.has_mesh and faces is not None and len(faces):
            # A triangle is hidden with each of its corners.
            if not is_shown.all():
                scene = replace(scene, faces=faces[is_shown[faces].all(axis=1)])
            if depths.min() < NEAR:
                scene, coloring = clip_near(scene, coloring, depths)
                projected = camera.project(scene.points, *size)
        else:
            scene = replace(scene, faces=None)
            if options.is_smooth:
                metres = estimate_radii(scene.points) * np.float32(options.point_scale)
                radii = project_radii(metres, projected, min(size))
            else:
                spacing = estimate_spacing(scene.points) * options.point_scale
            is_shown = is_shown & (depths >= NEAR)
            facing = _find_facing(scene, projected, camera)
            # Only points on surfaces that face the camera, and those without a normal.
            if not options.has_backs:
                is_shown &= facing >= 0
        return cls(scene, coloring, projected, is_shown, facing, spacing, radii, size[0], options)

    def draw(self, rows: range) -> Seen:
        """Draw some rows of pixels."""
        samples = self.options.samples
        height = len(rows) * samples
        projected = replace(self.projected, y=self.projected.y - np.float32(rows.start * samples))
        faces = self.scene.faces
        if faces is not None:
            if self.options.has_backs:
                # Each triangle and its back.
                faces = np.concatenate([faces, faces[:, ::-1]])
            return draw_triangles(projected, faces, self.width, height)
        if not self.options.is_smooth:
            return draw_points(projected, self.is_drawn, self.spacing, self.width, height)
        axes = self.options.camera.axes
        normals = np.zeros((len(self.scene.points), 3), np.float32)
        if self.scene.normals is not None:
            normals = self.scene.normals.astype(np.float32) @ axes.T
        return draw_splats(
            projected, normals, self.facing, self.is_drawn, self.radii, self.width, height
        )


def _find_depths(
    points: NDArray[np.float32], projected: Projected, camera: Camera
) -> NDArray[np.float32]:
    """Return the distances of points in front of a camera, (V,); it sees those of at least NEAR."""
    if not camera.has_perspective:
        # An orthographic camera sees all points.
        return np.full(len(points), np.inf, np.float32)
    return np.asarray((projected.position - points) @ camera.axes[2])


def _find_facing(scene: ViewedScene, projected: Projected, camera: Camera) -> NDArray[np.float32]:
    """Return how much surfaces face the camera, (V,), as `draw_splats` takes it."""
    if scene.normals is None:
        return np.ones(len(scene.points), np.float32)
    normals = scene.normals.astype(np.float32)
    if not camera.has_perspective:
        return np.asarray(normals @ camera.axes[2])
    towards_camera = projected.position - scene.points
    depths = np.maximum(towards_camera @ camera.axes[2], np.float32(NEAR))
    return np.asarray(np.einsum("ij,ij->i", towards_camera, normals) / depths)
