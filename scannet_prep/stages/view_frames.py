"""The cameras of extracted frames, for the page of a scene."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from scannet_prep.base.images import encode_jpeg, resize_color
from scannet_prep.frames.folder import ExtractedFrame, FrameFolder, SceneFrames
from scannet_prep.frames.projection import camera_in
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.raw.sensor_stream import SensorCamera
from scannet_prep.view.coloring import ViewedCamera

_MAX_CAMERAS = 40
# The box that an image of the page fits into, in pixels.
_BOX = (320, 240)
_JPEG_QUALITY = 80
# How far the corners of an image are drawn from the eye.
_DEPTH_M = 0.25


def view_cameras(folder: FrameFolder, scene: ProcessedScene) -> tuple[ViewedCamera, ...]:
    """Find at most 40 cameras of a scene, evenly spaced among the frames with tracking.

    Raises:
        UnknownSceneError: The folder does not hold the scene.
        UsageError: Poses were not extracted.
        FileError: A file is missing or damaged.
    """
    frames = folder[scene.meta.scene_id]
    tracked = np.flatnonzero(frames.is_tracked)
    count = min(len(tracked), _MAX_CAMERAS)
    chosen = tracked[np.linspace(0, len(tracked) - 1, count).round().astype(np.intp)]
    return tuple(_view_camera(frames, frames[int(position)], scene) for position in chosen)


def _view_camera(frames: SceneFrames, frame: ExtractedFrame, scene: ProcessedScene) -> ViewedCamera:
    camera = frames.color_camera
    points_from_camera = camera_in(scene, frame.pose)
    corners = _find_corners(camera) @ points_from_camera[:3, :3].T + points_from_camera[:3, 3]
    return ViewedCamera(frame.number, corners, camera.size, _shrink(frames, frame))


def _find_corners(camera: SensorCamera) -> NDArray[np.float64]:
    """Return the eye and the corners of the image, float64 (5, 3), in the frame of the camera."""
    width, height = camera.size
    focal = camera.intrinsic[[0, 1], [0, 1]].astype(np.float64)
    center = camera.intrinsic[:2, 2].astype(np.float64)
    # Whole numbers are the middles of pixels.
    edges = np.array([(0, 0), (width, 0), (width, height), (0, height)]) - 0.5
    corners = np.zeros((5, 3))
    corners[1:, :2] = (edges - center) / focal * _DEPTH_M
    corners[1:, 2] = _DEPTH_M
    return corners


def _shrink(frames: SceneFrames, frame: ExtractedFrame) -> bytes:
    """Return the image of a frame as a small JPEG; empty if images were not extracted."""
    record = frames.record
    if "color" not in record.options.contents_of(record.split):
        return b""
    image = frame.color()
    height, width = image.shape[:2]
    scale = min(1.0, _BOX[0] / width, _BOX[1] / height)
    size = (max(1, round(width * scale)), max(1, round(height * scale)))
    return encode_jpeg(resize_color(image, size), _JPEG_QUALITY)
