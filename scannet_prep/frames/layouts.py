"""The names of the files that programs read, as records: a new program is a new record.

The ending of a name selects the encoding of the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from scannet_prep.errors import UsageError

FrameContent: TypeAlias = Literal[
    "color", "depth", "pose", "labels", "instances", "vertices", "correspondences"
]


@dataclass(frozen=True, slots=True)
class Layout:
    """The names of the files of a scene, and the options that its readers need.

    Attributes:
        of_frame: The files of each frame, by content. `{number}` is the number of the frame in the
            stream, `{position}` counts the frames that are extracted, from 0, and `{first}` is the
            option.
        of_scene: The content of each file that concerns all frames, by name: one of
            `SCENE_CONTENTS`.
        folder: The folder of a scene in the output folder; `{scene}` is its name, `{scans}` is
            `scans`, or `scans_test` for scenes of test, `{split}` is its split, and `{part}` is
            `train` or `test`.
        defaults: The options that are not those of `FrameOptions` by default.
        fixed: The options that cannot be chosen: with any other value, readers would stop, or take
            one frame for another.
        crop: Width and height of the middle of color images, which is taken; None for all of an
            image.
        aligns_depth: Whether depth images have the pixels of the color camera.
        uses_depth_camera: Whether color images have the size of the depth camera, and the file of a
            pose has its intrinsics, too.
    """

    of_frame: Mapping[FrameContent, str]
    of_scene: Mapping[str, str]
    folder: str = "{scene}"
    defaults: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Any] = field(default_factory=dict)
    crop: tuple[int, int] | None = None
    aligns_depth: bool = False
    uses_depth_camera: bool = False


_MATRICES = (
    "intrinsic_color",
    "extrinsic_color",
    "intrinsic_depth",
    "extrinsic_depth",
)
_MATRIX_FOLDER = {f"intrinsic/{name}.txt": name for name in _MATRICES}
# Where other files tell the numbers and cameras of all frames.
_EXACT = {"first": None, "at_most": None, "size": None, "keeps_lost": True}
LAYOUTS = {
    # reader.py of ScanNet's SensReader.
    "official": Layout(
        of_frame={
            "color": "color/{number}.jpg",
            "depth": "depth/{number}.png",
            "pose": "pose/{number}.txt",
            "labels": "label/{number}.png",
            "instances": "instance/{number}.png",
            "vertices": "vertices/{number}.npy",
        },
        of_scene=_MATRIX_FOLDER,
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
    # The folder `posed_images` of EmbodiedScan, whose infos name frames and the cameras of stored
    # images.
    "embodiedscan": Layout(
        of_frame={
            "color": "{number:05}.jpg",
            "depth": "{number:05}.png",
            "pose": "{number:05}.txt",
        },
        of_scene={"intrinsic.txt": "intrinsic_color", "depth_intrinsic.txt": "intrinsic_depth"},
        folder="posed_images/{scene}",
        defaults={"every": 10},
        fixed=_EXACT,
    ),
    # The folder `images` of Concerto and Utonia, in Pointcept.
    "concerto": Layout(
        of_frame={
            "color": "color/{number}.png",
            "depth": "depth/{number}.png",
            "pose": "pose/{number}.npy",
            "correspondences": "correspondence/{number}.npy",
        },
        of_scene={"intrinsic/intrinsic.npy": "intrinsic_color"},
        folder="{split}/{scene}",
        defaults={
            "every": 75,
            "contents": ("color", "pose", "correspondences"),
            "keeps_lost": True,
        },
    ),
    # A model of COLMAP, as 3D Gaussian splatting reads it.
    "colmap": Layout(
        of_frame={"color": "images/{number:06}.jpg", "depth": "depths/{number:06}.png"},
        of_scene={
            "sparse/0/cameras.txt": "colmap_camera",
            "sparse/0/images.txt": "colmap_images",
            "sparse/0/points3D.txt": "colmap_points",
            "sparse/0/points3D.ply": "points",
        },
        defaults={"contents": ("color",)},
        fixed={"keeps_lost": False},
        aligns_depth=True,
    ),
    "nerfstudio": Layout(
        of_frame={"color": "images/{number:06}.jpg", "depth": "depths/{number:06}.png"},
        of_scene={"transforms.json": "transforms", "points3D.ply": "points"},
        fixed={"keeps_lost": False},
        aligns_depth=True,
    ),
    # The evaluation of poses of MonST3R, CUT3R and TTT3R.
    "relpose": Layout(
        of_frame={
            "color": "color_{first}/frame_{position:04}.jpg",
            "depth": "depth_{first}/frame_{position:04}.png",
        },
        of_scene={"pose_{first}.txt": "poses"},
        defaults={"every": 3, "first": 90},
        fixed={"at_most": None, "keeps_lost": True},
    ),
    # The training of CUT3R, StreamVGGT and TTT3R. Each frame has a file with pose and intrinsics.
    "cut3r": Layout(
        of_frame={
            "color": "color/{number:05}.jpg",
            "depth": "depth/{number:05}.png",
            "pose": "cam/{number:05}.npz",
        },
        of_scene={"new_scene_metadata.npz": "names"},
        folder="scans_{part}/{scene}",
        defaults={"every": 1},
        fixed={"size": None, "keeps_lost": False},
        uses_depth_camera=True,
    ),
    "openeqa": Layout(
        of_frame={
            "color": "{number:06}-rgb.png",
            "depth": "{number:06}-depth.png",
            "pose": "{number:06}.txt",
        },
        of_scene={f"{name}.txt": name for name in _MATRICES},
        defaults={"every": 1, "first": 600, "keeps_lost": True},
    ),
    # What ScanNet's SensReader for C++ writes; ScanNet-1500 of SuperGlue names these files.
    "sens": Layout(
        of_frame={
            "color": "sens/frame-{number:06}.color.jpg",
            "depth": "sens/frame-{number:06}.depth.pgm",
            "pose": "sens/frame-{number:06}.pose.txt",
        },
        of_scene={"sens/_info.txt": "stream_info"},
        folder="{scans}/{scene}",
        defaults={"every": 1},
        fixed={"at_most": None, "size": None, "keeps_lost": True},
    ),
    "simplerecon": Layout(
        of_frame={
            "color": "sensor_data/frame-{number:06}.color.jpg",
            "depth": "sensor_data/frame-{number:06}.depth.png",
            "pose": "sensor_data/frame-{number:06}.pose.txt",
        },
        of_scene={**_MATRIX_FOLDER, "{scene}.txt": "scan_info"},
        folder="{scans}/{scene}",
        fixed={"every": 1, **_EXACT},
    ),
    # Depth in metres. Its trainer reads maps of depth and normals that a network makes of `image`.
    "monosdf": Layout(
        of_frame={"color": "image/{position:06}.png", "depth": "depth/{position:06}.npy"},
        of_scene={"cameras.npz": "projections"},
        defaults={"every": 10},
        fixed={"size": (384, 384), "keeps_lost": False},
        crop=(768, 768),
        aligns_depth=True,
    ),
}


def find_layout(name: str) -> Layout:
    """Find a layout by its name.

    Raises:
        UsageError: There is none of this name.
    """
    if name not in LAYOUTS:
        raise UsageError(f"{name!r} is not a layout", f"there are: {', '.join(LAYOUTS)}")
    return LAYOUTS[name]
