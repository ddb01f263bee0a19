"""Prepare ScanNet v2 for 3D semantic and instance segmentation: download, process, pack, train.

Each public name is loaded when it is first used, so that importing this package is fast.
"""

from __future__ import annotations

from importlib import import_module

from scannet_prep.base.version import VERSION

# Type checkers treat a variable of this name as True. Importing `typing` for it would be slow, and
# an interrupt during the import would end in a traceback.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from scannet_prep.errors import ScanNetPrepError as ScanNetPrepError
    from scannet_prep.processed.scene import ProcessedScene as ProcessedScene
    from scannet_prep.processed.scene import read_processed as read_processed
    from scannet_prep.release.label_sets import SCANNET20 as SCANNET20
    from scannet_prep.release.label_sets import SCANNET200 as SCANNET200
    from scannet_prep.release.label_sets import LabelClass as LabelClass
    from scannet_prep.release.label_sets import LabelSet as LabelSet
    from scannet_prep.release.scenes import SceneId as SceneId
    from scannet_prep.release.scenes import Split as Split
    from scannet_prep.release.scenes import official_scenes as official_scenes
    from scannet_prep.training.collate import Batch as Batch
    from scannet_prep.training.collate import collate as collate
    from scannet_prep.training.collate import collate_torch as collate_torch
    from scannet_prep.training.dataset import ScanNet as ScanNet
    from scannet_prep.training.sample import sample_from_mesh as sample_from_mesh
    from scannet_prep.training.samplers import EvalSampler as EvalSampler
    from scannet_prep.training.samplers import PointBudgetBatchSampler as PointBudgetBatchSampler
    from scannet_prep.view.notebook import render as render
    from scannet_prep.view.notebook import show as show

__version__ = VERSION

# The module of each public name.
_MODULES = {
    "Batch": "training.collate",
    "EvalSampler": "training.samplers",
    "LabelClass": "release.label_sets",
    "LabelSet": "release.label_sets",
    "PointBudgetBatchSampler": "training.samplers",
    "ProcessedScene": "processed.scene",
    "SCANNET20": "release.label_sets",
    "SCANNET200": "release.label_sets",
    "ScanNet": "training.dataset",
    "ScanNetPrepError": "errors",
    "SceneId": "release.scenes",
    "Split": "release.scenes",
    "collate": "training.collate",
    "collate_torch": "training.collate",
    "official_scenes": "release.scenes",
    "read_processed": "processed.scene",
    "render": "view.notebook",
    "sample_from_mesh": "training.sample",
    "show": "view.notebook",
}

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604 - the keys are strings


def __getattr__(name: str) -> object:
    """Load a public name from its module."""
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{module}"), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
