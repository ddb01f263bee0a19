"""The names of the files that programs read, as records: a new program is a new record.

The ending of a name selects the encoding of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

FrameContent: TypeAlias = Literal["color", "depth", "pose", "labels", "instances"]
SceneContent: TypeAlias = Literal[
    "intrinsic_color", "extrinsic_color", "intrinsic_depth", "extrinsic_depth"
]


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of the files of a scene.

    Attributes:
        of_frame: The files of each frame, by content. `{number}` is the number of the frame in the
            stream; `{position}` counts the frames that are extracted, from 0.
        of_scene: The content of each file that concerns all frames, by name.
        folder: The folder of a scene in the output folder; `{scene}` is its name.
    """

    of_frame: Mapping[FrameContent, str] = field(hash=False)
    of_scene: Mapping[str, SceneContent] = field(hash=False)
    folder: str = "{scene}"


LAYOUTS = {
    # reader.py of ScanNet's SensReader.
    "official": Layout(
        of_frame={
            "color": "color/{number}.jpg",
            "depth": "depth/{number}.png",
            "pose": "pose/{number}.txt",
            "labels": "label/{number}.png",
            "instances": "instance/{number}.png",
        },
        of_scene={
            "intrinsic/intrinsic_color.txt": "intrinsic_color",
            "intrinsic/extrinsic_color.txt": "extrinsic_color",
            "intrinsic/intrinsic_depth.txt": "intrinsic_depth",
            "intrinsic/extrinsic_depth.txt": "extrinsic_depth",
        },
    ),
    # scannet_frames_25k.zip of the release.
    "frames25k": Layout(
        of_frame={
            "color": "color/{number:06}.jpg",
            "depth": "depth/{number:06}.png",
            "pose": "pose/{number:06}.txt",
            "labels": "label/{number:06}.png",
            "instances": "instance/{number:06}.png",
        },
        of_scene={
            "intrinsics_color.txt": "intrinsic_color",
            "intrinsics_depth.txt": "intrinsic_depth",
        },
    ),
    # The folder `posed_images` of mmdetection3d.
    "mmdet3d": Layout(
        of_frame={
            "color": "{position:05}.jpg",
            "depth": "{position:05}.png",
            "pose": "{position:05}.txt",
        },
        of_scene={"intrinsic.txt": "intrinsic_color"},
    ),
}
