"""Export formats, two functions for each program; foreign names occur only there.

processed scene       --in_frame, export_<format>--> files, record
records of all scenes --share_<format>--> lists
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

EXPORT_NAME = "export.json"


@dataclass(frozen=True, slots=True)
class Format:
    """The layout that another program reads.

    Attributes:
        module: The module of its functions. `export_<format>` makes the files of one scene;
            `share_<format>`, if there is one, makes the files that concern all scenes.
        summary: The program and the files, for people.
        choices: What a user can choose: the label set, if the format has only one; the frame.
        aligned_with: The label sets with which the program aligns points; None if it takes any
            frame.
        needs: What test scenes have not, or only if it was computed.
    """

    module: str
    summary: str
    choices: tuple[str, ...] = ()
    aligned_with: tuple[str, ...] | None = None
    needs: Literal["", "annotation", "segments"] = ""


_BOTH = ("label set", "frame")
# Modules are named here so that a help text can be made without importing NumPy.
FORMATS = {
    "octformer": Format(
        "octformer",
        "OctFormer: train/*.npz and *.txt, test/*.npz, lists of files",
        choices=_BOTH,
        aligned_with=("ScanNet200",),
    ),
    "pointcept": Format(
        "pointcept",
        "Pointcept: train/<scene>/coord.npy and so on, both label sets",
        choices=("frame",),
        aligned_with=(),
    ),
    "mask3d": Format(
        "mask3d",
        "Mask3D: train/0000_00.npy and so on, databases, instance_gt/",
        choices=_BOTH,
        aligned_with=(),
        needs="segments",
    ),
    "mmdet3d": Format(
        "mmdet3d",
        "mmdetection3d: points/, masks, infos, seg_info/",
        choices=("frame",),
        aligned_with=(),
    ),
    "oneformer3d": Format(
        "mmdet3d",
        "OneFormer3D: as mmdet3d, with super_points/",
        choices=_BOTH,
        aligned_with=(),
        needs="segments",
    ),
    "votenet": Format(
        "detection",
        "VoteNet: <scene>_vert.npy and others, boxes of 18 classes",
        needs="annotation",
    ),
    "scanrefer": Format(
        "detection",
        "ScanRefer, Scan2Cap and others: normals, boxes of 37 classes",
    ),
    "benchmark-gt": Format(
        "benchmark_gt",
        "ground truth for the official evaluators: semantic/, instance/",
        choices=("label set",),
        needs="annotation",
    ),
    "ply": Format(
        "ply",
        "meshes or points for MeshLab, with raw ids",
        choices=_BOTH,
    ),
}


def find_function(verb: str, name: str) -> Any:  # noqa: ANN401 - see `Format.module`
    """Find a function of a format, such as `export_ply`; None if it has none."""
    module = import_module(f"{__name__}.{FORMATS[name].module}")
    return getattr(module, f"{verb}_{name.replace('-', '_')}", None)
