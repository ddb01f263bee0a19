"""Export formats, one function for each program; foreign names occur only there."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.export.format import Format

EXPORT_NAME = "export.json"

# Module and one-line summary of each format, by its name for `--format`. They are listed here so
# that a help text can be made without importing NumPy.
FORMATS = {
    "octformer": (
        "octformer",
        "OctFormer: train/*.npz and *.txt, test/*.npz, lists of files",
    ),
    "pointcept": (
        "pointcept",
        "Pointcept: train/<scene>/coord.npy and so on, both label sets",
    ),
    "mask3d": (
        "mask3d",
        "Mask3D: train/0000_00.npy and so on, databases, instance_gt/",
    ),
    "mmdet3d": (
        "mmdet3d",
        "mmdetection3d: points/, masks, infos, seg_info/",
    ),
    "oneformer3d": (
        "mmdet3d",
        "OneFormer3D: as mmdet3d, with super_points/",
    ),
    "votenet": (
        "detection",
        "VoteNet: <scene>_vert.npy and others, boxes of 18 classes, train and val",
    ),
    "scanrefer": (
        "detection",
        "ScanRefer, Scan2Cap and others: normals, boxes of 37 classes",
    ),
    "benchmark-gt": (
        "benchmark_gt",
        "ground truth for the official evaluators: semantic/, instance/",
    ),
    "ply": (
        "ply",
        "meshes or points for MeshLab, with raw ids",
    ),
}


def find_format(name: str) -> Format:
    """Find a format by its name.

    Raises:
        UsageError: No format has that name.
    """
    if name not in FORMATS:
        raise UsageError(f"{name!r} is not a format", f"there are: {', '.join(FORMATS)}")
    module_name, _ = FORMATS[name]
    module = import_module(f"{__name__}.{module_name}")
    export_format: Format = getattr(module, name.replace("-", "_").upper())
    return export_format


def is_export(path: Path) -> bool:
    """Whether `scannet-prep export` made a folder, which may look like a processed one."""
    # Unlike Path.is_file, this returns False if access fails.
    return os.path.isfile(path / EXPORT_NAME)  # noqa: PTH113
