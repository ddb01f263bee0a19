"""Prepares ScanNet v2 for 3D semantic and instance segmentation: download, process, pack, train.

The names below are loaded when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from scannet_prep.version import VERSION

if TYPE_CHECKING:
    from scannet_prep.collation import Batch, collate, collate_torch
    from scannet_prep.concat import ConcatDataset
    from scannet_prep.dataset import ScanNet
    from scannet_prep.errors import ScanNetPrepError
    from scannet_prep.labels import SCANNET20, SCANNET200, LabelClass, LabelSet
    from scannet_prep.processed.scene import ProcessedScene, read_processed
    from scannet_prep.sampling.samplers import EvalSampler, PointBudgetBatchSampler, WithEpoch
    from scannet_prep.scene import SceneId, Split
    from scannet_prep.splits import official_scenes
    from scannet_prep.view.sample import render

__all__ = [
    "SCANNET20",
    "SCANNET200",
    "Batch",
    "ConcatDataset",
    "EvalSampler",
    "LabelClass",
    "LabelSet",
    "PointBudgetBatchSampler",
    "ProcessedScene",
    "ScanNet",
    "ScanNetPrepError",
    "SceneId",
    "Split",
    "WithEpoch",
    "__version__",
    "collate",
    "collate_torch",
    "official_scenes",
    "read_processed",
    "render",
]

__version__ = VERSION

_HOMES = {
    "collation": ("Batch", "collate", "collate_torch"),
    "concat": ("ConcatDataset",),
    "dataset": ("ScanNet",),
    "errors": ("ScanNetPrepError",),
    "labels": ("SCANNET20", "SCANNET200", "LabelClass", "LabelSet"),
    "processed.scene": ("ProcessedScene", "read_processed"),
    "sampling.samplers": ("EvalSampler", "PointBudgetBatchSampler", "WithEpoch"),
    "scene": ("SceneId", "Split"),
    "splits": ("official_scenes",),
    "view.sample": ("render",),
}


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
