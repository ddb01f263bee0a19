"""Prepares ScanNet v2 for 3D semantic and instance segmentation: download, process, pack, train.

The names below are loaded when they are first used, so that importing this package costs nothing.
"""

from __future__ import annotations

from importlib import import_module

from scannet_prep.base.version import VERSION

TYPE_CHECKING = False  # as type checkers take it; `typing` is slow to load, and until then an interrupt is Python's own
if TYPE_CHECKING:
    from scannet_prep.base.errors import ScanNetPrepError as ScanNetPrepError
    from scannet_prep.processed.scene import ProcessedScene as ProcessedScene
    from scannet_prep.processed.scene import read_processed as read_processed
    from scannet_prep.release.label_sets import SCANNET20 as SCANNET20
    from scannet_prep.release.label_sets import SCANNET200 as SCANNET200
    from scannet_prep.release.label_sets import LabelClass as LabelClass
    from scannet_prep.release.label_sets import LabelSet as LabelSet
    from scannet_prep.release.scene import SceneId as SceneId
    from scannet_prep.release.scene import Split as Split
    from scannet_prep.release.splits import official_scenes as official_scenes
    from scannet_prep.training.collate import Batch as Batch
    from scannet_prep.training.collate import collate as collate
    from scannet_prep.training.collate import collate_torch as collate_torch
    from scannet_prep.training.concat import ConcatDataset as ConcatDataset
    from scannet_prep.training.dataset import ScanNet as ScanNet
    from scannet_prep.training.keys import WithEpoch as WithEpoch
    from scannet_prep.training.samplers import EvalSampler as EvalSampler
    from scannet_prep.training.samplers import PointBudgetBatchSampler as PointBudgetBatchSampler
    from scannet_prep.view.sample import render as render

__version__ = VERSION

_HOMES = {
    "training.collate": ("Batch", "collate", "collate_torch"),
    "training.concat": ("ConcatDataset",),
    "training.dataset": ("ScanNet",),
    "base.errors": ("ScanNetPrepError",),
    "release.label_sets": ("SCANNET20", "SCANNET200", "LabelClass", "LabelSet"),
    "processed.scene": ("ProcessedScene", "read_processed"),
    "training.keys": ("WithEpoch",),
    "training.samplers": ("EvalSampler", "PointBudgetBatchSampler"),
    "release.scene": ("SceneId", "Split"),
    "release.splits": ("official_scenes",),
    "view.sample": ("render",),
}

__all__ = ["__version__", *(name for names in _HOMES.values() for name in names)]  # noqa: PLE0604 - texts


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    for module, names in _HOMES.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """The public names."""
    return sorted(__all__)
