"""Frames: the images, depth, poses and 2D labels of a scan, and the way between points and pixels.

<scene>.sens, zip files of 2D labels --extract_scene--> folder --FrameFolder--> images
points + pose + intrinsics           --project-->       pixels
"""

from scannet_prep.frames.folder import ExtractedFrame, FrameFolder, SceneFrames
from scannet_prep.frames.options import FrameOptions
from scannet_prep.frames.projection import camera_in, project
from scannet_prep.raw.sensor_stream import Frame, SensorCamera, SensorStream

__all__ = [
    "ExtractedFrame",
    "Frame",
    "FrameFolder",
    "FrameOptions",
    "SceneFrames",
    "SensorCamera",
    "SensorStream",
    "camera_in",
    "project",
]
