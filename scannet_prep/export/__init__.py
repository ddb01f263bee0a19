"""Export formats, one module for each program that reads them; foreign names occur only there."""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from scannet_prep.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.export.format import ExportFormat, ExportOptions

EXPORT_NAME = "export.json"

Setting: TypeAlias = bool | int | str
"""The value of a setting that all scenes of an export share."""

# Module, class and one-line summary of each format, by its name for `--format`. They are listed
# here so that a help text can be made without importing NumPy.
FORMATS = {
    "octformer": (
        "octformer",
        "OctFormer",
        "OctFormer: train/*.npz and *.txt, test/*.npz, lists of files",
    ),
    "pointcept": (
        "pointcept",
        "Pointcept",
        "Pointcept: train/<scene>/coord.npy and so on, both label sets",
    ),
    "mask3d": ("mask3d", "Mask3D", "Mask3D: train/0000_00.npy and so on, databases, instance_gt/"),
    "mmdet3d": ("mmdet3d", "MMDet3D", "mmdetection3d; for oneformer3d, also super_points/"),
    "votenet": (
        "votenet",
        "VoteNet",
        "VoteNet: <scene>_vert.npy and others, boxes of 18 classes, train and val",
    ),
    "scanrefer": (
        "scanrefer",
        "ScanRefer",
        "ScanRefer, Scan2Cap and others: normals, boxes of 37 classes",
    ),
    "benchmark-gt": (
        "benchmark_gt",
        "BenchmarkGt",
        "ground truth for the official evaluators: semantic/, instance/",
    ),
    "ply": ("ply", "Ply", "for MeshLab; colour is rgb, label, instance or segment"),
}


def make_format(name: str, options: ExportOptions) -> ExportFormat:
    """Make a format by its name.

    Raises:
        UsageError: No format has that name, or it does not support the options.
    """
    if name not in FORMATS:
        raise UsageError(f"{name!r} is not a format", f"there are: {', '.join(FORMATS)}")
    module_name, class_name, _ = FORMATS[name]
    module = import_module(f"{__name__}.{module_name}")
    export_format: ExportFormat = getattr(module, class_name)(options)
    return export_format


def is_export(path: Path) -> bool:
    """Whether `scannet-prep export` made a folder, which may look like a processed one."""
    # Unlike Path.is_file, this returns False if access fails.
    return os.path.isfile(path / EXPORT_NAME)  # noqa: PTH113
