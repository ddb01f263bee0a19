"""PointGroup, HAIS, SoftGroup and ISBNet; and SPFormer, whose files also hold segments.

    <folder>/{train,val,test}/<scene>_inst_nostuff.pth
    <folder>/val_gt/<scene>.txt         instances, for the evaluation of PointGroup and HAIS
    <folder>/superpoints/<scene>.pth    segments, for ISBNet; if the scene has them

The first is a tuple of arrays: points and colours, float32 (V, 3), the latter from -1 to 1; for
SPFormer segments, int64 (V,); except for test scenes, classes and instances, float64 (V,), -100 for
none. Class 0 is wall, class 1 floor; the others follow in their order. Instances are numbered from
0, without walls and floors. Points are in the frame of the scan, with their mean at the origin; for
ScanNet200, as in ISBNet, they are axis-aligned and not moved.
"""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scannet_prep.export.arrays import SceneFiles, segments_of, vertex_raw_ids
from scannet_prep.export.benchmark_gt import export_benchmark_gt
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import SCANNET20, LabelSet
from scannet_prep.release.scenes import Split

# Python 3.7, with which the programs run, reads this protocol.
_PICKLE_PROTOCOL = 3
# Constants of the format of `torch.save`.
_MAGIC_NUMBER = 0x1950A86A20F9469CFC6C
_VERSION = 1001


def export_pointgroup(
    scene: ProcessedScene,
    label_set: LabelSet,
    segments: NDArray[np.int64] | None = None,
) -> SceneFiles:
    """Make the files of a scene.

    Args:
        scene: The scene.
        label_set: The label set of the classes.
        segments: int64 (V,), to store in the tuple; None to store those of the scene beside it.
    """
    name = scene.meta.scene_id
    split = scene.meta.split
    points = scene.points
    if label_set == SCANNET20:
        points = points - points.mean(axis=0)
    colors = scene.colors.astype(np.float32)
    arrays: list[Any] = [points, colors / 127.5 - 1]
    files: dict[str, Any] = {}
    if segments is not None:
        arrays.append(segments)
    elif scene.segments is not None:
        files[f"superpoints/{name}.pth"] = _encode_pth(segments_of(scene))
    if split is not Split.TEST:
        # Walls and floors first.
        order = sorted(range(len(label_set)), key=label_set.things.__contains__)
        # By train id; the last entry is for -1.
        table = np.append(np.argsort(order), -100.0)
        raw_ids = vertex_raw_ids(scene, label_set)
        classes = table[label_set.train_ids_from_raw_ids(raw_ids, ignore_index=-1)]
        is_stuff = np.isin(classes, [0, 1])
        instances = np.where(is_stuff, -1, scene.instances)
        # By instance; the last entry is for -1. Instances without vertices have no number.
        sizes = np.bincount(instances[instances >= 0])
        numbers = np.append(np.cumsum(sizes > 0) - 1.0, -100.0)
        arrays.append(classes)
        arrays.append(numbers[instances])
    if split is Split.VAL:
        truth, _ = export_benchmark_gt(scene, label_set)
        files[f"val_gt/{name}.txt"] = truth[f"instance/{name}.txt"]
    files[f"{split}/{name}_inst_nostuff.pth"] = _encode_pth(tuple(arrays))
    return files, {}


def export_spformer(scene: ProcessedScene, label_set: LabelSet) -> SceneFiles:
    """Make the files of a scene, with its segments in the tuple."""
    return export_pointgroup(scene, label_set, segments_of(scene))


def _encode_pth(value: object) -> list[bytes]:
    """Encode as `torch.save` did up to version 1.5, which every version of PyTorch reads.

    The parts are a magic number, the version of the format, facts about the machine that are not
    used, the value, and a list of its tensors, which is empty.
    """
    parts: list[Any] = [_MAGIC_NUMBER, _VERSION, {}, value, []]
    pickles = [pickle.dumps(part, _PICKLE_PROTOCOL) for part in parts]
    # NumPy 2 names a module that NumPy 1 lacks; it still reads the earlier name.
    return [data.replace(b"cnumpy._core.", b"cnumpy.core.") for data in pickles]
