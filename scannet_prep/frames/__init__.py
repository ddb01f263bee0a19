"""Frames: the images, depth and poses of a scan, and the way between points and pixels.

<scene>.sens --SensorStream--> frames
"""

from scannet_prep.raw.sensor_stream import Frame, SensorCamera, SensorStream

__all__ = ["Frame", "SensorCamera", "SensorStream"]
