"""Ground truth in the text files of the official evaluators of the benchmark.

    <root>/semantic/<scene>.txt     one raw id per line: nyu40 ids, or ScanNet ids for 200 classes
    <root>/instance/<scene>.txt     raw id * 1000 + number of the instance; 0 for no instance

Instances with a class are numbered from 1 in each scene.
"""

from __future__ import annotations

from scannet_prep.export.arrays import SceneFiles, encode_instances, encode_lines
from scannet_prep.processed.annotate import raw_ids_by_group
from scannet_prep.processed.scene import ProcessedScene
from scannet_prep.release.label_sets import LabelSet


def export_benchmark_gt(scene: ProcessedScene, label_set: LabelSet) -> SceneFiles:
    """Make both files."""
    raw_ids = raw_ids_by_group(scene.meta.groups, label_set)
    has_class = raw_ids > 0
    numbers = has_class.cumsum() * has_class
    name = f"{scene.meta.scene_id}.txt"
    return {
        f"semantic/{name}": encode_lines(getattr(scene, label_set.raw_ids_key)),
        f"instance/{name}": encode_instances(scene, label_set, numbers),
    }, {}
