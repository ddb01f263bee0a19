"""The way to other programs of the field: one module a program, the only places that know foreign names."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from scannet_prep.base.errors import UsageError

if TYPE_CHECKING:
    from scannet_prep.export.format import ExportFormat, ExportOptions

EXPORT_NAME = "export.json"

# Name, as in `--format`, to module, class, and one line for people. Here, so that a help text needs no NumPy.
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
        UsageError: There is no format of that name, or it does not support the options.
    """
    if name not in FORMATS:
        raise UsageError(f"{name!r} is not a format", f"there are: {', '.join(FORMATS)}")
    module, class_name, _ = FORMATS[name]
    made: ExportFormat = getattr(import_module(f"{__name__}.{module}"), class_name)(options)
    return made


def is_export(path: Path) -> bool:
    """Whether `scannet-prep export` made a folder; it may look like a processed one."""
    return (path / EXPORT_NAME).is_file()
